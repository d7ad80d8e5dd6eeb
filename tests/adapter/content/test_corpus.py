"""Round trip of real mail through the store, and the share of it that a person can read.

``MARKPOST_CORPUS`` names a directory of ``.eml`` files, by default one next to the repository. Generated mail is tested
in any case.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adapter.content.wire import BLOB, RAW, Recipe
from adapter.exchange.eml import with_crlf
from adapter.transport.transport import Transport
from tests.support.mail.corpus import varied_message
from tests.support.paths import REPOSITORY
from tests.support.stores import ADA, BOB, append, deliver, rows

_REPOSITORY = REPOSITORY
_CORPUS = Path(os.environ.get("MARKPOST_CORPUS", _REPOSITORY.parent / "shared" / "corpus"))
_READABLE = 0.95


def messages(source: str) -> list[bytes]:
    if source == "made here":
        return [varied_message(number) for number in range(140)]
    return [file.read_bytes() for file in sorted(_CORPUS.glob("*.eml"))]


def unreadable(recipe: Recipe) -> int:
    """Number of octets stored undecoded because decoding them is not reversible."""
    return sum(
        segment.size
        for segment in recipe.segments
        if segment.kind == RAW
        or (segment.kind == BLOB and segment.coding is not None and segment.coding.encoding == "identity")
    )


@pytest.mark.parametrize("source", ["made here", *(["collected"] if _CORPUS.is_dir() else [])])
def test_every_message_is_rebuilt_exactly_and_readable(
    store: Transport, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = messages(source)
    assert len(corpus) > 100
    total = kept = 0
    for octets in corpus:
        travelled = b"".join(with_crlf([octets]))
        delivered = deliver(store, BOB, octets=travelled)
        assert store.content.octets(delivered.message_id) == travelled
        append(store, "INBOX", octets)
        total += len(travelled)
        kept += unreadable(store.content.recipe(delivered.message_id))
    appended = [store.content.octets(row.message_id) for row in rows(store, address=ADA)]
    assert appended == corpus
    share = 1 - kept / total
    with capsys.disabled():
        print(f"\n  {source}: {len(corpus)} messages, {share:.2%} of their octets can be read")
    assert share > _READABLE
