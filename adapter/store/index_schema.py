"""Comparison of an index file's schema with ours: tables, columns, indexes, triggers and views.

A missing index makes queries slow, a missing unique index lets two accounts have one address, and a trigger would run
in every process that opens the store. So the whole of ``sqlite_schema`` is compared, and the types in ``meta``.
"""

from __future__ import annotations

import functools
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing

#: What SQLite makes by itself: indexes of PRIMARY KEY and UNIQUE, and the statistics of ANALYZE.
_OF_SQLITE = re.compile(r"sqlite_(?:autoindex_.*|stat[0-9])\Z", re.DOTALL)
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_SPACE = re.compile(r"\s+")
#: Keys of ``meta`` that every index has; each has an integer.
NUMBERS = ("schema_version", "applied_seq", "last_uidvalidity")

#: (type, name) -> table and definition without comments
_Objects = dict[tuple[str, str], tuple[str, str]]


def differences(connection: sqlite3.Connection, schema: str, numbers: tuple[str, ...] = NUMBERS) -> list[str]:
    """What of a database is not as ``schema`` makes it; empty if nothing is. ``numbers``: keys of its ``meta``."""
    expected, found = _expected(schema), _objects(connection)
    if found == expected:
        return [*_wrong_numbers(connection, numbers)]
    tables = {name for kind, name in found if kind == "table"}
    missing = [key for key in expected.keys() - found.keys() if key[0] == "table" or expected[key][0] in tables]
    return [
        *(f"{kind} {name} is missing" for kind, name in sorted(missing, reverse=True)),  # tables before their indexes
        *(f"{kind} {name} is not ours" for kind, name in sorted(found.keys() - expected.keys(), reverse=True)),
        *(f"{kind} {name} is another" for kind, name in sorted(expected.keys() & found.keys(), reverse=True)
          if expected[kind, name] != found[kind, name]),
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
    known = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    for key in numbers:
        if not isinstance(known.get(key), int):
            yield f"{key} is {'no number' if key in known else 'missing'}"
