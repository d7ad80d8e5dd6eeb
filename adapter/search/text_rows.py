"""Rows of the text index for the messages of a folder. Used from threads, one at a time for each folder."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from adapter.search.text_index import TextIndex, ranges_of
from adapter.store.queries import messages
from adapter.transport.transport import Transport

_ENTRY_COST_BYTES = 180


@dataclass(slots=True)
class IndexedFolder:
    """The index rows of a folder. They may include UIDs that the folder no longer has."""

    generation: str
    last_uid: int = 0  # the highest UID looked up
    rows: dict[int, int] = field(default_factory=dict)  # by UID
    missing: dict[int, str] = field(default_factory=dict)  # message ids by UID: not indexed yet
    long: dict[int, str] = field(default_factory=dict)  # likewise: too long to be indexed
    ranges: list[tuple[int, int]] = field(default_factory=list)  # of the index, which include all these rows


class TextRows:
    """The cached rows of one folder. Only new messages are looked up."""

    __slots__ = ("_indexed", "_mutex", "cost", "used_at")

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.used_at = 0.0
        self.drop()

    def drop(self) -> None:
        """From any thread, without waiting: a thread that is reading goes on with what it has."""
        self._indexed = IndexedFolder("")
        self.cost = 0

    def read(self, transport: Transport, index: TextIndex, folder_id: int) -> IndexedFolder:
        """Look up what is new and return all rows. Blocking."""
        with self._mutex:
            self.used_at = time.monotonic()
            generation = index.generation()
            indexed = self._indexed
            if generation != indexed.generation:
                indexed = self._indexed = IndexedFolder(generation)
            new = transport.index.ask(messages.message_ids_after, folder_id, indexed.last_uid)
            if new:
                indexed.missing |= new
                indexed.last_uid = max(new)
            if indexed.missing:
                self._look_up(index, indexed)
            return indexed

    def _look_up(self, index: TextIndex, indexed: IndexedFolder) -> None:
        new_rows = index.rows(list(indexed.missing.values()))
        if not new_rows:
            return
        added = ranges_of(new_rows.values())
        too_long = index.too_long(added)
        rows = {uid: new_rows[message_id] for uid, message_id in indexed.missing.items() if message_id in new_rows}
        long = {uid: indexed.missing[uid] for uid, row in rows.items() if row in too_long} if too_long else {}
        indexed.long |= long
        indexed.rows |= {uid: row for uid, row in rows.items() if uid not in long} if long else rows
        indexed.missing = {uid: message_id for uid, message_id in indexed.missing.items() if uid not in rows}
        indexed.ranges = ranges_of([end for ends in (*indexed.ranges, *added) for end in ends])
        self.cost = _ENTRY_COST_BYTES * (len(indexed.rows) + len(indexed.missing) + len(indexed.long))
