"""Queries of the text index (:mod:`adapter.store.queries.text_index`): its rows, and the search for a needle.

Each function takes a connection to the text index. The functions that write run inside :func:`writing`.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import orjson

#: A row's number is the account's number, shifted, and a counter: the rows of an account are adjacent.
ACCOUNT_SHIFT = 32
# Trigrams of a needle that are looked up: more would not narrow the choice.
_MAX_TRIGRAMS = 24

# Both are answered by an index alone: a row of the table has a whole text in it.
_ROWS = "SELECT message_id, row FROM texts WHERE message_id IN (SELECT value FROM json_each(?))"
_TOO_LONG = "SELECT row FROM texts WHERE indexed = 0 AND row BETWEEN ? AND ?"
_TEXTS = """
SELECT message_id, header, body, refs FROM texts
WHERE message_id IN (SELECT value FROM json_each(?)) AND indexed
"""
_REFERENCES = "SELECT message_id, refs FROM texts WHERE message_id IN (SELECT value FROM json_each(?))"
_CANDIDATES = "SELECT rowid FROM {table} WHERE {table} MATCH ? AND rowid BETWEEN ? AND ?"
_FIND = "SELECT row FROM texts WHERE row IN ({candidates}) AND instr({column}, ?)"


class IndexedText(NamedTuple):
    """A message for the index. Of one that is too long ``header`` and ``body`` are empty and ``indexed`` is false."""

    message_id: str
    registration: str
    indexed: bool
    references: str
    header: str
    body: str


def _json(values: Iterable[str]) -> str:
    return orjson.dumps(list(values)).decode()


@contextlib.contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[None]:
    """One transaction; other processes that want to write wait."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def shrink_memory(connection: sqlite3.Connection) -> None:
    """Free the memory that a connection does not need now."""
    connection.execute("PRAGMA shrink_memory")


def generation(connection: sqlite3.Connection) -> str:
    """Changes when the rows are numbered again."""
    return str(connection.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone()[0])


def rows(connection: sqlite3.Connection, message_ids: Iterable[str]) -> dict[str, int]:
    """The rows of those messages that are indexed."""
    return dict(connection.execute(_ROWS, (_json(message_ids),)).fetchall())


def too_long(connection: sqlite3.Connection, ranges: Sequence[tuple[int, int]]) -> set[int]:
    """The rows within the ranges without indexed text: their messages have to be read."""
    return {row for ends in ranges for (row,) in connection.execute(_TOO_LONG, ends).fetchall()}


def texts(connection: sqlite3.Connection, message_ids: Iterable[str]) -> list[tuple[str, str, str, str]]:
    """Message id, header, body and References of those messages that are indexed."""
    return connection.execute(_TEXTS, (_json(message_ids),)).fetchall()


def references(connection: sqlite3.Connection, message_ids: Iterable[str]) -> dict[str, str]:
    return dict(connection.execute(_REFERENCES, (_json(message_ids),)).fetchall())


def find(connection: sqlite3.Connection, part: str, needle: str, first: int, last: int) -> list[int]:
    """The rows of a range with a folded needle (three characters or more) in ``part``, header or body."""
    candidates = _CANDIDATES.format(table="headers" if part == "header" else "bodies")
    trigrams = list(dict.fromkeys(needle[at : at + 3] for at in range(len(needle) - 2)))
    if len(trigrams) > _MAX_TRIGRAMS:
        trigrams = trigrams[:: len(trigrams) // _MAX_TRIGRAMS + 1]
    match = " AND ".join('"' + trigram.replace('"', '""') + '"' for trigram in trigrams)
    if len(needle) == 3:
        rows = connection.execute(candidates, (match, first, last)).fetchall()
    else:
        sql = _FIND.format(candidates=candidates, column=part)
        rows = connection.execute(sql, (match, first, last, needle)).fetchall()
    return [row for (row,) in rows]


def insert(connection: sqlite3.Connection, messages: Iterable[IndexedText]) -> None:
    next_rows: dict[str, int] = {}
    numbered = []
    for message in messages:
        row = next_rows.get(message.registration) or _next_row(connection, message.registration)
        next_rows[message.registration] = row + 1
        numbered.append((row, message))
    connection.executemany(
        "INSERT INTO texts VALUES (?, ?, ?, ?, ?, ?)",
        [(row, each.message_id, each.indexed, each.references, each.header, each.body) for row, each in numbered],
    )
    connection.executemany(
        "INSERT INTO headers (rowid, header) VALUES (?, ?)", [(row, each.header) for row, each in numbered]
    )
    connection.executemany(
        "INSERT INTO bodies (rowid, body) VALUES (?, ?)", [(row, each.body) for row, each in numbered]
    )


def _next_row(connection: sqlite3.Connection, registration: str) -> int:
    connection.execute("INSERT OR IGNORE INTO accounts (registration_id) VALUES (?)", (registration,))
    number = connection.execute("SELECT number FROM accounts WHERE registration_id = ?", (registration,)).fetchone()[0]
    first, beyond = number << ACCOUNT_SHIFT, (number + 1) << ACCOUNT_SHIFT
    last = connection.execute("SELECT max(row) FROM texts WHERE row >= ? AND row < ?", (first, beyond)).fetchone()[0]
    return first + 1 if last is None else int(last) + 1


def delete(connection: sqlite3.Connection, message_ids: Iterable[str]) -> None:
    deleted = connection.execute(
        "SELECT row, header, body FROM texts WHERE message_id IN (SELECT value FROM json_each(?))",
        (_json(message_ids),),
    ).fetchall()
    # FTS5 without content of its own needs the deleted values.
    forget = "INSERT INTO {0} ({0}, rowid, {1}) VALUES ('delete', ?, ?)"
    connection.executemany(forget.format("headers", "header"), [(row, header) for row, header, _ in deleted])
    connection.executemany(forget.format("bodies", "body"), [(row, body) for row, _, body in deleted])
    connection.executemany("DELETE FROM texts WHERE row = ?", [(row,) for row, _, _ in deleted])
