"""The disk's own limit: what storing a message durably costs with the same bytes and no mail server at all."""

from __future__ import annotations

import os
import sqlite3
import time


def messages_per_second(directory: str, size: int, count: int) -> float:
    """Create a file, sync it and its directory, and commit one row in SQLite (DELETE, FULL) for each message."""
    place = f"{directory}/floor"
    os.makedirs(place, exist_ok=True)
    index = sqlite3.connect(f"{directory}/floor.sqlite", isolation_level=None)
    index.execute("PRAGMA journal_mode=DELETE")
    index.execute("PRAGMA synchronous=FULL")
    index.execute("CREATE TABLE IF NOT EXISTS messages (name TEXT PRIMARY KEY, size INTEGER)")
    data = os.urandom(size // 2).hex().encode()
    folder = os.open(place, os.O_RDONLY)
    started = time.perf_counter()
    for number in range(count):
        name = f"{number:08d}-{os.urandom(4).hex()}"
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444, dir_fd=folder)
        os.write(file, data)
        os.fsync(file)
        os.close(file)
        os.fsync(folder)
        index.execute("BEGIN")
        index.execute("INSERT INTO messages VALUES (?, ?)", (name, size))
        index.execute("COMMIT")
    elapsed = time.perf_counter() - started
    os.close(folder)
    index.close()
    return count / elapsed
