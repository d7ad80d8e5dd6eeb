"""Change follower: keeps the caches of a process up to date with what is committed, by any process.

It learns of a change from the change feed, and of a change of this process's own as soon as the operation is durable.
Either way the change ends up in the same place, which applies it once.

Invariant: everything acknowledged before a command was received, by any process, is in the caches when the command is
answered. A session compares :attr:`ChangeFollower.is_behind` at the start of each command and, rarely, awaits
:meth:`ChangeFollower.catch_up`; a session without commands costs nothing. Without the feed (one process reads once,
see :meth:`ChangeFollower.start`) the caches are valid until anything is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Iterable
from typing import Any, TypeVar

from adapter.read_model.account_cache import AccountCache
from adapter.read_model.folder_cache import FolderCache
from adapter.read_model.folder_columns import FolderEffect
from adapter.read_model.thread_pool import ThreadPool
from adapter.search.indexer import TextIndexer
from adapter.store.effects import (
    AddContent,
    DropContent,
    Effect,
    Project,
    RemoveFolder,
    SetFlags,
    SetRegistration,
    Unproject,
)
from adapter.store.journal import Record
from adapter.store.queries import messages
from adapter.transport.changes import Subscription
from adapter.transport.operations.base import Operation, Plan
from adapter.transport.staging import Staged
from adapter.transport.transport import Transport

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

# If a pass of the change feed takes longer, the caches are compared with the index instead.
_FEED_TIMEOUT_SECONDS = 5.0


class ObservedOperation(Operation[Result]):
    """An operation that records its effects: those of its last plan, should it be planned again."""

    name = ""  # that of the operation

    def __init__(self, operation: Operation[Result]) -> None:
        self._operation = operation
        self.name = operation.name  # type: ignore[misc]
        self.effects: list[Effect] = []
        self.seq = 0  # of its record; 0: it changed nothing

    def addresses(self) -> Iterable[str]:
        return self._operation.addresses()

    def staged_content(self) -> Iterable[Staged]:
        return self._operation.staged_content()

    def plan(self, plan: Plan) -> Result:
        result = self._operation.plan(plan)
        self.effects = plan.effects
        return result

    def committed(self, seq: int) -> None:
        self.seq = seq


class ChangeFollower:
    """Used from the loop's thread, except for what the feed calls."""

    def __init__(
        self,
        transport: Transport,
        threads: ThreadPool,
        accounts: AccountCache,
        folders: FolderCache,
        indexer: TextIndexer,
    ) -> None:
        self._transport = transport
        self._threads = threads
        self._accounts = accounts
        self._folders = folders
        self._indexer = indexer
        self._feed: Subscription | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shown_seq = 0  # the caches show every record up to this one
        self._shown_early: set[int] = set()  # and these later ones, committed by sessions of this process
        self._pass: asyncio.Future[bool] | None = None  # a requested pass of the feed; False: it failed

    async def start(self) -> None:
        """Follow the change feed from now on."""
        self._loop = asyncio.get_running_loop()
        self._feed = await self._threads.run(self._transport.changes.subscribe, self._on_records, None, self._on_gap)
        self._shown_seq = max(self._shown_seq, self._feed.seq)

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    # --- before a command ------------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        return self._transport.published_seq() > self._shown_seq or not self._folders.is_settled

    async def catch_up(self) -> None:
        """Wait until the caches show everything that was acknowledged before this call, by any process."""
        published = self._transport.published_seq()
        if self._feed is None:
            if self._shown_seq < published:
                self._folders.forget_unwatched()
                self._distrust_caches()
                self._shown_seq = published
        else:
            for _ in range(2):  # a pass requested by others may have begun before this call, the next one has not
                if self._shown_seq >= published:
                    break
                done, _late = await asyncio.wait((self._next_pass(),), timeout=_FEED_TIMEOUT_SECONDS)
                if not any(passed.result() for passed in done):
                    _log.warning("change feed: no pass within the timeout; comparing the caches with the index")
                    self._distrust_caches()
                    break
        await self._folders.compare_stale()

    def _next_pass(self) -> asyncio.Future[bool]:
        if self._pass is None:
            loop = asyncio.get_running_loop()
            self._pass = loop.create_future()

            def passed(seq: int | None) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._on_pass, seq)

            self._transport.changes.when_caught_up(passed)
        return self._pass

    def _on_pass(self, seq: int | None) -> None:
        """Handle a pass: the feed has delivered everything up to this record; None: it cannot read."""
        done, self._pass = self._pass, None
        if seq is not None:
            self._advance(seq)
        if done is not None and not done.done():
            done.set_result(seq is not None)

    def _advance(self, seq: int) -> None:
        self._shown_seq = max(self._shown_seq, seq)
        while self._shown_seq + 1 in self._shown_early:
            self._shown_seq += 1
        if self._shown_early:
            self._shown_early = {early for early in self._shown_early if early > self._shown_seq}

    # --- own changes -----------------------------------------------------------------------------------------------

    async def show(self, operation: ObservedOperation[Any]) -> None:
        """Apply the effects of a durable operation of this process, without waiting for the feed."""
        effects = operation.effects
        for effect in effects:
            self._apply_to_accounts(effect)
        sizes = _sizes(effects)
        if missing := self._missing_sizes(effects):
            sizes |= await self._threads.run(self._read_sizes, missing)
        for folder_id, changes in _by_folder(effects).items():
            await self._folders.apply_own(folder_id, changes, sizes)
        if operation.seq > self._shown_seq:
            self._shown_early.add(operation.seq)
            self._advance(self._shown_seq)

    # --- the feed --------------------------------------------------------------------------------------------------

    def _on_records(self, records: list[Record]) -> None:
        """On the feed's thread."""
        effects = [effect for record in records for effect in record.effects]
        sizes = _sizes(effects)
        if missing := self._missing_sizes(effects):
            try:
                sizes |= self._read_sizes(missing)
            except sqlite3.Error as error:
                _log.error("index: message sizes unreadable (%s); comparing folders with the index", error)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._apply, effects, sizes, records[-1].seq)

    def _on_gap(self, after: int, upto: int) -> None:
        """On the feed's thread: records were removed before they were read."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._compare_caches)

    def _compare_caches(self) -> None:
        self._distrust_caches()
        self._folders.compare_soon()

    def _distrust_caches(self) -> None:
        """The caches may have missed any change."""
        self._accounts.forget()
        self._folders.distrust()

    def _apply(self, effects: list[Effect], sizes: dict[str, int], seq: int) -> None:
        for effect in effects:
            self._apply_to_accounts(effect)
        self._indexer.add([effect.message_id for effect in effects if isinstance(effect, AddContent)])
        for effect in effects:
            if isinstance(effect, DropContent):
                self._indexer.remove(effect.message_ids)
        for folder_id, changes in _by_folder(effects).items():
            self._folders.apply(folder_id, changes, sizes)
        self._advance(seq)

    def _apply_to_accounts(self, effect: Effect) -> None:
        self._accounts.apply(effect)
        if isinstance(effect, SetRegistration) and effect.status != "active":
            self._folders.remove_account(effect.registration)

    def _missing_sizes(self, effects: Iterable[Effect]) -> list[str]:
        """Return messages that are projected into cached folders but are not new: no effect has their sizes."""
        new = {effect.message_id for effect in effects if isinstance(effect, AddContent)}
        return [
            row.message_id
            for effect in effects
            if isinstance(effect, Project) and effect.folder in self._folders.tracked
            for row in effect.rows
            if row.message_id not in new
        ]

    def _read_sizes(self, message_ids: list[str]) -> dict[str, int]:
        return self._transport.index.ask(messages.sizes, message_ids)


def _sizes(effects: Iterable[Effect]) -> dict[str, int]:
    return {effect.message_id: effect.size for effect in effects if isinstance(effect, AddContent)}


def _by_folder(effects: Iterable[Effect]) -> dict[int, list[FolderEffect]]:
    folders: dict[int, list[FolderEffect]] = {}
    for effect in effects:
        if isinstance(effect, Project | Unproject | SetFlags | RemoveFolder):
            folders.setdefault(effect.folder, []).append(effect)
    return folders
