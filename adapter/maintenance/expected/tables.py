"""SQLite files of maintenance: private copies of the index and the tables that journal and snapshots lead to.

Nothing here opens the index in place for writing: what is looked at is a copy in the run's scratch directory.
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

NOTES = "notes.sqlite"  # what a replay notes besides the tables
COPY_PAGES = 4096  # of the index, copied before writers are let in
_RESTARTS = 3
_LONGEST_DETAIL = 200  # characters
_LONGEST_TROUBLE = 300  # characters


class _TooBusy(Exception):  # noqa: N818 - ends a copy that does not come to an end
    pass


def connect(path: str, *, write: bool = False) -> sqlite3.Connection:
    return index.connect(path, "rw" if write else "ro")


def create(path: str) -> sqlite3.Connection:
    """An empty database, for what a run has to remember."""
    return index.connect(path, "rwc")


def private(connection: sqlite3.Connection, *, undo: bool = True) -> sqlite3.Connection:
    """Settings for a file that nobody else knows of yet: pages may reach it at any time, so memory stays flat.

    It is made durable as a whole before it gets the name of the index. Without ``undo`` no transaction can be rolled
    back: a failure makes the file worthless.
    """
    connection.execute(f"PRAGMA journal_mode={'MEMORY' if undo else 'OFF'}")
    connection.execute("PRAGMA cache_spill=ON")
    connection.execute("PRAGMA temp_store=FILE")
    return connection


def copy_index(root: str, target: str) -> str:
    """A consistent copy of the index at ``target``; returns what is wrong with it, empty if nothing is."""
    source = layout.absolute(root, layout.INDEX_FILE)
    if not os.path.lexists(source):
        return "missing"
    if not is_file(source):  # SQLite would wait for somebody who writes to a pipe
        return "is not a file"
    try:
        with contextlib.closing(connect(source)) as live, contextlib.closing(private(create(target))) as copy:
            live.execute("PRAGMA busy_timeout=30000")
            _copy(live, copy)
    except sqlite3.Error as error:
        if not os.path.exists(f"{source}-journal"):
            return f"{error}"
        # A writer died half-way and nobody has opened the store since: only the copy may be put right.
        workspace.remove_files(os.path.dirname(target), [os.path.basename(target)])
        for suffix in ("-journal", ""):
            workspace.copy_file(f"{source}{suffix}", f"{target}{suffix}")
    return examine(target)


def is_file(path: str) -> bool:
    return stat.S_ISREG(os.stat(path, follow_symlinks=False).st_mode)


def _copy(live: sqlite3.Connection, copy: sqlite3.Connection) -> None:
    """In steps that let writers in between; if they keep it from coming to an end, they have to wait for it once."""
    least, restarts = sys.maxsize, 0

    def progress(_: int, remaining: int, __: int) -> None:
        nonlocal least, restarts
        restarts += remaining > least
        least = remaining
        if restarts > _RESTARTS:
            raise _TooBusy

    try:
        live.backup(copy, pages=COPY_PAGES, progress=progress)
    except _TooBusy:
        live.backup(copy)


def examine(path: str) -> str:
    """What SQLite itself finds wrong with a file."""
    try:
        with contextlib.closing(connect(path, write=True)) as connection:
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                return str(found)[:200]
            index.complete(connection)
            wrong = index.schema_differences(connection)
    except sqlite3.Error as error:
        return str(error)
    return f"{index.FOREIGN_SCHEMA}{'; '.join(wrong)}"[:_LONGEST_TROUBLE] if wrong else ""


def has_foreign_schema(trouble: str) -> bool:
    """Whether it is only the schema that is wrong with an index: SQLite can read every page of it."""
    return trouble.startswith(index.FOREIGN_SCHEMA)


def meta(path: str) -> dict[str, object]:
    """The rows of ``meta``; nothing if they cannot be read."""
    try:
        with contextlib.closing(connect(path)) as connection:
            return dict(connection.execute("SELECT key, value FROM meta").fetchall())
    except sqlite3.Error:
        return {}


def differing_meta(base: str, copy: str) -> dict[str, str]:
    """Keys of two tables ``meta`` that are not the same, and what they are."""
    expected, found = meta(base), meta(copy)
    return {
        str(key): f"is {found.get(key)!r}, not {expected.get(key)!r}"[:_LONGEST_DETAIL]
        for key in sorted(expected.keys() | found.keys(), key=str)
        if expected.get(key) != found.get(key)
    }


def applied(path: str) -> tuple[int, str]:
    """Number and checksum of the record that an index applied last; 0 if it cannot be read."""
    try:
        with contextlib.closing(connect(path)) as connection:
            return index.applied(connection)
    except (sqlite3.Error, KeyError, TypeError, ValueError):
        return 0, ""


def store_of(path: str) -> str:
    """The id of the store that an index belongs to; empty if it cannot be read."""
    try:
        with contextlib.closing(connect(path)) as connection:
            return index.store_of(connection)
    except (sqlite3.Error, UnicodeDecodeError):
        return ""


def keys(connection: sqlite3.Connection, table: str) -> list[str]:
    """The names of a table's primary key, in order."""
    found = connection.execute(f"PRAGMA table_info({table})").fetchall()
    return [row[1] for row in sorted((row for row in found if row[5]), key=lambda row: int(row[5]))]


def ranges(
    connection: sqlite3.Connection, table: str, key: list[str], size: int
) -> Iterator[tuple[list[object] | None, list[object] | None, int]]:
    """Borders ``low < key <= high`` (None: open), and how many rows lie between them: ``size`` at most."""
    names = ", ".join(key)
    low: list[object] | None = None
    while True:
        where, values = within(table, key, low, None)
        found = connection.execute(
            f"SELECT {names} FROM {table} WHERE {where} ORDER BY {names} LIMIT 1 OFFSET ?",  # noqa: S608 - our schema
            (*values, size - 1),
        ).fetchone()
        if found is None:
            count = connection.execute(f"SELECT count(*) FROM {table} WHERE {where}", values).fetchone()[0]  # noqa: S608
            yield low, None, count
            return
        yield low, list(found), size
        low = list(found)


def within(alias: str, key: list[str], low: list[object] | None, high: list[object] | None) -> tuple[str, list[object]]:
    """A condition for one of :func:`ranges`, and its parameters."""
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
