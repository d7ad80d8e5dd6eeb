"""The text index as searches and the filler use it, from any thread.

It knows some of the messages, and of those everything: a search that it answers needs no text. It never fails a
search: if it cannot be read, it knows nothing; if it is damaged, it is dropped and filled again.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import orjson

from adapter.search.searchable_text import SearchText
from adapter.store.queries import text_index

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

#: Characters of a message beyond which it is not indexed but read for every search.
LONGEST = 512 << 10
# Trigrams of a needle that are looked up: more would not narrow the choice.
_TRIGRAMS = 24
_ACCOUNT_SHIFT = 32
# Accounts among whose rows a needle is looked for one by one.
_RANGES = 16

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


class NewText(NamedTuple):
    """A message to be indexed."""

    message_id: str
    registration: str
    text: SearchText


class TextIndex:
    def __init__(self, root: str) -> None:
        self._root = root
        self._local = threading.local()
        self._mutex = threading.Lock()
        self._connections: list[sqlite3.Connection] = []
        self._epoch = 0  # grows when the index is dropped: connections of before are of no use

    def close(self) -> None:
        with self._mutex:
            for connection in self._connections:
                connection.close()
            self._connections.clear()

    def shrink(self) -> None:
        """Let go of the memory that this thread's connection holds, if it has one."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.execute("PRAGMA shrink_memory")

    # --- searching -------------------------------------------------------------------------------------------------

    def generation(self) -> str:
        """Another value means that rows have other numbers now."""
        return self._ask(lambda c: str(c.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone()[0]), "")

    def rows(self, message_ids: Sequence[str]) -> dict[str, int]:
        """Those of the messages that are known."""
        asked = _json(message_ids)
        return self._ask(lambda c: dict(c.execute(_ROWS, (asked,)).fetchall()), {})

    def too_long(self, ranges: Sequence[tuple[int, int]]) -> set[int]:
        """The rows within the ranges that are not indexed: their messages have to be read."""
        return self._ask(lambda c: {row for ends in ranges for (row,) in c.execute(_TOO_LONG, ends).fetchall()}, set())

    def find(self, needle: str, ranges: Sequence[tuple[int, int]], *, header: bool, body: bool) -> set[int] | None:
        """The rows within the ranges whose header or body has a folded needle; None if the index cannot tell."""
        if len(needle) < 3 or "\0" in needle:
            return None
        parts = [name for name, wanted in (("header", header), ("body", body)) if wanted]

        def ask(connection: sqlite3.Connection) -> set[int] | None:
            found: set[int] = set()
            for part in parts:
                for first, last in ranges:
                    found.update(row for (row,) in _find(connection, part, needle, first, last))
            return found

        return self._ask(ask, None)

    def texts(self, message_ids: Sequence[str]) -> dict[str, SearchText]:
        """The texts of those that are indexed."""
        asked = _json(message_ids)
        rows: list[Any] = self._ask(lambda c: c.execute(_TEXTS, (asked,)).fetchall(), [])
        return {message_id: SearchText(header, body, refs) for message_id, header, body, refs in rows}

    def references(self, message_ids: Sequence[str]) -> dict[str, str]:
        asked = _json(message_ids)
        return dict(self._ask(lambda c: c.execute(_REFERENCES, (asked,)).fetchall(), []))

    # --- filling ---------------------------------------------------------------------------------------------------

    def add(self, message_ids: Sequence[str], make: Callable[[list[str]], Iterable[NewText]]) -> int:
        """Index those of the messages that are not known, with the texts that ``make`` gives; returns how many came.

        Other processes wait meanwhile and then find them known, so no text is made twice.
        """

        def write(connection: sqlite3.Connection) -> int:
            connection.execute("BEGIN IMMEDIATE")
            try:
                known = dict(connection.execute(_ROWS, (_json(message_ids),)).fetchall())
                unknown = [message_id for message_id in message_ids if message_id not in known]
                made = list(make(unknown)) if unknown else []
                _insert(connection, made)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            return len(made)

        return self._ask(write, 0)

    def remove(self, message_ids: Sequence[str]) -> None:
        """These messages are no more."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            try:
                _delete(connection, _json(message_ids))
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

        self._ask(write, None)

    # --- the database ----------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[sqlite3.Connection], Result], unknown: Result) -> Result:
        """The answer, or ``unknown`` if there is none to be had."""
        epoch = self._epoch
        try:
            return question(self._connection())
        except sqlite3.OperationalError as error:
            _log.warning("the text index cannot be used: %s", error)
        except sqlite3.DatabaseError as error:
            self._dropped(epoch, error)
        except UnicodeEncodeError:
            pass  # a needle that is no text
        return unknown

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None or self._local.epoch != self._epoch:
            with self._mutex:
                connection = text_index.connect(self._root)
                self._connections.append(connection)
                self._local.connection, self._local.epoch = connection, self._epoch
        return connection

    def _dropped(self, epoch: int, error: sqlite3.DatabaseError) -> None:
        with self._mutex:
            if epoch == self._epoch:
                _log.error("the text index can not be read and will be made anew: %s", error)
                text_index.drop(self._root)
                self._epoch += 1


def _json(values: Sequence[str]) -> str:
    return orjson.dumps(list(values)).decode()


def _find(connection: sqlite3.Connection, part: str, needle: str, first: int, last: int) -> list[Any]:
    table = "headers" if part == "header" else "bodies"
    candidates = _CANDIDATES.format(table=table)
    trigrams = list(dict.fromkeys(needle[at : at + 3] for at in range(len(needle) - 2)))
    if len(trigrams) > _TRIGRAMS:
        trigrams = trigrams[:: len(trigrams) // _TRIGRAMS + 1]
    match = " AND ".join('"' + trigram.replace('"', '""') + '"' for trigram in trigrams)
    if len(needle) == 3:
        return connection.execute(candidates, (match, first, last)).fetchall()
    sql = _FIND.format(candidates=candidates, column=part)
    return connection.execute(sql, (match, first, last, needle)).fetchall()


def _insert(connection: sqlite3.Connection, made: Sequence[NewText]) -> None:
    next_rows: dict[str, int] = {}
    rows = []
    for message_id, registration, text in made:
        if registration not in next_rows:
            next_rows[registration] = _next_row(connection, registration)
        row = next_rows[registration]
        next_rows[registration] += 1
        indexed = text.is_whole and len(text.header) + len(text.body) <= LONGEST
        header, body = (text.header, text.body) if indexed else ("", "")
        rows.append((row, message_id, indexed, text.references, header, body))
    connection.executemany("INSERT INTO texts VALUES (?, ?, ?, ?, ?, ?)", rows)
    connection.executemany("INSERT INTO headers (rowid, header) VALUES (?, ?)", [(row[0], row[4]) for row in rows])
    connection.executemany("INSERT INTO bodies (rowid, body) VALUES (?, ?)", [(row[0], row[5]) for row in rows])


def _next_row(connection: sqlite3.Connection, registration: str) -> int:
    connection.execute("INSERT OR IGNORE INTO accounts (registration_id) VALUES (?)", (registration,))
    number = connection.execute("SELECT number FROM accounts WHERE registration_id = ?", (registration,)).fetchone()[0]
    first, beyond = number << _ACCOUNT_SHIFT, (number + 1) << _ACCOUNT_SHIFT
    last = connection.execute("SELECT max(row) FROM texts WHERE row >= ? AND row < ?", (first, beyond)).fetchone()[0]
    return first + 1 if last is None else int(last) + 1


def _delete(connection: sqlite3.Connection, message_ids: str) -> None:
    going = connection.execute(
        "SELECT row, header, body FROM texts WHERE message_id IN (SELECT value FROM json_each(?))", (message_ids,)
    ).fetchall()
    forget = "INSERT INTO {0} ({0}, rowid, {1}) VALUES ('delete', ?, ?)"
    connection.executemany(forget.format("headers", "header"), [(row, header) for row, header, _ in going])
    connection.executemany(forget.format("bodies", "body"), [(row, body) for row, _, body in going])
    connection.executemany("DELETE FROM texts WHERE row = ?", [(row,) for row, _, _ in going])


def ranges_of(rows: Collection[int]) -> list[tuple[int, int]]:
    """From the first to the last of the rows of each account among these."""
    if not rows:
        return []
    first, last = min(rows), max(rows)
    if first >> _ACCOUNT_SHIFT == last >> _ACCOUNT_SHIFT:
        return [(first, last)]  # nearly always
    ends: dict[int, tuple[int, int]] = {}
    for row in rows:
        account = row >> _ACCOUNT_SHIFT
        first, last = ends.get(account, (row, row))
        ends[account] = min(first, row), max(last, row)
    if len(ends) > _RANGES:
        return [(min(first for first, _ in ends.values()), max(last for _, last in ends.values()))]
    return sorted(ends.values())
