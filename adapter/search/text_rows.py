"""Which row of the text index is which message of a folder. Used from threads, one at a time for each folder."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from adapter.search.text_index import TextIndex, ranges_of
from adapter.transport.transport import Transport

_ENTRY_COST = 180
_NEW_MESSAGES = "SELECT uid, message_id FROM mailbox_projections WHERE folder_id = ? AND uid > ? ORDER BY uid"


@dataclass(slots=True)
class Known:
    """What the index knows of a folder. UIDs may be among these that are gone from it."""

    generation: str
    top: int = 0  # the highest UID looked up
    rows: dict[int, int] = field(default_factory=dict)  # by UID
    waiting: dict[int, str] = field(default_factory=dict)  # message ids by UID: not in the index yet
    long: dict[int, str] = field(default_factory=dict)  # likewise: known, but too long to be indexed
    ranges: list[tuple[int, int]] = field(default_factory=list)  # of rows, which hold all of these


class TextRows:
    """Of one folder. Only what is new is looked up."""

    __slots__ = ("_known", "_mutex", "cost", "used_at")

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.used_at = 0.0
        self.drop()

    def drop(self) -> None:
        """From any thread, without waiting for one that reads: it goes on with what it has."""
        self._known = Known("")
        self.cost = 0

    def read(self, transport: Transport, index: TextIndex, folder_id: int) -> Known:
        """As it is now. Blocks."""
        with self._mutex:
            self.used_at = time.monotonic()
            generation = index.generation()
            known = self._known
            if generation != known.generation:
                known = self._known = Known(generation)
            fresh = transport.index.query(_NEW_MESSAGES, (folder_id, known.top))
            if fresh:
                known.waiting |= dict(fresh)
                known.top = fresh[-1][0]
            if known.waiting:
                self._look_up(index, known)
            return known

    def _look_up(self, index: TextIndex, known: Known) -> None:
        found = index.rows(list(known.waiting.values()))
        if not found:
            return
        added = ranges_of(found.values())
        too_long = index.too_long(added)
        rows = {uid: found[message_id] for uid, message_id in known.waiting.items() if message_id in found}
        long = {uid: known.waiting[uid] for uid, row in rows.items() if row in too_long} if too_long else {}
        known.long |= long
        known.rows |= {uid: row for uid, row in rows.items() if uid not in long} if long else rows
        known.waiting = {uid: message_id for uid, message_id in known.waiting.items() if uid not in rows}
        known.ranges = ranges_of([end for ends in (*known.ranges, *added) for end in ends])
        self.cost = _ENTRY_COST * (len(known.rows) + len(known.waiting) + len(known.long))
