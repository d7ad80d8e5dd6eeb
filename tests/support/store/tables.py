"""The index as plain rows, to be compared."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

from adapter.store import layout, snapshots

Tables = dict[str, list[tuple[object, ...]]]


def tables(path: str | os.PathLike[str]) -> Tables:
    """Every table that is not a cache, sorted."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as index:
        return {
            table: sorted(index.execute(f"SELECT * FROM {table}").fetchall(), key=repr)
            for table in (*snapshots.TABLES, "meta")
        }


def connect(root: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{layout.absolute(root, layout.INDEX_FILE)}?mode=rw", uri=True, timeout=5)
