"""Attributes that FETCH shows and that never change, encoded once: ENVELOPE, BODYSTRUCTURE and the like.

They are cached by folder and UID. A UID means the same message for ever, so a change of the folder invalidates
nothing, and everything here may be dropped at any time. They are loaded in bulk from the index's cache, a few thousand
with one query. Values missing there are derived from the message's files
and written back.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from adapter.read_model.thread_pool import ThreadPool
from adapter.store.queries import messages
from adapter.store.queries.content_rows import CacheRow
from adapter.store.queries.messages import DERIVED_ATTRIBUTES, CachedAttribute
from adapter.transport import cache_fill
from adapter.transport.transport import Transport
from protocol.errors import MailError
from protocol.imap.responses.plain_structure import plain_structure

__all__ = ["BATCH_MESSAGES", "AttributeCache", "AttributeLoader", "CachedAttribute"]

_log = logging.getLogger(__name__)

#: Messages of one query.
BATCH_MESSAGES = 4096
# Cache rows that are derived before they are written back.
_DERIVED_ROWS = 256
# Of a dictionary's entry, its key and the head of its value.
_ENTRY_COST_BYTES = 130

_DERIVED: dict[CachedAttribute, Callable[[CacheRow], bytes | str]] = {
    CachedAttribute.ENVELOPE: lambda row: row.envelope,
    CachedAttribute.STRUCTURE: lambda row: row.structure,
    CachedAttribute.BODY: lambda row: row.structure,
    CachedAttribute.PREVIEW: lambda row: row.preview,
}
_ENCODE: dict[CachedAttribute, Callable[[Any], bytes]] = {
    CachedAttribute.ENVELOPE: bytes,
    CachedAttribute.STRUCTURE: bytes,
    CachedAttribute.BODY: plain_structure,
    CachedAttribute.PREVIEW: lambda text: text.encode("utf-8", "replace"),
    CachedAttribute.EMAIL_ID: str.encode,
    CachedAttribute.THREAD_ID: str.encode,
}


class AttributeCache:
    """The attributes of one folder that are in memory."""

    __slots__ = ("_columns", "cost", "loading", "used_at")

    def __init__(self) -> None:
        self._columns: dict[CachedAttribute, dict[int, bytes]] = {}
        self.cost = 0
        self.used_at = 0.0
        self.loading = asyncio.Lock()

    def get(self, attribute: CachedAttribute, uids: Iterable[int]) -> list[bytes | None]:
        """Return one value per UID; None where it is not in memory."""
        return list(map(self._columns.get(attribute, {}).get, uids))

    def add(self, attribute: CachedAttribute, values: dict[int, bytes]) -> None:
        column = self._columns.setdefault(attribute, {})
        before = len(column)
        column.update(values)
        self.cost += sum(map(len, values.values())) + _ENTRY_COST_BYTES * (len(column) - before)

    def forget(self, uids: Sequence[int]) -> None:
        """Drop the attributes of messages that were expunged."""
        for column in self._columns.values():
            dropped = [value for uid in uids if (value := column.pop(uid, None)) is not None]
            self.cost -= sum(map(len, dropped)) + _ENTRY_COST_BYTES * len(dropped)

    def drop(self) -> None:
        self._columns.clear()
        self.cost = 0


class AttributeLoader:
    """Loads attributes into the caches of folders."""

    def __init__(self, transport: Transport, threads: ThreadPool, after_growth: Callable[[], None]) -> None:
        self._transport = transport
        self._threads = threads
        self._after_growth = after_growth

    def in_memory(
        self, cache: AttributeCache, attributes: Sequence[CachedAttribute], uids: Sequence[int]
    ) -> list[list[bytes | None]]:
        """Return a column per attribute; None where a value is not in memory."""
        cache.used_at = time.monotonic()
        return [cache.get(attribute, uids) for attribute in attributes]

    async def load(
        self, folder_id: int, cache: AttributeCache, attributes: Sequence[CachedAttribute], uids: Sequence[int]
    ) -> list[list[bytes | None]]:
        """Return a column per attribute; None for messages that are gone or unreadable.

        More than ``BATCH_MESSAGES`` at a time use more memory than necessary.
        """
        columns = self.in_memory(cache, attributes, uids)
        if not any(None in column for column in columns):
            return columns
        async with cache.loading:
            missing = {
                uid
                for attribute in attributes
                for uid, value in zip(uids, cache.get(attribute, uids), strict=True)
                if value is None
            }
            if missing:
                loaded = await self._threads.run(self.query, folder_id, tuple(attributes), sorted(missing))
                for attribute, values in loaded.items():
                    cache.add(attribute, values)
            columns = [cache.get(attribute, uids) for attribute in attributes]
        self._after_growth()
        return columns

    # --- on a thread -----------------------------------------------------------------------------------------------

    def query(
        self, folder_id: int, attributes: Sequence[CachedAttribute], uids: Sequence[int]
    ) -> dict[CachedAttribute, dict[int, bytes]]:
        """Return values by attribute and UID, for those of the (ascending) UIDs that exist and can be read, and perhaps
        for others. Blocking.
        """
        rows = self._transport.index.ask(messages.attributes, folder_id, attributes, uids)
        if not DERIVED_ATTRIBUTES.isdisjoint(attributes):
            missing = [row for row in rows if row[2] is None]
            if missing:
                rows = [row for row in rows if row[2] is not None]
                rows += self._derive(attributes, missing)
        if not rows:
            return {}
        columns = list(zip(*rows))
        return {
            attribute: dict(zip(columns[0], map(_ENCODE[attribute], column)))
            for attribute, column in zip(attributes, columns[3:], strict=True)
        }

    def _derive(
        self, attributes: Sequence[CachedAttribute], missing: Sequence[tuple[Any, ...]]
    ) -> list[tuple[Any, ...]]:
        """Derive the rows of messages that the cache lacks, and write them to the cache."""
        rows: list[tuple[Any, ...]] = []
        derived: list[CacheRow] = []
        for uid, message_id, _, *values in missing:
            try:
                row = cache_fill.derive(self._transport.content, message_id)
            except MailError as error:
                _log.error("message %s: unreadable (%s); left out of responses", message_id, error)
                continue
            filled = [
                _DERIVED[attribute](row) if attribute in _DERIVED else value
                for attribute, value in zip(attributes, values)
            ]
            rows.append((uid, message_id, message_id, *filled))
            derived.append(row)
            if len(derived) == _DERIVED_ROWS:
                self._write_back(derived)
                derived = []
        self._write_back(derived)
        return rows

    def _write_back(self, rows: list[CacheRow]) -> None:
        try:
            if rows:
                cache_fill.write(self._transport, rows)
        except (MailError, OSError, sqlite3.Error) as error:
            _log.warning("index cache: write failed (%s); deriving again next time", error)
