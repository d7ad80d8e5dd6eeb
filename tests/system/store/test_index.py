"""The index between processes: readers beside a writer, and what a dead writer leaves."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import closing
from multiprocessing.queues import Queue
from typing import Any

from adapter.store.disk import Directories
from adapter.store.index import Index
from tests.support.processes import channel, running
from tests.support.store.tables import set_seq


def test_what_a_dead_writer_left_is_rolled_back_by_a_reader(opened: Index, index_directories: Directories) -> None:
    child = os.fork()
    if child == 0:
        connection = sqlite3.connect(f"{index_directories.root}/index.sqlite", isolation_level=None)
        connection.execute("PRAGMA cache_size=1")
        connection.execute("BEGIN IMMEDIATE")
        for number in range(2000):  # more than its cache holds: some of it reaches the file
            connection.execute("INSERT INTO meta VALUES (?, ?)", (f"key {number}", "x" * 500))
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert "index.sqlite-journal" in os.listdir(index_directories.root)
    assert opened.query("SELECT count(*) FROM meta") == [(5,)]
    assert opened.query("PRAGMA integrity_check") == [("ok",)]


def _read_without_end(root: str, reading: Queue[Any], last: int) -> None:
    """Threads of which one would always be inside, until the last thing is written."""
    with closing(Directories(root)) as directories, closing(Index(directories)) as own:

        def read() -> None:
            seq = 0
            while seq < last:
                with own.reading() as connection:
                    (seq,) = connection.execute("SELECT value FROM meta WHERE key = 'applied_seq'").fetchone()
                    time.sleep(0.05)

        threads = [threading.Thread(target=read) for _ in range(5)]
        for thread in threads:
            thread.start()
            time.sleep(0.01)
        reading.put(True)
        for thread in threads:
            thread.join()


def test_readers_without_end_do_not_keep_a_writer_of_another_process_out(
    opened: Index, index_directories: Directories
) -> None:
    reading = channel()
    with running(_read_without_end, index_directories.root, reading, 3):
        reading.get(timeout=60)
        for seq in (1, 2, 3):
            with opened.transaction() as connection:
                set_seq(connection, seq)
