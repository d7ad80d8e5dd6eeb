"""The schema of the index: its tables, its ``meta``, whole tables for snapshots, and comparison with other files.

A missing index makes queries slow, a missing unique index lets two accounts have one address, and a trigger would run
in every process that opens the store. So the whole of ``sqlite_schema`` is compared, and the types in ``meta``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.resources
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

from adapter.store.segments import BEGINNING

SCHEMA_VERSION = 1
FOREIGN_SCHEMA = "its schema is not ours: "

#: Objects that SQLite creates itself: indexes of PRIMARY KEY and UNIQUE, and the statistics of ANALYZE.
_OF_SQLITE = re.compile(r"sqlite_(?:autoindex_.*|stat[0-9])\Z", re.DOTALL)
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_LINE_COMMENT = re.compile(r"--.*")  # in our schema, where no string contains one
_SPACE = re.compile(r"\s+")
#: Keys of ``meta`` that every index has; each has an integer.
NUMBERS = ("schema_version", "applied_seq", "last_uidvalidity")

#: (type, name) -> table and definition without comments
_Objects = dict[tuple[str, str], tuple[str, str]]


def differences(connection: sqlite3.Connection, schema: str, numbers: tuple[str, ...] = NUMBERS) -> list[str]:
    """Differences between a database and ``schema``; empty if there are none. ``numbers``: keys of its ``meta``."""
    expected, actual = _expected(schema), _objects(connection)
    if actual == expected:
        return [*_wrong_numbers(connection, numbers)]
    tables = {name for kind, name in actual if kind == "table"}
    missing = [key for key in expected.keys() - actual.keys() if key[0] == "table" or expected[key][0] in tables]
    return [
        *(f"{kind} {name} is missing" for kind, name in sorted(missing, reverse=True)),  # tables before their indexes
        *(f"{kind} {name} is not ours" for kind, name in sorted(actual.keys() - expected.keys(), reverse=True)),
        *(f"{kind} {name} is another" for kind, name in sorted(expected.keys() & actual.keys(), reverse=True)
          if expected[kind, name] != actual[kind, name]),
    ]  # fmt: skip


@functools.cache
def _expected(schema: str) -> _Objects:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(schema)
        return _objects(connection)


def _objects(connection: sqlite3.Connection) -> _Objects:
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchall()
    return {
        (str(kind), str(name)): (str(table), _normalised(sql))
        for kind, name, table, sql in rows
        if not (kind in ("index", "table") and _OF_SQLITE.match(str(name)))
    }


def _normalised(sql: str | None) -> str:
    return _SPACE.sub(" ", _COMMENT.sub(" ", str(sql))).strip()


def _wrong_numbers(connection: sqlite3.Connection, numbers: tuple[str, ...]) -> Iterator[str]:
    meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    for key in numbers:
        if not isinstance(meta.get(key), int):
            yield f"{key} is {'no number' if key in meta else 'missing'}"


# --- the index -------------------------------------------------------------------------------------------------------

_SET_APPLIED = """
UPDATE meta SET value = CASE key WHEN 'applied_seq' THEN ? ELSE ? END WHERE key IN ('applied_seq', 'applied_checksum')
"""


@functools.cache
def _schema() -> str:
    return importlib.resources.files("adapter.store").joinpath("schema.sql").read_text(encoding="utf-8")


def create_tables(connection: sqlite3.Connection, store: str) -> None:
    """Make the tables of an empty index of the store with this id, in the caller's transaction."""
    for statement in _LINE_COMMENT.sub("", _schema()).split(";"):
        if statement.strip():
            connection.execute(statement)
    connection.executemany(
        "INSERT INTO meta VALUES (?, ?)",
        [
            ("schema_version", SCHEMA_VERSION),
            ("store_id", store),
            ("applied_seq", 0),
            ("applied_checksum", BEGINNING),
            ("last_uidvalidity", 0),
        ],
    )


def complete(connection: sqlite3.Connection) -> None:
    """Add the tables and indexes that an index of an older program lacks; leave out those that do not fit it."""
    for statement in _LINE_COMMENT.sub("", _schema()).split(";"):
        if "IF NOT EXISTS" in statement:
            with contextlib.suppress(sqlite3.OperationalError):  # schema_differences() says what is wrong
                connection.execute(statement)


def schema_version(connection: sqlite3.Connection) -> object:
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    return row and row[0]


def schema_differences(connection: sqlite3.Connection) -> list[str]:
    """Differences between an index's schema and ours; empty if there are none."""
    wrong = differences(connection, _schema())
    if not wrong and (version := schema_version(connection)) != SCHEMA_VERSION:
        wrong = [f"schema_version is {version!r}, this program knows {SCHEMA_VERSION}"]
    return wrong


def set_applied(connection: sqlite3.Connection, seq: int, checksum: str) -> None:
    """Note the journal record that the rows hold; part of the transaction that applies it."""
    connection.execute(_SET_APPLIED, (seq, checksum))


def applied(connection: sqlite3.Connection) -> tuple[int, str]:
    """Sequence number and checksum of the record applied last."""
    rows = connection.execute("SELECT key, value FROM meta WHERE key IN ('applied_seq', 'applied_checksum')").fetchall()
    meta = dict(rows)
    return int(meta["applied_seq"]), str(meta["applied_checksum"])


def applied_seq(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT value FROM meta WHERE key = 'applied_seq'").fetchone()[0])


def store_of(connection: sqlite3.Connection) -> str:
    """The id of the store that the index belongs to; empty if it names none."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'store_id'").fetchone()
    return str(row[0]) if row else ""


def set_last_uidvalidity(connection: sqlite3.Connection, uidvalidity: int) -> None:
    connection.execute("UPDATE meta SET value = ? WHERE key = 'last_uidvalidity'", (uidvalidity,))


# --- whole tables, for snapshots -------------------------------------------------------------------------------------


def columns(connection: sqlite3.Connection, table: str) -> list[tuple[str, str]]:
    """Stored columns of a table and their declared types; generated columns are not listed."""
    return [(row[1], row[2]) for row in connection.execute(f"PRAGMA table_info({table})").fetchall()]


def rows(connection: sqlite3.Connection, table: str, names: Iterable[str]) -> sqlite3.Cursor:
    """A cursor over all rows of a private copy of the index."""
    quoted = ", ".join(f'"{name}"' for name in names)
    return connection.execute(f"SELECT {quoted} FROM {table}")  # noqa: S608 - names from our own schema


def insert_rows(
    connection: sqlite3.Connection, table: str, names: Sequence[str], values: Iterable[tuple[object, ...]]
) -> None:
    quoted = ", ".join(f'"{name}"' for name in names)
    places = ", ".join("?" * len(names))
    connection.executemany(f"INSERT INTO {table} ({quoted}) VALUES ({places})", values)  # noqa: S608
