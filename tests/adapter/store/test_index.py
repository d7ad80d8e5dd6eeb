"""The index: transactions, readers and their isolation."""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from adapter.store import index
from adapter.store.disk import Directories
from adapter.store.index import Index, IndexMissing, IndexUnreadable, ReadGate
from tests.support.store.tables import set_seq
from tests.support.stores import STORE


def test_transaction_is_visible_after_its_commit(opened: Index) -> None:
    with opened.transaction() as connection:
        set_seq(connection, 5)
        assert opened.applied_seq() == 0
    assert opened.applied_seq() == 5


def test_failed_transaction_is_rolled_back(opened: Index) -> None:
    def fail() -> None:
        with opened.transaction() as connection:
            set_seq(connection, 5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert opened.applied_seq() == 0
    with opened.transaction() as connection:
        set_seq(connection, 6)
    assert opened.applied_seq() == 6


def test_commit_removes_the_rollback_journal(opened: Index, index_directories: Directories) -> None:
    """The removal wakes the change feed of other processes."""
    assert opened.query("PRAGMA journal_mode") == [("delete",)]
    with opened.transaction() as connection:
        set_seq(connection, 1)
        assert "index.sqlite-journal" in os.listdir(index_directories.root)
    assert sorted(os.listdir(index_directories.root)) == ["index.sqlite", "store-id.txt"]


def test_a_reading_block_sees_one_state(opened: Index, index_directories: Directories) -> None:
    seen: list[int] = []
    with closing(Index(index_directories)) as other:
        done = threading.Event()

        def write() -> None:
            with other.transaction() as connection:
                set_seq(connection, 1)
            done.set()

        writer = threading.Thread(target=write)
        with opened.reading() as connection:
            for _ in range(2):
                seen += [row[0] for row in connection.execute("SELECT value FROM meta WHERE key = 'applied_seq'")]
                if not writer.is_alive():
                    writer.start()
                done.wait(0.1)
        writer.join()
    assert seen == [0, 0]
    assert opened.applied_seq() == 1


def test_threads_read_concurrently(opened: Index) -> None:
    failures: list[BaseException] = []

    def read() -> None:
        try:
            for _ in range(50):
                assert opened.applied_seq() >= 0
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for number in range(20):
        with opened.transaction() as connection:
            set_seq(connection, number)
    for thread in threads:
        thread.join()
    assert failures == []


def test_connections_of_threads_that_ended_are_closed(opened: Index) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def read() -> None:
        opened.applied_seq()

    for _ in range(3):
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    before = descriptors()
    for _ in range(30):
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    assert descriptors() <= before + 3


def test_missing_index_is_reported_and_not_created(index_directories: Directories) -> None:
    os.unlink(f"{index_directories.root}/index.sqlite")
    with pytest.raises(IndexMissing):
        Index(index_directories)
    assert os.listdir(index_directories.root) == ["store-id.txt"]


def test_file_that_is_not_a_database_is_unreadable(index_directories: Directories) -> None:
    Path(index_directories.root, "index.sqlite").write_bytes(b"x" * 8192)
    with pytest.raises(IndexUnreadable):
        Index(index_directories)


def test_index_can_be_opened_in_a_directory_with_special_characters(tmp_path: Path) -> None:
    root = tmp_path / "a?b#c%20d é"
    root.mkdir()
    index.create(str(root / "index.sqlite"), STORE).close()
    assert os.listdir(root) == ["index.sqlite"]
    with closing(Directories(str(root))) as directories, closing(Index(directories, STORE)) as opened:
        assert opened.applied_seq() == 0


def test_read_gate_can_be_entered_again_by_its_holder() -> None:
    gate = ReadGate(lambda: True)
    with gate.enter():
        time.sleep(0.01)  # longer than readers may overlap
        with gate.enter():
            pass
