"""What FETCH shows of a message and never changes, encoded once: ENVELOPE, BODYSTRUCTURE and the like.

Pieces belong to a UID of a folder, which means the same message for ever; so they need no care when the folder changes.
They are read in bulk from the index's cache, a few thousand with one query, when somebody asks for them. What the cache
lacks is computed from the canonical file and written back. Everything here may be dropped at any time.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

import orjson

from adapter.read_model.thread_pool import Threads
from adapter.transport import cache_fill
from adapter.transport.cache_fill import CacheRow
from adapter.transport.transport import Transport
from protocol.errors import MailError
from protocol.imap.responses.plain_structure import plain_structure

_log = logging.getLogger(__name__)

#: Messages of one query.
BATCH = 4096
#: Messages whose missing cache rows are computed before they are written back.
_DERIVED = 256
# Of a dictionary's entry, its key and the head of its value.
_ENTRY_COST = 130


class Kind(Enum):
    """What there is of each message; the value is its column in the query below."""

    ENVELOPE = "c.envelope"
    STRUCTURE = "c.structure"
    BODY = "c.structure AS plain"  # the same without extension data
    PREVIEW = "c.preview"  # UTF-8, not yet a string of IMAP
    EMAIL_ID = "p.message_id"
    THREAD_ID = "m.thread_id"


#: Those of ``cache_messages``.
_OF_CACHE: dict[Kind, Callable[[CacheRow], bytes | str]] = {
    Kind.ENVELOPE: lambda row: row.envelope,
    Kind.STRUCTURE: lambda row: row.structure,
    Kind.BODY: lambda row: row.structure,
    Kind.PREVIEW: lambda row: row.preview,
}
_ENCODE: dict[Kind, Callable[[Any], bytes]] = {
    Kind.ENVELOPE: bytes,
    Kind.STRUCTURE: bytes,
    Kind.BODY: plain_structure,
    Kind.PREVIEW: lambda text: text.encode("utf-8", "replace"),
    Kind.EMAIL_ID: str.encode,
    Kind.THREAD_ID: str.encode,
}


class Pieces:
    """The pieces of one folder that are in memory."""

    __slots__ = ("_by_kind", "cost", "loading", "used_at")

    def __init__(self) -> None:
        self._by_kind: dict[Kind, dict[int, bytes]] = {}
        self.cost = 0
        self.used_at = 0.0
        self.loading = asyncio.Lock()

    def find(self, kind: Kind, uids: Iterable[int]) -> list[bytes | None]:
        """One piece per UID; None where it is not in memory."""
        return list(map(self._by_kind.get(kind, {}).get, uids))

    def add(self, kind: Kind, pieces: dict[int, bytes]) -> None:
        known = self._by_kind.setdefault(kind, {})
        before = len(known)
        known.update(pieces)
        self.cost += sum(map(len, pieces.values())) + _ENTRY_COST * (len(known) - before)

    def forget(self, uids: Sequence[int]) -> None:
        """These messages are gone."""
        for known in self._by_kind.values():
            gone = [piece for uid in uids if (piece := known.pop(uid, None)) is not None]
            self.cost -= sum(map(len, gone)) + _ENTRY_COST * len(gone)

    def drop(self) -> None:
        self._by_kind.clear()
        self.cost = 0


class PieceReader:
    """Brings pieces into memory."""

    def __init__(self, transport: Transport, threads: Threads, after_growth: Callable[[], None]) -> None:
        self._transport = transport
        self._threads = threads
        self._after_growth = after_growth

    def at_hand(self, pieces: Pieces, kinds: Sequence[Kind], uids: Sequence[int]) -> list[list[bytes | None]]:
        """A column for each kind, with None for what is not in memory."""
        pieces.used_at = time.monotonic()
        return [pieces.find(kind, uids) for kind in kinds]

    async def read(
        self, folder_id: int, pieces: Pieces, kinds: Sequence[Kind], uids: Sequence[int]
    ) -> list[list[bytes | None]]:
        """A column for each kind, with None for messages that are gone or cannot be read.

        More than ``BATCH`` messages at a time take more memory than need be.
        """
        found = self.at_hand(pieces, kinds, uids)
        if not any(None in column for column in found):
            return found
        async with pieces.loading:
            lacking = {
                uid for kind in kinds for uid, piece in zip(uids, pieces.find(kind, uids), strict=True) if piece is None
            }
            if lacking:
                read = await self._threads.run(self.query, folder_id, tuple(kinds), sorted(lacking))
                for kind, column in read.items():
                    pieces.add(kind, column)
            found = [pieces.find(kind, uids) for kind in kinds]
        self._after_growth()
        return found

    # --- on a thread -----------------------------------------------------------------------------------------------

    def query(self, folder_id: int, kinds: Sequence[Kind], uids: Sequence[int]) -> dict[Kind, dict[int, bytes]]:
        """Pieces of those of the (ascending) UIDs that exist and can be read, and perhaps of others. Blocks."""
        rows = self._rows(folder_id, kinds, uids)
        if not _OF_CACHE.keys().isdisjoint(kinds):
            lacking = [row for row in rows if row[2] is None]
            if lacking:
                rows = [row for row in rows if row[2] is not None]
                rows += self._derive(kinds, lacking)
        if not rows:
            return {}
        columns = list(zip(*rows))
        return {
            kind: dict(zip(columns[0], map(_ENCODE[kind], column)))
            for kind, column in zip(kinds, columns[3:], strict=True)
        }

    def _rows(self, folder_id: int, kinds: Sequence[Kind], uids: Sequence[int]) -> list[tuple[Any, ...]]:
        """(UID, message id, message id if there is a cache row, values of the kinds)"""
        cache = "c.message_id" if not _OF_CACHE.keys().isdisjoint(kinds) else "p.message_id"
        sql = f"SELECT p.uid, p.message_id, {cache}, {', '.join(kind.value for kind in kinds)} {_FROM}"
        if cache.startswith("c"):
            sql += " LEFT JOIN cache_messages c USING (message_id)"
        if Kind.THREAD_ID in kinds:
            sql += " JOIN messages m USING (message_id)"
        if uids[-1] - uids[0] < 2 * len(uids):
            return self._transport.index.query(f"{sql} {_IN_RANGE}", (folder_id, uids[0], uids[-1]))
        return self._transport.index.query(f"{sql} {_IN_LIST}", (folder_id, orjson.dumps(list(uids)).decode()))

    def _derive(self, kinds: Sequence[Kind], lacking: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Rows for messages the cache does not have, and the cache filled with them."""
        rows: list[tuple[Any, ...]] = []
        fresh: list[CacheRow] = []
        for uid, message_id, _, *values in lacking:
            try:
                cached = cache_fill.derive(self._transport.content, message_id)
            except MailError as error:
                _log.error("message %s cannot be shown: %s", message_id, error)
                continue
            made = [_OF_CACHE[kind](cached) if kind in _OF_CACHE else value for kind, value in zip(kinds, values)]
            rows.append((uid, message_id, message_id, *made))
            fresh.append(cached)
            if len(fresh) == _DERIVED:
                self._keep(fresh)
                fresh = []
        self._keep(fresh)
        return rows

    def _keep(self, fresh: list[CacheRow]) -> None:
        try:
            if fresh:
                cache_fill.write(self._transport, fresh)
        except (MailError, OSError, sqlite3.Error) as error:
            _log.warning("the cache of the index could not be filled: %s", error)


_FROM = "FROM mailbox_projections p"
_IN_RANGE = "WHERE p.folder_id = ? AND p.uid BETWEEN ? AND ?"
_IN_LIST = "WHERE p.folder_id = ? AND p.uid IN (SELECT value FROM json_each(?))"
