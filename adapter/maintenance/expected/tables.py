"""SQLite files of maintenance: private copies of the index, and the expected tables.

Nothing here opens the index itself for writing: a run works on a copy in its scratch directory.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import sys
from collections.abc import Iterator

from adapter.maintenance import workspace
from adapter.store import index, layout

NOTES = "notes.sqlite"  # rows that a replay sets aside, and removed folders
COPY_PAGES = 4096  # pages of the index copied before waiting writers proceed
_MAX_RESTARTS = 3
_MAX_DETAIL_CHARACTERS = 200
_MAX_PROBLEM_CHARACTERS = 300


class _TooBusy(Exception):  # noqa: N818 - a state
    """Writers restart the copy again and again."""


def connect(path: str, *, write: bool = False) -> sqlite3.Connection:
    return index.connect(path, "rw" if write else "ro")


def create(path: str) -> sqlite3.Connection:
    """Create an empty database in the scratch directory."""
    return index.connect(path, "rwc")


def private(connection: sqlite3.Connection, *, can_roll_back: bool = True) -> sqlite3.Connection:
    """Configure a connection to a private file: pages may be written at any time, so memory use stays constant.

    The file is made durable as a whole before it becomes the index. Without ``can_roll_back`` a failed transaction
    leaves the file unusable.
    """
    connection.execute(f"PRAGMA journal_mode={'MEMORY' if can_roll_back else 'OFF'}")
    connection.execute("PRAGMA cache_spill=ON")
    connection.execute("PRAGMA temp_store=FILE")
    return connection


def copy_index(root: str, target: str) -> str:
    """Make a consistent copy of the index at ``target`` and examine it; return its problem, or ""."""
    source = layout.absolute(root, layout.INDEX_FILE)
    if not os.path.lexists(source):
        return "missing"
    if not is_file(source):  # SQLite would block on a pipe
        return "is not a regular file"
    try:
        with contextlib.closing(connect(source)) as live, contextlib.closing(private(create(target))) as copy:
            live.execute("PRAGMA busy_timeout=30000")
            _copy(live, copy)
    except sqlite3.Error as error:
        if not os.path.exists(f"{source}-journal"):
            return f"{error}"
        # A writer crashed and left a hot rollback journal: roll back in the copy, and leave the index alone.
        workspace.remove_files(os.path.dirname(target), [os.path.basename(target)])
        for suffix in ("-journal", ""):
            workspace.copy_file(f"{source}{suffix}", f"{target}{suffix}")
    return examine(target)


def is_file(path: str) -> bool:
    return stat.S_ISREG(os.stat(path, follow_symlinks=False).st_mode)


def _copy(live: sqlite3.Connection, copy: sqlite3.Connection) -> None:
    """Copy in steps that let writers proceed; if writers restart the copy too often, copy at once and block them."""
    least, restarts = sys.maxsize, 0

    def progress(_: int, remaining: int, __: int) -> None:
        nonlocal least, restarts
        restarts += remaining > least
        least = remaining
        if restarts > _MAX_RESTARTS:
            raise _TooBusy

    try:
        live.backup(copy, pages=COPY_PAGES, progress=progress)
    except _TooBusy:
        live.backup(copy)


def examine(path: str) -> str:
    """The first problem that SQLite's integrity check or a comparison of the schema reports, or ""."""
    try:
        with contextlib.closing(connect(path, write=True)) as connection:
            (integrity,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if integrity != "ok":
                return str(integrity)[:200]
            index.complete(connection)
            wrong = index.schema_differences(connection)
    except sqlite3.Error as error:
        return str(error)
    return f"{index.FOREIGN_SCHEMA}{'; '.join(wrong)}"[:_MAX_PROBLEM_CHARACTERS] if wrong else ""


def has_foreign_schema(problem: str) -> bool:
    """True if only the schema of an index is wrong: SQLite can read all of its pages."""
    return problem.startswith(index.FOREIGN_SCHEMA)


def meta(path: str) -> dict[str, object]:
    """The rows of ``meta``; empty if they cannot be read."""
    try:
        with contextlib.closing(connect(path)) as connection:
            return dict(connection.execute("SELECT key, value FROM meta").fetchall())
    except sqlite3.Error:
        return {}


def differing_meta(base: str, copy: str) -> dict[str, str]:
    """The differing keys of two ``meta`` tables, with their actual and expected values."""
    expected, actual = meta(base), meta(copy)
    return {
        str(key): f"is {actual.get(key)!r}, expected {expected.get(key)!r}"[:_MAX_DETAIL_CHARACTERS]
        for key in sorted(expected.keys() | actual.keys(), key=str)
        if expected.get(key) != actual.get(key)
    }


def applied(path: str) -> tuple[int, str]:
    """Number and checksum of the last record applied to an index; (0, "") if it cannot be read."""
    try:
        with contextlib.closing(connect(path)) as connection:
            return index.applied(connection)
    except (sqlite3.Error, KeyError, TypeError, ValueError):
        return 0, ""


def store_of(path: str) -> str:
    """The id of the store that an index belongs to; "" if it cannot be read."""
    try:
        with contextlib.closing(connect(path)) as connection:
            return index.store_of(connection)
    except (sqlite3.Error, UnicodeDecodeError):
        return ""


def keys(connection: sqlite3.Connection, table: str) -> list[str]:
    """The columns of a table's primary key, in order."""
    columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
    return [row[1] for row in sorted((row for row in columns if row[5]), key=lambda row: int(row[5]))]


def ranges(
    connection: sqlite3.Connection, table: str, key: list[str], size: int
) -> Iterator[tuple[list[object] | None, list[object] | None, int]]:
    """Divide a table into ranges ``low < key <= high`` (None: open) of at most ``size`` rows, with the row counts."""
    names = ", ".join(key)
    low: list[object] | None = None
    while True:
        where, values = within(table, key, low, None)
        border = connection.execute(
            f"SELECT {names} FROM {table} WHERE {where} ORDER BY {names} LIMIT 1 OFFSET ?",  # noqa: S608 - our schema
            (*values, size - 1),
        ).fetchone()
        if border is None:
            count = connection.execute(f"SELECT count(*) FROM {table} WHERE {where}", values).fetchone()[0]  # noqa: S608
            yield low, None, count
            return
        yield low, list(border), size
        low = list(border)


def within(alias: str, key: list[str], low: list[object] | None, high: list[object] | None) -> tuple[str, list[object]]:
    """The SQL condition for one of the :func:`ranges`, and its parameters."""
    columns = ", ".join(f"{alias}.{name}" for name in key)
    places = ", ".join("?" * len(key))
    conditions, values = ["1"], []
    if low is not None:
        conditions.append(f"({columns}) > ({places})")
        values += low
    if high is not None:
        conditions.append(f"({columns}) <= ({places})")
        values += high
    return " AND ".join(conditions), values
