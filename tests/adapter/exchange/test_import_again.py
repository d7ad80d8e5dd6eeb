"""An import can be repeated and resumed, takes Markdown files, and reports exactly what went in."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.exchange.import_ import Importer, find_source
from adapter.exchange.model import Item, Source, SourceError
from adapter.store import names
from adapter.transport import operations as op
from adapter.transport.operations.base import Plan
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.support.messages import message
from tests.support.stores import BOB, new_store, rows


class _DiskFull(op.Append):
    def plan(self, plan: Plan) -> list[op.Placed]:
        raise MailError(Reason.DISK_FULL, "no space")


def _source(octets: list[bytes]) -> Source:
    items = [Item(str(at), names.INBOX, len(each), partial(iter, [each])) for at, each in enumerate(octets)]
    return Source((names.INBOX,), sum(map(len, octets)), lambda: iter(items))


def _contents(store: Transport, folder: str = "INBOX") -> Counter[bytes]:
    return Counter(store.content.octets(row.message_id) for row in rows(store, folder, BOB))


@given(data=st.data())
def test_import_leaves_as_many_equal_messages_as_the_source_has(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    choices = st.lists(st.integers(0, 3), max_size=6)
    first, second = data.draw(choices), data.draw(choices)
    letters = [message(f"letter {number}") for number in range(4)]
    with new_store(tmp_path_factory.mktemp("import") / "store", BOB) as store:
        Importer(store, _source([letters[number] for number in first]), BOB).run()
        done = Importer(store, _source([letters[number] for number in second]), BOB).run()
        expected = Counter(first) | Counter(second)
        assert _contents(store) == Counter({letters[number]: count for number, count in expected.items()})
        assert done.skipped == (Counter(first) & Counter(second)).total()
        assert done.messages == len(second) - done.skipped


def test_a_message_of_another_folder_is_imported(store: Transport) -> None:
    store.run(op.Append(BOB, "Sent", [op.AppendItem(store.stage(message()))]))
    done = Importer(store, _source([message()]), BOB).run()
    assert (done.messages, done.skipped) == (1, 0)


def test_an_import_that_fails_counts_what_went_in_and_is_resumed(
    store: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = [message(f"letter {number}") for number in range(20)]
    submit = store.submit
    calls = 0

    def full_for_a_while(operation: Any) -> Any:
        nonlocal calls
        calls += isinstance(operation, op.Append)
        if isinstance(operation, op.Append) and calls in (8, 9):
            operation = _DiskFull(operation.address, operation.folder, operation.items)
        return submit(operation)

    monkeypatch.setattr(store, "submit", full_for_a_while)
    importer = Importer(store, _source(letters), BOB)
    with pytest.raises(MailError) as caught:
        importer.run()
    assert caught.value.reason is Reason.DISK_FULL
    assert importer.done.messages == len(rows(store, "INBOX", BOB)) == 18
    monkeypatch.undo()
    done = Importer(store, _source(letters), BOB).run()
    assert (done.messages, done.skipped) == (2, 18)
    assert _contents(store) == Counter(letters)


def _write(path: Path, text: str, modified: int = 1_700_000_000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    os.utime(path, (modified, modified))


def test_markdown_files_are_imported_as_mail(store: Transport, tmp_path: Path) -> None:
    vault = tmp_path / "vault"
    _write(
        vault / "plan.md",
        "---\nsubject: Plan\nfrom: Ada <ada@example.test>\ndate: 2026-05-01\ntags: [a]\n---\n# Plan\n",
    )
    _write(vault / "Work" / "idea.md", "# An idea\n\nText.\n")
    _write(vault / ".obsidian" / "notes.md", "not mail\n")
    done = Importer(store, find_source(str(vault), BOB), BOB).run()
    assert (done.messages, done.failed, done.folders) == (2, [], {"INBOX", "Work"})
    (plan,), (idea,) = rows(store, "INBOX", BOB), rows(store, "Work", BOB)
    octets = store.content.octets(plan.message_id)
    assert b"Subject: Plan\r\n" in octets
    assert b"From: Ada <ada@example.test>\r\n" in octets
    assert b"Date: Fri, 01 May 2026 00:00:00 +0000\r\n" in octets
    assert b"Subject: An idea\r\n" in store.content.octets(idea.message_id)
    assert idea.internal_date == 1_700_000_000
    again = Importer(store, find_source(str(vault), BOB), BOB).run()
    assert (again.messages, again.skipped) == (0, 2)


def test_a_single_markdown_file_is_one_message(store: Transport, tmp_path: Path) -> None:
    _write(tmp_path / "note.MD", "Hello\n")
    assert Importer(store, find_source(str(tmp_path / "note.MD"), BOB), BOB).run().messages == 1


def test_markdown_that_cannot_be_composed_is_reported(store: Transport, tmp_path: Path) -> None:
    vault = tmp_path / "vault"
    _write(vault / "bad.md", "---\nfrom: no address\n---\nx\n")
    _write(vault / "yaml.md", "---\n&a [*a]\n---\nx\n")
    (vault / "link.md").symlink_to("/etc/passwd")
    _write(vault / "good.md", "x\n")
    done = Importer(store, find_source(str(vault), BOB), BOB).run()
    assert done.messages == 1
    assert sorted(Path(label).name for label, _ in done.failed) == ["bad.md", "link.md", "yaml.md"]


def test_the_files_of_a_store_are_no_source(store: Transport) -> None:
    store.run(op.Append(BOB, "INBOX", [op.AppendItem(store.stage(message()))]))
    with pytest.raises(SourceError, match="has no mail"):
        find_source(os.path.dirname(store.root), BOB)
