"""Records for journals, and what is found of them afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from adapter.store import journal, layout, store_id
from adapter.store.disk import Directories
from adapter.store.effects import Actor, Bookmark, SetBookmarks
from adapter.store.journal import Journal, Record
from tests.support.stores import STORE

ACTOR = Actor("", "test")


def record(text: str = "x", seq: int = 0) -> Record:
    """A record that carries a text."""
    effect = SetBookmarks("test", (Bookmark("text", text),))
    return Record(seq=seq, at=1_700_000_000_000_000, op="test", actor=ACTOR, effects=[effect])


def bare(seq: int) -> Record:
    return Record(seq=seq, at=1, op="test", actor=ACTOR, effects=[])


def abort(first: int, last: int, seq: int = 0) -> Record:
    return Record(seq=seq, at=1, op="abort", actor=ACTOR, effects=[], aborted=(first, last))


def texts(records: Iterator[Record] | list[Record]) -> list[str]:
    """The texts of records that :func:`record` made."""
    effects = [effect for each in records for effect in each.effects]
    return [effect.bookmarks[0].value or "" for effect in effects if isinstance(effect, SetBookmarks)]


def segment(directories: Directories, first: int = 1) -> Path:
    return Path(directories.root, "journal", f"{first:016d}.jsonl")


def octets(directories: Directories) -> bytes:
    """The records of the segment, without the padding behind them."""
    return segment(directories).read_bytes().rstrip(journal.PADDING)


def reopened(directories: Directories, durable: int = 0) -> Journal:
    fresh = Journal(directories)
    fresh.durable_seq = durable
    fresh.refresh()
    return fresh


@pytest.fixture
def directories(tmp_path: Path) -> Iterator[Directories]:
    with closing(Directories(str(tmp_path))) as opened:
        for parts in layout.DIRECTORIES:
            with opened.stable(parts, create=True):
                pass
        store_id.write(opened, STORE)
        yield opened


@pytest.fixture
def written(directories: Directories) -> Iterator[Journal]:
    with closing(Journal(directories)) as opened:
        opened.refresh()
        yield opened


def actors(root: str, op: str) -> list[Actor]:
    """The actors of all records of one kind of operation, oldest first."""
    with closing(Directories(root)) as directories, closing(Journal(directories)) as opened:
        compacted = min(opened.segments(), default=1) - 1
        return [each.actor for each in opened.records(compacted) if each.op == op]
