"""Folders in memory: immutable columns, kept up to date by what was committed, shared by all sessions.

Invariants:

* a change is applied exactly once and in the order of commits, whichever way it is learned of: mod-sequences of a
  folder have no gaps, so a change is new if it is the next one, and known if it is not above the folder's own;
* ``uids`` and the other columns are replaced, never modified: whoever holds one may go on using it;
* a listener hears of every change after it subscribed, once;
* a folder is known to be wanted before it is read, so no change after the reading can be missed;
* a folder that did miss changes is *stale* until it was compared with the index.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Protocol

from adapter.read_model import folder_columns as of_columns
from adapter.read_model.encoded_attributes import Pieces
from adapter.read_model.folder_columns import (
    ROW_COST,
    Columns,
    Draft,
    FolderEffect,
    Keywords,
    Numbers,
    Row,
    columns_of,
    differences,
    is_complete,
)
from adapter.read_model.header_cache import HeaderValues
from adapter.read_model.thread_pool import Threads
from adapter.search.text_rows import TextRows
from adapter.store.effects import RemoveFolder
from adapter.store.queries import mailboxes
from adapter.store.queries.mailboxes import Folder
from adapter.transport import ids
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from protocol.imap.flags import SEEN, FlagTable
from protocol.imap.session_view import FolderChange, Uids

_log = logging.getLogger(__name__)

#: Effects that change the messages of a folder; each has a mod-sequence.

# What a folder costs besides its rows.
_STATE_COST = 2048
# Seconds after which a change that should have come is looked for in the index.
_PATIENCE = 2.0

_ROWS = """
SELECT p.uid, s.flags, s.keywords, s.modseq, p.internal_date, p.saved_at, m.size
FROM mailbox_projections p JOIN mailbox_state s USING (folder_id, uid) JOIN messages m USING (message_id)
WHERE p.folder_id = ? ORDER BY p.uid
"""


class FolderListener(Protocol):
    """Who is told of changes: called on the loop, must not block and not raise. Applying them can wait."""

    def folder_changed(self, changes: Sequence[FolderChange]) -> None:
        """For ``View.apply``, in this order. Each flag change and expunge comes by itself, with its own ``modseq``
        (so a session knows its own by the result of the operation); ``uids`` are those after all of them."""

    def folder_removed(self) -> None:
        """The folder was deleted, or its account is no longer active: nothing is left to talk about."""


class Watch:
    """A subscription; as long as it is open the state is kept up to date."""

    __slots__ = ("_state", "listener")

    def __init__(self, state: FolderState, listener: FolderListener) -> None:
        self._state = state
        self.listener = listener

    def close(self) -> None:
        self._state.watches.pop(self, None)


class FolderState:
    """A folder now. Also the ``FolderState`` of :mod:`protocol.imap.session_view`."""

    __slots__ = (
        "_waiting",
        "announced",
        "columns",
        "header_values",
        "id",
        "keywords",
        "modseq",
        "pieces",
        "registration",
        "removed",
        "text_rows",
        "uidnext",
        "uidvalidity",
        "used_at",
        "watches",
    )

    def __init__(self, folder: Folder, columns: Columns, keywords: Keywords) -> None:
        self.id = folder.id
        self.registration = folder.registration
        self.uidvalidity = folder.uidvalidity
        self.uidnext = folder.uidnext
        self.modseq = folder.highestmodseq  # HIGHESTMODSEQ
        self.columns = columns
        self.keywords = keywords
        # What can be read again: for Fetch and for searches.
        self.pieces = Pieces()
        self.header_values = HeaderValues()
        self.text_rows = TextRows()
        self.announced = 0  # all UIDs below were announced as recent (RecentMarks); perhaps more of them
        self.removed = False  # deleted meanwhile: reading it gives what was there last
        self.watches: dict[Watch, None] = {}
        self.used_at = time.monotonic()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    # --- for sessions ----------------------------------------------------------------------------------------------

    def subscribe(self, listener: FolderListener) -> Watch:
        watch = Watch(self, listener)
        self.watches[watch] = None
        return watch

    @property
    def flags(self) -> FlagTable:
        return self.keywords.table

    @property
    def uids(self) -> Uids:
        return self.columns.uids

    def masks(self, uids: Sequence[int]) -> Sequence[int]:
        """Flags of these messages; 0 for one that is gone."""
        return self._values(self.columns.masks, uids)

    def modseqs(self, uids: Sequence[int]) -> Sequence[int]:
        """Mod-sequences of these messages; 0 for one that is gone."""
        return self._values(self.columns.modseqs, uids)

    def sizes(self, uids: Sequence[int]) -> Sequence[int]:
        """Octets of these messages; 0 for one that is gone."""
        return self._values(self.columns.sizes, uids)

    def first_unseen(self) -> int:
        """Message number of the first unseen message; 0 if there is none (RFC 3501 6.3.1)."""
        return next((number for number, mask in enumerate(self.columns.masks, 1) if not mask & SEEN), 0)

    def flagged_since(self, modseq: int) -> list[int]:
        """UIDs whose mod-sequence is above, ascending (RFC 7162 3.1.4.1, 3.2.5)."""
        return [uid for uid, changed in zip(self.columns.uids, self.columns.modseqs) if changed > modseq]

    def _values(self, column: list[int] | Numbers, uids: Sequence[int]) -> Sequence[int]:
        places = self.places(uids)
        if isinstance(places, slice):
            return column[places]
        return [column[place] if place >= 0 else 0 for place in places]

    def places(self, uids: Sequence[int]) -> slice | list[int]:
        """Where these messages (ascending) stand in the columns; -1 for one that is gone."""
        known = self.columns.uids
        if uids is known:
            return slice(0, len(known))
        if not uids:
            return slice(0, 0)
        if len(uids) == 1:
            place = bisect_left(known, uids[0])
            return slice(place, place + 1) if place < len(known) and known[place] == uids[0] else [-1]
        first, last = bisect_left(known, uids[0]), bisect_left(known, uids[-1])
        # As many as there are between the first and the last: these, unless some that are gone are among them.
        if last - first + 1 == len(uids) and known[first : last + 1] == type(known)("I", uids):
            return slice(first, last + 1)
        return of_columns.places_among(known, uids)

    # --- for the cache ---------------------------------------------------------------------------------------------

    async def reached(self, modseq: int) -> bool:
        """Wait until the state is that of ``modseq``; False if that does not come about."""
        if self.modseq < modseq and not self.removed:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((modseq, future))
            await asyncio.wait((future,), timeout=_PATIENCE)
        return self.modseq >= modseq or self.removed

    def become(self, columns: Columns, modseq: int, uidnext: int, changes: Sequence[FolderChange]) -> None:
        self.columns, self.modseq, self.uidnext = columns, modseq, uidnext
        for change in changes:
            if change.expunged:
                self.pieces.forget(change.expunged)
        for watch in list(self.watches):
            try:
                watch.listener.folder_changed(changes)
            except Exception:  # one session must not keep the others in the dark
                _log.exception("a listener of folder %s failed", ids.folder_label(self.id))
        self._wake()

    def remove(self) -> None:
        self.removed = True
        for watch in list(self.watches):
            watch.listener.folder_removed()
        self._wake()

    def _wake(self) -> None:
        if self._waiting:
            ready = [future for modseq, future in self._waiting if modseq <= self.modseq or self.removed]
            self._waiting = [waiting for waiting in self._waiting if waiting[1] not in ready]
            for future in ready:
                if not future.done():
                    future.set_result(None)

    @property
    def cost(self) -> int:
        return _STATE_COST + ROW_COST * len(self.columns.uids)

    @property
    def derived(self) -> int:
        """The cost of what can be dropped."""
        return self.pieces.cost + self.header_values.cost + self.text_rows.cost

    @property
    def derived_used_at(self) -> float:
        return max(self.pieces.used_at, self.header_values.used_at, self.text_rows.used_at)

    def drop(self) -> None:
        self.pieces.drop()
        self.header_values.drop()
        self.text_rows.drop()


class FolderCache:
    """The folders in memory, the least recently used first. All of it belongs to the loop's thread."""

    def __init__(self, transport: Transport, threads: Threads, limit: int) -> None:
        self._transport = transport
        self._threads = threads
        self.limit = limit  #: octets
        self._folders: OrderedDict[int, FolderState] = OrderedDict()
        self._loading: dict[int, asyncio.Task[FolderState]] = {}
        # What came while the folder was read.
        self._early: dict[int, list[tuple[Sequence[FolderEffect], Mapping[str, int]]]] = {}
        self._stale: set[int] = set()
        self._settling: asyncio.Task[None] | None = None
        #: Folders in memory or on their way there; other threads may look into it.
        self.wanted: set[int] = set()

    def __len__(self) -> int:
        return len(self._folders)

    @property
    def is_settled(self) -> bool:
        """Whether no folder is stale or being compared with the index."""
        return not self._stale and self._settling is None

    def distrust(self) -> None:
        """All folders may have missed changes."""
        self._stale |= self.wanted

    async def settle(self) -> None:
        """Compare stale folders with the index. Raises MailError if it cannot be read: they stay stale."""
        while not self.is_settled:
            await asyncio.shield(self._start_settling())

    def _start_settling(self) -> asyncio.Task[None]:
        self._settling = self._settling or asyncio.create_task(self._compare_stale())
        return self._settling

    async def _compare_stale(self) -> None:
        try:
            await asyncio.gather(*self._loading.values(), return_exceptions=True)
            while self._stale:
                state = self._folders.get(self._stale.pop())
                if state is not None:
                    await self._resync(state)
        finally:
            self._settling = None

    async def get(self, folder_id: int) -> FolderState:
        state = self._folders.get(folder_id)
        if state is not None:
            state.used_at = time.monotonic()
            self._folders.move_to_end(folder_id)
            return state
        task = self._loading.get(folder_id)
        if task is None:
            self.wanted.add(folder_id)
            self._early[folder_id] = []
            task = self._loading[folder_id] = asyncio.create_task(self._load(folder_id))
        return await asyncio.shield(task)

    async def _load(self, folder_id: int) -> FolderState:
        try:
            folder, columns, keywords = await self._threads.run(self._read, folder_id)
            state = FolderState(folder, columns, keywords)
            self._folders[folder_id] = state
        finally:
            del self._loading[folder_id]
            early = self._early.pop(folder_id)
            if folder_id not in self._folders:
                self.wanted.discard(folder_id)
        for effects, sizes in early:
            self.apply(folder_id, effects, sizes)
        if state.removed:
            raise _gone(folder_id)
        self.shrink()
        return state

    def _rows(self, folder_id: int) -> tuple[Folder, list[Row]]:
        with self._transport.reading() as connection:
            folder = mailboxes.folder_by_id(connection, folder_id)
            rows: list[Row] = connection.execute(_ROWS, (folder_id,)).fetchall()
        if folder is None:
            raise _gone(folder_id)
        return folder, rows

    def _read(self, folder_id: int) -> tuple[Folder, Columns, Keywords]:
        folder, rows = self._rows(folder_id)
        keywords = Keywords()
        return folder, columns_of(rows, keywords), keywords

    # --- changes ---------------------------------------------------------------------------------------------------

    def apply(self, folder_id: int, effects: Sequence[FolderEffect], sizes: Mapping[str, int]) -> None:
        """Effects on one folder in the order of commits; those that are known are passed over."""
        if folder_id in self._loading:
            self._early[folder_id].append((effects, sizes))
            return
        state = self._folders.get(folder_id)
        if state is None:
            return
        draft = Draft(state.columns, state.keywords, state.modseq, state.uidnext)
        for effect in effects:
            if isinstance(effect, RemoveFolder) or effect.modseq <= draft.modseq:
                continue
            if effect.modseq > draft.modseq + 1 or not is_complete(effect, sizes):
                self._stale.add(folder_id)
                self.settle_soon()
                break
            draft.apply(effect, sizes)
        if draft.modseq > state.modseq:
            columns, changes = draft.finish()
            state.become(columns, draft.modseq, draft.uidnext, changes)
        if any(isinstance(effect, RemoveFolder) for effect in effects):
            self.remove(folder_id)

    async def committed(self, folder_id: int, effects: Sequence[FolderEffect], sizes: Mapping[str, int]) -> None:
        """The same, for effects that may be ahead of others that were committed before them: waits for those."""
        if (task := self._loading.get(folder_id)) is not None:
            await asyncio.wait((task,))
        state = self._folders.get(folder_id)
        if state is None:
            return
        first = effects[0]
        if isinstance(first, RemoveFolder) or first.modseq <= state.modseq + 1:
            self.apply(folder_id, effects, sizes)
        last = max((effect.modseq for effect in effects if not isinstance(effect, RemoveFolder)), default=0)
        if not await state.reached(last):
            await self._resync(state)

    def remove(self, folder_id: int) -> None:
        """The folder is no more, or out of reach."""
        state = self._folders.get(folder_id)
        if state is not None:
            self._forget(state)
            state.remove()

    def remove_account(self, registration: str) -> None:
        for state in [state for state in self._folders.values() if state.registration == registration]:
            self.remove(state.id)

    def settle_soon(self) -> None:
        """The same without waiting, for sessions in IDLE; after a failure the next command tries again."""
        self._start_settling().add_done_callback(_note_failure)

    async def _resync(self, state: FolderState) -> None:
        """Changes were missed, so the folder is compared with the index. Raises MailError if it cannot be read."""
        _log.warning("changes of folder %s were missed; it is read again", ids.folder_label(state.id))
        try:
            folder, rows = await self._threads.run(self._rows, state.id)
        except MailError as error:
            if error.reason is not Reason.NO_SUCH_FOLDER:
                self._stale.add(state.id)
                raise
            self.remove(state.id)
            return
        if folder.highestmodseq > state.modseq and not state.removed:
            columns = columns_of(rows, state.keywords)
            changes = differences(state.columns, columns, state.modseq, folder.highestmodseq)
            state.become(columns, folder.highestmodseq, folder.uidnext, changes)

    # --- memory ----------------------------------------------------------------------------------------------------

    def shrink(self) -> None:
        """Keep to the limit: first what can be read again goes, then folders that nobody watches.

        The least recently used first.
        """
        excess = sum(state.cost + state.derived for state in self._folders.values()) - self.limit
        if excess <= 0:
            return
        for state in self._folders.values():
            excess -= state.derived
            state.drop()
            if excess <= 0:
                return
        for state in [state for state in self._folders.values() if not state.watches]:
            excess -= state.cost
            self._forget(state)
            if excess <= 0:
                return

    def let_go(self, unused_since: float) -> bool:
        """Drop what was not used since then (of the monotonic clock), but for the columns of watched folders.

        Whether that freed anything.
        """
        freed = False
        for state in list(self._folders.values()):
            if state.derived_used_at < unused_since:
                forgotten = state.used_at < unused_since and not state.watches
                freed = freed or forgotten or state.derived > 0
                state.drop()
                if forgotten:
                    self._forget(state)
        return freed

    def _forget(self, state: FolderState) -> None:
        state.drop()
        del self._folders[state.id]
        self.wanted.discard(state.id)


def _note_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("folders: comparison with the index failed (%s); retrying at the next command", error)


def _gone(folder_id: int) -> MailError:
    return MailError(Reason.NO_SUCH_FOLDER, ids.folder_label(folder_id))
