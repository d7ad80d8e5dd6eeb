"""Several processes append to one journal."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from adapter.store.disk import Directories
from adapter.store.journal import Journal
from adapter.store.locks import Locks
from tests.support.processes import running
from tests.support.store.journals import record, texts
from tests.support.waiting import PATIENCE


def _append_many(root: str, name: str, count: int) -> None:
    with closing(Directories(root)) as directories, closing(Journal(directories)) as own:
        locks = Locks(directories, PATIENCE)
        for number in range(count):
            with locks.hold(()):
                own.refresh()
                own.append([record(f"{name} {number}"), record(f"{name} {number} again")])
                if number % 7 == 3:
                    own.rotate()
        locks.close()


def test_several_processes_append(written: Journal, directories: Directories) -> None:
    count = 40
    arguments: list[tuple[Any, ...]] = [(directories.root, name, count) for name in ("one", "two")]
    with running(_append_many, *arguments[0]), running(_append_many, *arguments[1]):
        _append_many(directories.root, "here", count)
    written.refresh()
    lines = texts(written.records(0, written.last_seq))
    assert len(lines) == 6 * count
    for name in ("one", "two", "here"):
        own = [text for text in lines if text.startswith(name)]
        assert own == [text for number in range(count) for text in (f"{name} {number}", f"{name} {number} again")]
