"""Folder cache: the folders in memory, shared by all sessions and kept up to date with what is committed.

Invariants:

* a change is applied exactly once and in the order of commits, whichever way it arrives: the mod-sequences of a folder
  have no gaps, so a change is new if it is the next one, and known if it is not above the folder's own;
* a folder is tracked before it is read, so no change after the read can be missed;
* a folder that did miss changes is *stale* until it was compared with the index.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from adapter.read_model.cached_folder import CachedFolder
from adapter.read_model.folder_columns import (
    ColumnsBuilder,
    FolderColumns,
    FolderEffect,
    Keywords,
    columns_of,
    differences,
    is_complete,
)
from adapter.read_model.thread_pool import ThreadPool
from adapter.store.effects import RemoveFolder
from adapter.store.queries import mailboxes, messages
from adapter.store.queries.mailboxes import Folder
from adapter.store.queries.messages import FolderRow
from adapter.transport import ids
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason

_log = logging.getLogger(__name__)


class FolderCache:
    """The folders in memory, least recently used first. Used from the loop's thread alone."""

    def __init__(self, transport: Transport, threads: ThreadPool, limit: int) -> None:
        self._transport = transport
        self._threads = threads
        self.limit = limit  #: octets
        self._folders: OrderedDict[int, CachedFolder] = OrderedDict()
        self._loading: dict[int, asyncio.Task[CachedFolder]] = {}
        # Effects that arrived while the folder was read.
        self._early: dict[int, list[tuple[Sequence[FolderEffect], Mapping[str, int]]]] = {}
        self._stale: set[int] = set()
        self._comparison: asyncio.Task[None] | None = None
        #: Folders in memory or being loaded; other threads may read it.
        self.tracked: set[int] = set()

    def __len__(self) -> int:
        return len(self._folders)

    async def get(self, folder_id: int) -> CachedFolder:
        """Return a folder, loaded if necessary. Raises ``NO_SUCH_FOLDER``."""
        folder = self._folders.get(folder_id)
        if folder is not None:
            folder.used_at = time.monotonic()
            self._folders.move_to_end(folder_id)
            return folder
        task = self._loading.get(folder_id)
        if task is None:
            self.tracked.add(folder_id)
            self._early[folder_id] = []
            task = self._loading[folder_id] = asyncio.create_task(self._load(folder_id))
        return await asyncio.shield(task)

    async def _load(self, folder_id: int) -> CachedFolder:
        try:
            row, columns, keywords = await self._threads.run(self._read, folder_id)
            folder = CachedFolder(row, columns, keywords)
            self._folders[folder_id] = folder
        finally:
            del self._loading[folder_id]
            early = self._early.pop(folder_id)
            if folder_id not in self._folders:
                self.tracked.discard(folder_id)
        for effects, sizes in early:
            self.apply(folder_id, effects, sizes)
        if folder.is_removed:
            raise _no_such_folder(folder_id)
        self.shrink()
        return folder

    def _rows(self, folder_id: int) -> tuple[Folder, list[FolderRow]]:
        with self._transport.reading() as connection:
            folder = mailboxes.folder_by_id(connection, folder_id)
            rows = messages.folder_rows(connection, folder_id)
        if folder is None:
            raise _no_such_folder(folder_id)
        return folder, rows

    def _read(self, folder_id: int) -> tuple[Folder, FolderColumns, Keywords]:
        folder, rows = self._rows(folder_id)
        keywords = Keywords()
        return folder, columns_of(rows, keywords), keywords

    # --- changes ---------------------------------------------------------------------------------------------------

    def apply(self, folder_id: int, effects: Sequence[FolderEffect], sizes: Mapping[str, int]) -> None:
        """Apply effects on one folder in the order of commits; those applied before are skipped."""
        if folder_id in self._loading:
            self._early[folder_id].append((effects, sizes))
            return
        folder = self._folders.get(folder_id)
        if folder is None:
            return
        builder = ColumnsBuilder(folder.columns, folder.keywords, folder.modseq, folder.uidnext)
        for effect in effects:
            if isinstance(effect, RemoveFolder) or effect.modseq <= builder.modseq:
                continue
            if effect.modseq > builder.modseq + 1 or not is_complete(effect, sizes):
                self._stale.add(folder_id)
                self.compare_soon()
                break
            builder.apply(effect, sizes)
        if builder.modseq > folder.modseq:
            columns, changes = builder.finish()
            folder.replace(columns, builder.modseq, builder.uidnext, changes)
        if any(isinstance(effect, RemoveFolder) for effect in effects):
            self.remove(folder_id)

    async def apply_own(self, folder_id: int, effects: Sequence[FolderEffect], sizes: Mapping[str, int]) -> None:
        """Apply the effects of an operation of this process. Waits for those committed before, if they are missing."""
        if (task := self._loading.get(folder_id)) is not None:
            await asyncio.wait((task,))
        folder = self._folders.get(folder_id)
        if folder is None:
            return
        first = effects[0]
        if isinstance(first, RemoveFolder) or first.modseq <= folder.modseq + 1:
            self.apply(folder_id, effects, sizes)
        last = max((effect.modseq for effect in effects if not isinstance(effect, RemoveFolder)), default=0)
        if not await folder.wait_for(last):
            await self._compare(folder)

    def remove(self, folder_id: int) -> None:
        """Remove a folder that was deleted, or that belongs to an inactive account."""
        folder = self._folders.get(folder_id)
        if folder is not None:
            self._forget(folder)
            folder.remove()

    def remove_account(self, registration: str) -> None:
        for folder in [folder for folder in self._folders.values() if folder.registration == registration]:
            self.remove(folder.id)

    # --- after missed changes --------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """True if no folder is stale or being compared with the index."""
        return not self._stale and self._comparison is None

    def distrust(self) -> None:
        """Mark all folders as stale: they may have missed changes."""
        self._stale |= self.tracked

    def forget_unwatched(self) -> None:
        """Drop all folders without listeners."""
        for folder in [folder for folder in self._folders.values() if not folder.subscriptions]:
            self._forget(folder)

    async def compare_stale(self) -> None:
        """Compare stale folders with the index. Raises MailError if it cannot be read: they stay stale."""
        while not self.is_settled:
            await asyncio.shield(self._start_comparison())

    def compare_soon(self) -> None:
        """Do the same without waiting, for sessions in IDLE; after a failure the next command tries again."""
        self._start_comparison().add_done_callback(_log_failure)

    def _start_comparison(self) -> asyncio.Task[None]:
        self._comparison = self._comparison or asyncio.create_task(self._compare_all_stale())
        return self._comparison

    async def _compare_all_stale(self) -> None:
        try:
            await asyncio.gather(*self._loading.values(), return_exceptions=True)
            while self._stale:
                folder = self._folders.get(self._stale.pop())
                if folder is not None:
                    await self._compare(folder)
        finally:
            self._comparison = None

    async def _compare(self, folder: CachedFolder) -> None:
        """Compare a folder with the index and apply the differences. Raises MailError if it cannot be read."""
        _log.warning("folder %s: changes missed; comparing with the index", ids.folder_label(folder.id))
        try:
            row, rows = await self._threads.run(self._rows, folder.id)
        except MailError as error:
            if error.reason is not Reason.NO_SUCH_FOLDER:
                self._stale.add(folder.id)
                raise
            self.remove(folder.id)
            return
        if row.highestmodseq > folder.modseq and not folder.is_removed:
            columns = columns_of(rows, folder.keywords)
            changes = differences(folder.columns, columns, folder.modseq, row.highestmodseq)
            folder.replace(columns, row.highestmodseq, row.uidnext, changes)

    # --- memory ----------------------------------------------------------------------------------------------------

    def shrink(self) -> None:
        """Enforce the limit, least recently used first: derived values are dropped, then folders without listeners."""
        excess = sum(folder.cost + folder.derived_cost for folder in self._folders.values()) - self.limit
        if excess <= 0:
            return
        for folder in self._folders.values():
            excess -= folder.derived_cost
            folder.drop_derived()
            if excess <= 0:
                return
        for folder in [folder for folder in self._folders.values() if not folder.subscriptions]:
            excess -= folder.cost
            self._forget(folder)
            if excess <= 0:
                return

    def drop_unused(self, unused_since: float) -> bool:
        """Drop what was not used since then (monotonic clock), except the columns of folders with listeners.

        True if that freed memory.
        """
        freed = False
        for folder in list(self._folders.values()):
            if folder.derived_used_at < unused_since:
                is_unused = folder.used_at < unused_since and not folder.subscriptions
                freed = freed or is_unused or folder.derived_cost > 0
                folder.drop_derived()
                if is_unused:
                    self._forget(folder)
        return freed

    def _forget(self, folder: CachedFolder) -> None:
        folder.drop_derived()
        del self._folders[folder.id]
        self.tracked.discard(folder.id)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("folders: comparison with the index failed (%s); retrying at the next command", error)


def _no_such_folder(folder_id: int) -> MailError:
    return MailError(Reason.NO_SUCH_FOLDER, ids.folder_label(folder_id))
