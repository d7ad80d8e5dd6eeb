"""Marks of recent messages: each message is recent in one session of all processes; lost marks make none recent."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from adapter.store import layout
from adapter.store.queries import recent_marks
from adapter.store.queries.recent_marks import claim, open_marks, peek, prune

FOLDER, VALIDITY = 7, 100


@pytest.fixture
def marks(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(open_marks(str(tmp_path), list)) as connection:
        yield connection


def test_all_messages_are_recent_in_a_folder_without_a_mark(marks: sqlite3.Connection) -> None:
    assert peek(marks, FOLDER, VALIDITY, 4) == 1
    assert claim(marks, FOLDER, VALIDITY, 4) == 1
    assert claim(marks, FOLDER, VALIDITY, 4) == 4
    assert claim(marks, FOLDER, VALIDITY, 9) == 4
    assert peek(marks, FOLDER, VALIDITY, 9) == 9


def test_mark_never_decreases(marks: sqlite3.Connection) -> None:
    claim(marks, FOLDER, VALIDITY, 9)
    assert claim(marks, FOLDER, VALIDITY, 5) == 5  # a session with an older view
    assert peek(marks, FOLDER, VALIDITY, 12) == 9


def test_nothing_is_recent_after_the_uids_have_changed(marks: sqlite3.Connection) -> None:
    claim(marks, FOLDER, VALIDITY, 9)
    assert peek(marks, FOLDER, VALIDITY + 1, 4) == 4
    assert claim(marks, FOLDER, VALIDITY + 1, 4) == 4
    assert claim(marks, FOLDER, VALIDITY + 1, 6) == 4


def test_each_message_is_recent_to_one_of_many_processes(tmp_path: Path, marks: sqlite3.Connection) -> None:
    claimed: list[tuple[int, int]] = []
    start = threading.Barrier(4)

    def session() -> None:
        with closing(open_marks(str(tmp_path), list)) as connection:
            connection.execute("PRAGMA busy_timeout=20000")
            start.wait()
            for upto in range(2, 40):
                first = claim(connection, FOLDER, VALIDITY, upto)
                if first < upto:
                    claimed.append((first, upto))

    threads = [threading.Thread(target=session) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    uids = sorted(uid for first, upto in claimed for uid in range(first, upto))
    assert uids == list(range(1, 39))


def test_claim_without_new_messages_writes_nothing(tmp_path: Path, marks: sqlite3.Connection) -> None:
    claim(marks, FOLDER, VALIDITY, 4)
    with closing(open_marks(str(tmp_path), list)) as other:
        other.execute("BEGIN IMMEDIATE")  # blocks every write
        assert claim(marks, FOLDER, VALIDITY, 4) == 4
        with pytest.raises(sqlite3.OperationalError):
            claim(marks, FOLDER, VALIDITY, 5)
        other.execute("ROLLBACK")
    assert claim(marks, FOLDER, VALIDITY, 5) == 4


def test_lost_marks_make_no_message_recent(tmp_path: Path) -> None:
    root = str(tmp_path)
    with closing(open_marks(root, list)) as marks:
        claim(marks, FOLDER, VALIDITY, 3)
    recent_marks.drop(root)
    with closing(open_marks(root, lambda: [(FOLDER, VALIDITY, 8), (9, VALIDITY, 1)])) as marks:
        assert peek(marks, FOLDER, VALIDITY, 8) == 8
        assert peek(marks, 9, VALIDITY, 2) == 1


@pytest.mark.parametrize("damage", [b"no database at all, but octets" * 200, b"SQLite format 3\0" + b"\xff" * 4096])
def test_damaged_marks_are_recreated(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / layout.RECENT_MARKS_FILE).write_bytes(damage)
    with closing(open_marks(str(tmp_path), lambda: [(FOLDER, VALIDITY, 8)])) as marks:
        assert peek(marks, FOLDER, VALIDITY, 9) == 8


def test_marks_are_not_opened_through_a_symbolic_link(tmp_path: Path) -> None:
    root, outside = tmp_path / "store", tmp_path / "outside.sqlite"
    root.mkdir()
    (root / layout.RECENT_MARKS_FILE).symlink_to(outside)
    open_marks(str(root), list).close()
    assert not outside.exists()


def test_marks_of_deleted_folders_are_pruned(marks: sqlite3.Connection) -> None:
    claim(marks, FOLDER, VALIDITY, 3)
    claim(marks, 8, VALIDITY, 3)
    prune(marks, [(8, VALIDITY, 3)])
    assert marks.execute("SELECT folder_id FROM recent_marks").fetchall() == [(8,)]
