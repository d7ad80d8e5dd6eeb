"""The text index for searches and the indexer, usable from any thread.

It has the complete text of the messages it has, and not yet all messages. It never fails a search: an index that
cannot be read answers as if it were empty, and one that is damaged is dropped and filled again.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, TypeVar

from adapter.search.searchable_text import SearchText
from adapter.store.queries import text_index, text_search
from adapter.store.queries.text_search import ACCOUNT_SHIFT, IndexedText

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

#: A message with more characters is not indexed but read for every search.
MAX_INDEXED_CHARACTERS = 512 << 10
# Shorter needles have no trigram.
_MIN_NEEDLE_CHARACTERS = 3
# Beyond so many accounts one range from the first row to the last is searched.
_MAX_RANGES = 16


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
        self._epoch = 0  # incremented when the index is dropped: older connections are useless

    def close(self) -> None:
        with self._mutex:
            for connection in self._connections:
                connection.close()
            self._connections.clear()

    def shrink(self) -> None:
        """Free memory of this thread's connection, if it has one."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            text_search.shrink_memory(connection)

    # --- searching -------------------------------------------------------------------------------------------------

    def generation(self) -> str:
        """Return a value that changes when the rows are numbered again."""
        return self._ask(text_search.generation, "")

    def rows(self, message_ids: Sequence[str]) -> dict[str, int]:
        """Return the rows of those messages that are indexed."""
        return self._ask(lambda c: text_search.rows(c, message_ids), {})

    def too_long(self, ranges: Sequence[tuple[int, int]]) -> set[int]:
        """Return the rows within the ranges that have no indexed text: their messages have to be read."""
        return self._ask(lambda c: text_search.too_long(c, ranges), set())

    def find(self, needle: str, ranges: Sequence[tuple[int, int]], *, header: bool, body: bool) -> set[int] | None:
        """Return the rows within the ranges that contain a folded needle in the header or the body.

        None if the index cannot answer.
        """
        if len(needle) < _MIN_NEEDLE_CHARACTERS or "\0" in needle:
            return None
        parts = [name for name, included in (("header", header), ("body", body)) if included]

        def ask(connection: sqlite3.Connection) -> set[int] | None:
            rows: set[int] = set()
            for part in parts:
                for first, last in ranges:
                    rows.update(text_search.find(connection, part, needle, first, last))
            return rows

        return self._ask(ask, None)

    def texts(self, message_ids: Sequence[str]) -> dict[str, SearchText]:
        """Return the texts of those messages that are indexed."""
        rows: list[tuple[str, str, str, str]] = self._ask(lambda c: text_search.texts(c, message_ids), [])
        return {message_id: SearchText(header, body, refs) for message_id, header, body, refs in rows}

    def references(self, message_ids: Sequence[str]) -> dict[str, str]:
        return self._ask(lambda c: text_search.references(c, message_ids), {})

    # --- filling ---------------------------------------------------------------------------------------------------

    def add(self, message_ids: Sequence[str], extract: Callable[[list[str]], Iterable[NewText]]) -> int:
        """Index those messages that are missing, with the texts from ``extract``; return how many were added.

        Other processes wait for the transaction and then find the messages indexed, so no text is extracted twice.
        """

        def write(connection: sqlite3.Connection) -> int:
            with text_search.writing(connection):
                indexed = text_search.rows(connection, message_ids)
                missing = [message_id for message_id in message_ids if message_id not in indexed]
                added = [_entry(new) for new in extract(missing)] if missing else []
                text_search.insert(connection, added)
            return len(added)

        return self._ask(write, 0)

    def remove(self, message_ids: Sequence[str]) -> None:
        def write(connection: sqlite3.Connection) -> None:
            with text_search.writing(connection):
                text_search.delete(connection, message_ids)

        self._ask(write, None)

    # --- the database ----------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[sqlite3.Connection], Result], unavailable: Result) -> Result:
        """Return the answer, or ``unavailable`` if the index cannot be used."""
        epoch = self._epoch
        try:
            return question(self._connection())
        except sqlite3.OperationalError as error:
            _log.warning("text index: not usable (%s); searching without it", error)
        except sqlite3.DatabaseError as error:
            self._drop(epoch, error)
        except UnicodeEncodeError:
            pass  # the needle is not valid text
        return unavailable

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None or self._local.epoch != self._epoch:
            with self._mutex:
                connection = text_index.connect(self._root)
                self._connections.append(connection)
                self._local.connection, self._local.epoch = connection, self._epoch
        return connection

    def _drop(self, epoch: int, error: sqlite3.DatabaseError) -> None:
        """Remove a damaged index, unless another thread already did."""
        with self._mutex:
            if epoch == self._epoch:
                _log.error("text index: damaged (%s); dropped, filling it again", error)
                text_index.drop(self._root)
                self._epoch += 1


def _entry(new: NewText) -> IndexedText:
    text = new.text
    indexed = text.is_whole and len(text.header) + len(text.body) <= MAX_INDEXED_CHARACTERS
    header, body = (text.header, text.body) if indexed else ("", "")
    return IndexedText(new.message_id, new.registration, indexed, text.references, header, body)


def ranges_of(rows: Collection[int]) -> list[tuple[int, int]]:
    """Return, for each account, the range from its first to its last row among these."""
    if not rows:
        return []
    first, last = min(rows), max(rows)
    if first >> ACCOUNT_SHIFT == last >> ACCOUNT_SHIFT:
        return [(first, last)]  # nearly always
    ends: dict[int, tuple[int, int]] = {}
    for row in rows:
        account = row >> ACCOUNT_SHIFT
        first, last = ends.get(account, (row, row))
        ends[account] = min(first, row), max(last, row)
    if len(ends) > _MAX_RANGES:
        return [(min(first for first, _ in ends.values()), max(last for _, last in ends.values()))]
    return sorted(ends.values())
