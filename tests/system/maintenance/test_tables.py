"""Copies of the index during concurrent writes, and after a writer crashed."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from adapter.maintenance.expected import tables
from adapter.store import layout
from tests.support import processes
from tests.support.store.tables import tables as rows_of
from tests.support.waiting import wait_until
from tests.system.maintenance.lab import lab, lab_stores


@pytest.fixture
def root(tmp_path: Path) -> Path:
    where = tmp_path / "store"
    lab_stores.build(where)
    return where


def _crash_during_a_transaction(path: str) -> None:
    """Leave pages of an unfinished transaction in the file, with a hot rollback journal."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE mailbox_state SET keywords = hex(randomblob(2000))")
    connection.execute("DELETE FROM messages")
    os.kill(os.getpid(), signal.SIGKILL)


def test_crashed_transaction_is_rolled_back_only_in_the_copy(root: Path, tmp_path: Path) -> None:
    index = lab.path(root, layout.INDEX_FILE)
    before = rows_of(index)
    with processes.running(_crash_during_a_transaction, str(index), ends_with=-signal.SIGKILL):
        pass
    left = index.read_bytes()
    assert index.with_name("index.sqlite-journal").stat().st_size
    target = tmp_path / "copy.sqlite"
    assert tables.copy_index(str(root), str(target)) == ""
    assert rows_of(target) == before
    assert index.read_bytes() == left


def test_busy_writers_do_not_starve_the_copy(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "COPY_PAGES", 1)
    stop = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        with closing(
            sqlite3.connect(lab.path(root, layout.INDEX_FILE), isolation_level=None, timeout=30)
        ) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            while not stop.is_set():
                connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'last_uidvalidity'")
                written += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_until(lambda: written > 0)
        assert tables.copy_index(str(root), str(tmp_path / "copy.sqlite")) == ""
    finally:
        stop.set()
        writer.join()
