"""A new index, and indexes as plain rows, to be compared."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from adapter.store import index, layout, snapshots, store_id
from adapter.store.disk import Directories
from adapter.store.index import Index
from tests.support.stores import STORE

Tables = dict[str, list[tuple[object, ...]]]


def tables(path: str | os.PathLike[str]) -> Tables:
    """Every table that is not a cache, sorted."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as connection:
        return {
            table: sorted(connection.execute(f"SELECT * FROM {table}").fetchall(), key=repr)
            for table in (*snapshots.TABLES, "meta")
        }


def connect(root: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{layout.absolute(root, layout.INDEX_FILE)}?mode=rw", uri=True, timeout=5)


@pytest.fixture
def index_directories(tmp_path: Path) -> Iterator[Directories]:
    """A store that consists of an empty index and the store id."""
    index.create(str(tmp_path / "index.sqlite"), STORE).close()
    with closing(Directories(str(tmp_path))) as opened:
        store_id.write(opened, STORE)
        yield opened


@pytest.fixture
def opened(index_directories: Directories) -> Iterator[Index]:
    """The index of such a store."""
    with closing(Index(index_directories)) as store_index:
        yield store_index


def set_seq(connection: sqlite3.Connection, seq: int) -> None:
    connection.execute("UPDATE meta SET value = ? WHERE key = 'applied_seq'", (seq,))
