"""A folder in memory: immutable columns that are replaced at each change, and the sessions that listen to it.

Invariants: a listener receives every change after it subscribed, once; columns are replaced, never modified, so that a
caller may go on using those it has.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Sequence

from adapter.read_model.fetch.encoded_attributes import AttributeCache
from adapter.read_model.folder_columns import ROW_COST_BYTES, FolderColumns, Keywords, Numbers, places_among
from adapter.read_model.header_cache import HeaderCache
from adapter.read_model.interface import FolderListener, OpenFolder
from adapter.search.text_rows import TextRows
from adapter.store.queries.mailboxes import Folder
from adapter.transport import ids
from protocol.imap.flags import SEEN, FlagTable
from protocol.imap.session_view import FolderChange, Uids

_log = logging.getLogger(__name__)

# Of a folder, besides its rows.
_FOLDER_COST_BYTES = 2048
# A change of another process that takes longer to arrive is looked up in the index.
_CHANGE_TIMEOUT_SECONDS = 2.0


class FolderSubscription:
    __slots__ = ("_folder", "listener")

    def __init__(self, folder: CachedFolder, listener: FolderListener) -> None:
        self._folder = folder
        self.listener = listener

    def close(self) -> None:
        self._folder.subscriptions.pop(self, None)


class CachedFolder:
    """The :class:`~adapter.read_model.interface.OpenFolder` of the mailbox cache."""

    __slots__ = (
        "_waiting",
        "announced_uid",
        "attributes",
        "columns",
        "header_cache",
        "id",
        "is_removed",
        "keywords",
        "modseq",
        "registration",
        "subscriptions",
        "text_rows",
        "uidnext",
        "uidvalidity",
        "used_at",
    )

    def __init__(self, folder: Folder, columns: FolderColumns, keywords: Keywords) -> None:
        self.id = folder.id
        self.registration = folder.registration
        self.uidvalidity = folder.uidvalidity
        self.uidnext = folder.uidnext
        self.modseq = folder.highestmodseq  # HIGHESTMODSEQ
        self.columns = columns
        self.keywords = keywords
        # Derived values, which can be loaded again.
        self.attributes = AttributeCache()
        self.header_cache = HeaderCache()
        self.text_rows = TextRows()
        self.announced_uid = 0  # all UIDs below, and perhaps more, were announced as recent (RecentMarks)
        self.is_removed = False  # the folder was deleted: reads return its last state
        self.subscriptions: dict[FolderSubscription, None] = {}
        self.used_at = time.monotonic()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    # --- for sessions ----------------------------------------------------------------------------------------------

    def subscribe(self, listener: FolderListener) -> FolderSubscription:
        subscription = FolderSubscription(self, listener)
        self.subscriptions[subscription] = None
        return subscription

    @property
    def flags(self) -> FlagTable:
        return self.keywords.table

    @property
    def uids(self) -> Uids:
        return self.columns.uids

    def masks(self, uids: Sequence[int]) -> Sequence[int]:
        """Return the flags of these messages; 0 for one that is gone."""
        return self._values(self.columns.masks, uids)

    def modseqs(self, uids: Sequence[int]) -> Sequence[int]:
        """Return the mod-sequences of these messages; 0 for one that is gone."""
        return self._values(self.columns.modseqs, uids)

    def sizes(self, uids: Sequence[int]) -> Sequence[int]:
        """Return the octets of these messages; 0 for one that is gone."""
        return self._values(self.columns.sizes, uids)

    def first_unseen(self) -> int:
        return next((number for number, mask in enumerate(self.columns.masks, 1) if not mask & SEEN), 0)

    def changed_since(self, modseq: int) -> list[int]:
        return [uid for uid, changed in zip(self.columns.uids, self.columns.modseqs) if changed > modseq]

    def _values(self, column: list[int] | Numbers, uids: Sequence[int]) -> Sequence[int]:
        places = self.places(uids)
        if isinstance(places, slice):
            return column[places]
        return [column[place] if place >= 0 else 0 for place in places]

    def places(self, uids: Sequence[int]) -> slice | list[int]:
        """Return the places of these messages (ascending) in the columns; -1 for one that is gone."""
        column = self.columns.uids
        if uids is column:
            return slice(0, len(column))
        if not uids:
            return slice(0, 0)
        if len(uids) == 1:
            place = bisect_left(column, uids[0])
            return slice(place, place + 1) if place < len(column) and column[place] == uids[0] else [-1]
        first, last = bisect_left(column, uids[0]), bisect_left(column, uids[-1])
        # As many as there are from the first to the last: the same, unless some are gone.
        if last - first + 1 == len(uids) and column[first : last + 1] == type(column)("I", uids):
            return slice(first, last + 1)
        return places_among(column, uids)

    # --- for the cache ---------------------------------------------------------------------------------------------

    async def wait_for(self, modseq: int) -> bool:
        """Wait until the folder has reached ``modseq``; False if it does not within the timeout."""
        if self.modseq < modseq and not self.is_removed:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((modseq, future))
            await asyncio.wait((future,), timeout=_CHANGE_TIMEOUT_SECONDS)
        return self.modseq >= modseq or self.is_removed

    def replace(self, columns: FolderColumns, modseq: int, uidnext: int, changes: Sequence[FolderChange]) -> None:
        """Take over new columns and report the changes to the listeners."""
        self.columns, self.modseq, self.uidnext = columns, modseq, uidnext
        for change in changes:
            if change.expunged:
                self.attributes.forget(change.expunged)
        for subscription in list(self.subscriptions):
            try:
                subscription.listener.folder_changed(changes)
            except Exception:  # one session must not keep changes from the others
                _log.exception("folder %s: a listener failed", ids.folder_label(self.id))
        self._wake()

    def remove(self) -> None:
        """Handle the deletion of the folder."""
        self.is_removed = True
        for subscription in list(self.subscriptions):
            subscription.listener.folder_removed()
        self._wake()

    def _wake(self) -> None:
        if self._waiting:
            ready = [future for modseq, future in self._waiting if modseq <= self.modseq or self.is_removed]
            self._waiting = [waiting for waiting in self._waiting if waiting[1] not in ready]
            for future in ready:
                if not future.done():
                    future.set_result(None)

    # --- memory ----------------------------------------------------------------------------------------------------

    @property
    def cost(self) -> int:
        return _FOLDER_COST_BYTES + ROW_COST_BYTES * len(self.columns.uids)

    @property
    def derived_cost(self) -> int:
        """The cost of the derived values."""
        return self.attributes.cost + self.header_cache.cost + self.text_rows.cost

    @property
    def derived_used_at(self) -> float:
        return max(self.attributes.used_at, self.header_cache.used_at, self.text_rows.used_at)

    def drop_derived(self) -> None:
        self.attributes.drop()
        self.header_cache.drop()
        self.text_rows.drop()


def cached(folder: OpenFolder) -> CachedFolder:
    """Return a folder that the cache has opened as what it is."""
    if not isinstance(folder, CachedFolder):
        raise TypeError("not a folder of the mailbox cache")
    return folder
