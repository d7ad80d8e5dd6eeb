"""Reading a damaged index: table by table, range by range, leaving out what cannot be read."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

from adapter.maintenance import tables
from adapter.store import snapshots

_BATCH = 500


def take_over(path: str, connection: sqlite3.Connection) -> int:
    """Add every row of the index at ``path`` that can be read and is not there yet; returns how many."""
    taken = 0
    try:
        damaged = tables.connect(path)
    except sqlite3.Error:
        return 0
    damaged.text_factory = lambda raw: raw.decode("utf-8", "replace")
    with contextlib.closing(damaged):
        for table in snapshots.TABLES:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            connection.execute("BEGIN")
            for rows in _batches(damaged, table, columns):
                taken += _insert(connection, table, columns, rows)
            connection.execute("COMMIT")
    return taken


def _insert(connection: sqlite3.Connection, table: str, columns: list[str], rows: list[tuple[Any, ...]]) -> int:
    names = ", ".join(f'"{name}"' for name in columns)
    sql = f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
    before = connection.total_changes
    for row in rows:
        with contextlib.suppress(sqlite3.Error):  # a constraint that a damaged value breaks
            connection.execute(sql, row)
    return connection.total_changes - before


def _batches(damaged: sqlite3.Connection, table: str, columns: list[str]) -> Iterator[list[tuple[Any, ...]]]:
    """Forward until a page does not read, then backward from the end until one does not."""
    names = ", ".join(f'"{name}"' for name in columns)
    key = f'"{columns[0]}"'
    for direction in ("ASC", "DESC"):
        rows: list[tuple[Any, ...]] = []
        try:
            for row in damaged.execute(f"SELECT {names} FROM {table} NOT INDEXED ORDER BY {key} {direction}"):  # noqa: S608
                rows.append(row)
                if len(rows) >= _BATCH:
                    yield rows
                    rows = []
        except sqlite3.Error:
            yield rows
            continue
        yield rows
        return
