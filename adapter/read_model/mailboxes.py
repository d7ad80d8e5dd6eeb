"""What the IMAP edge knows of the store: one :class:`Mailboxes` per process, shared by all sessions.

    mailboxes = Mailboxes(transport, commits, CacheLimits())
    await mailboxes.start()                                      # on the loop all sessions run on

    account = await mailboxes.account("ada@example.test")        # folders and subscriptions, no query when warm
    state = await mailboxes.folder(account.folders["INBOX"].id)  # columns of the folder, microseconds when warm
    watch = state.subscribe(session)                             # session.folder_changed(changes) / .folder_removed()
    done = await mailboxes.commit(op.ChangeFlags(…))             # the cache shows it when this returns
    async for chunk in mailboxes.fetch(state, rows, items, dialect).chunks():
        await connection.write(chunk)
    uids = await mailboxes.search(state, program)
    watch.close()

Everything here belongs to the event loop's thread; what blocks is done on threads of its own. Whatever reads or writes
raises :class:`~protocol.errors.MailError`.

Changes are learned of in two ways: from the change feed, and, for those of this process's sessions, from the effects of
the operation itself as soon as it is durable. Both end in the same place, which applies each change once.

Invariant: whatever was acknowledged before a command came, by any process, is in the caches when the command is
answered. A session compares :attr:`Mailboxes.is_behind` at the start of each command and, rarely, awaits
:meth:`Mailboxes.catch_up`; sessions that send no command cost nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from adapter.read_model.account_cache import Account, AccountCache
from adapter.read_model.bodies import Bodies
from adapter.read_model.encoded_attributes import PieceReader
from adapter.read_model.fetch_stream import Fetch
from adapter.read_model.folder_cache import FolderCache, FolderListener, FolderState, Watch
from adapter.read_model.folder_columns import FolderEffect
from adapter.read_model.recent import RecentMarks
from adapter.read_model.search_engine import FolderSource, Searcher
from adapter.read_model.thread_pool import Threads, give_back_memory
from adapter.search.indexer import TextFiller
from adapter.search.text_index import TextIndex
from adapter.search.text_source import TextReader
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
from adapter.store.queries import mailboxes
from adapter.store.queries.mailboxes import Folder
from adapter.transport.changes import Subscription
from adapter.transport.commit_queue import CommitQueue
from adapter.transport.operations.base import Operation, Plan
from adapter.transport.staging import Staged
from adapter.transport.transport import Transport
from protocol.imap.commands.fetch_items import FetchItem
from protocol.imap.search.program import Program, search
from protocol.imap.search.sort import SortCriterion
from protocol.imap.search.thread import Forest
from protocol.imap.session_view import Rows, View
from protocol.imap.wire.lexer import Dialect

__all__ = ["Account", "CacheLimits", "Fetch", "FolderListener", "FolderState", "Mailboxes", "Watch"]

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

# Seconds for a pass of the change feed, after which the caches are compared with the index instead.
_PATIENCE = 5.0
_THREADS = 4
_SEARCH_THREADS = 2
_COUNT_FROM = "SELECT count(*) FROM mailbox_projections WHERE folder_id = ? AND uid >= ?"
_SIZES = "SELECT message_id, size FROM messages WHERE message_id IN (SELECT value FROM json_each(?))"


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Memory, in octets, that the caches of one process may use: ``cache_…`` of the settings."""

    folders: int = 64 << 20  # columns and encoded pieces; folders that are selected keep their columns
    bodies: int = 32 << 20  # octets of small messages, read lately or ahead
    texts: int = 32 << 20  # folded texts that the text index does not have yet
    idle: float = 120.0  # seconds without use after which pieces, bodies and texts are let go


class Mailboxes:
    def __init__(self, transport: Transport, commits: CommitQueue, limits: CacheLimits | None = None) -> None:
        self._transport = transport
        self._commits = commits
        self._limits = limits or CacheLimits()
        self._text_index = TextIndex(transport.root)
        self._threads = Threads("imap", _THREADS, self._thread_idle, self._limits.idle)
        self._search_threads = Threads("search", _SEARCH_THREADS, self._thread_idle, self._limits.idle)
        self._accounts = AccountCache(transport, self._threads)
        self._folders = FolderCache(transport, self._threads, self._limits.folders)
        self._pieces = PieceReader(transport, self._threads, self._folders.shrink)
        self._bodies = Bodies(transport, self._threads, self._limits.bodies)
        self._texts = TextReader(transport, self._text_index, self._limits.texts)
        self.recent = RecentMarks(transport)
        self._filler = TextFiller(transport, self._text_index, self._texts)
        self._searcher = Searcher(transport, self._pieces, self._text_index, self._texts, self._filler)
        self._feed: Subscription | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._upkeep: asyncio.Task[None] | None = None
        self._seen = 0  # every record up to this one is in the caches
        self._seen_early: set[int] = set()  # records after that which are, too: commits of our own sessions
        self._pass: asyncio.Future[bool] | None = None  # a pass of the feed that was asked for; False: it failed

    async def start(self) -> None:
        """Follow the change feed, begin to fill the text index. Call once, on the loop of all sessions."""
        self._loop = asyncio.get_running_loop()
        self._feed = await self._threads.run(self._transport.changes.subscribe, self._heard, None, self._missed)
        await self._threads.run(self.recent.open)
        self._seen = max(self._seen, self._feed.seq)
        self._filler.start()
        self._upkeep = asyncio.create_task(self._keep_small())

    async def close(self) -> None:
        """Stop all of that. Sessions must be gone."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None
        if self._upkeep is not None:
            self._upkeep.cancel()
        loop = asyncio.get_running_loop()
        for part in (self._filler, self._search_threads, self._threads, self._text_index):
            await loop.run_in_executor(None, part.close)
        self.recent.close()

    async def _keep_small(self) -> None:
        """Let go of what nobody used for a while."""
        while True:
            await asyncio.sleep(self._limits.idle / 4)
            since = time.monotonic() - self._limits.idle
            freed = [cache.let_go(since) for cache in (self._folders, self._bodies, self._texts)]
            if any(freed):
                await self._threads.run(give_back_memory)

    def _thread_idle(self) -> None:
        """On a thread that has had nothing to do for a while: pages of the databases need not be kept."""
        with contextlib.suppress(sqlite3.Error):
            self._transport.index.query("PRAGMA shrink_memory")
            self._text_index.shrink()
        give_back_memory()

    def keep_to(self, limits: CacheLimits) -> None:
        """These limits hold from now on."""
        self._limits = limits
        self._folders.limit, self._bodies.limit, self._texts.limit = limits.folders, limits.bodies, limits.texts
        self._threads.idle = self._search_threads.idle = limits.idle
        if self._upkeep is not None:
            self._upkeep.cancel()
            self._upkeep = asyncio.create_task(self._keep_small())

    # --- accounts --------------------------------------------------------------------------------------------------

    async def account(self, address: str) -> Account:
        """Folders and subscriptions of an active address. Raises ``NO_SUCH_ADDRESS`` or ``INACTIVE_ADDRESS``."""
        return await self._accounts.get(address)

    async def status(self, address: str) -> Mapping[str, Folder]:
        """The same folders with exact counters, for STATUS and LIST-STATUS: one query after a change, else none."""
        return (await self._accounts.get(address, counted=True)).folders

    async def folder(self, folder_id: int) -> FolderState:
        """The state of a folder, loaded if it has to be. Raises ``NO_SUCH_FOLDER``.

        It is kept up to date while somebody subscribes to it: subscribe before the next ``await``.
        """
        return await self._folders.get(folder_id)

    async def count_from(self, folder_id: int, uid: int) -> int:
        """Messages of a folder from this UID on."""
        return int((await self._threads.run(self._transport.index.query, _COUNT_FROM, (folder_id, uid)))[0][0])

    async def vanished(self, folder_id: int, modseq: int) -> list[str]:
        """UIDs expunged after a mod-sequence (RFC 7162 3.2.5), as sequence sets, oldest first."""
        return await self._threads.run(self._expunged, folder_id, modseq)

    def _expunged(self, folder_id: int, modseq: int) -> list[str]:
        with self._transport.reading() as connection:
            return mailboxes.expunged_since(connection, folder_id, modseq)

    # --- changes ---------------------------------------------------------------------------------------------------

    async def commit(self, operation: Operation[Result]) -> Result:
        """Run an operation; when this returns, accounts and folders show it and listeners were told."""
        observed = _Observed(operation)
        result = await self._transport.commit(observed)
        await self._show(observed)
        return result

    async def commit_staged(self, prepare: Callable[[], Operation[Result]], size: int) -> Result:
        """The same for the operation that ``prepare`` makes of so many octets, on a thread (APPEND)."""
        made: list[_Observed[Result]] = []

        def observe() -> Operation[Result]:
            made.append(_Observed(prepare()))
            return made[0]

        result = await self._commits.run(observe, size)
        await self._show(made[0])
        return result

    async def _show(self, operation: _Observed[Any]) -> None:
        """Make the effects of an operation that is durable visible, without waiting for the feed."""
        effects = operation.effects
        for effect in effects:
            self._note(effect)
        unknown = self._unknown_sizes(effects)
        sizes = _sizes(effects)
        if unknown:
            sizes |= await self._threads.run(self._read_sizes, unknown)
        for folder_id, changes in _by_folder(effects).items():
            await self._folders.committed(folder_id, changes, sizes)
        if operation.seq > self._seen:
            self._seen_early.add(operation.seq)
            self._note_seen(self._seen)

    @property
    def is_behind(self) -> bool:
        """Whether something may have been acknowledged that the caches do not show. Costs no query."""
        return self._transport.published_seq() > self._seen or not self._folders.is_settled

    async def catch_up(self) -> None:
        """Wait until the caches show everything that was acknowledged before this call, by whichever process."""
        wanted = self._transport.published_seq()
        for _ in range(2):  # a pass that others asked for may have begun before, the next one has not
            if self._seen >= wanted:
                break
            done, _late = await asyncio.wait((self._next_pass(),), timeout=_PATIENCE)
            if not any(answer.result() for answer in done):
                _log.warning("change feed: no pass; comparing the caches with the index")
                self._forget()
                break
        await self._folders.settle()

    def _next_pass(self) -> asyncio.Future[bool]:
        if self._pass is None:
            loop = asyncio.get_running_loop()
            self._pass = loop.create_future()

            def passed(seq: int | None) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(self._passed, seq)

            self._transport.changes.when_caught_up(passed)
        return self._pass

    def _passed(self, seq: int | None) -> None:
        """The feed has given us everything up to this record; None: it cannot read."""
        done, self._pass = self._pass, None
        if seq is not None:
            self._note_seen(seq)
        if done is not None and not done.done():
            done.set_result(seq is not None)

    def _note_seen(self, seq: int) -> None:
        """The caches show every record up to this one."""
        self._seen = max(self._seen, seq)
        while self._seen + 1 in self._seen_early:
            self._seen += 1
        if self._seen_early:
            self._seen_early = {early for early in self._seen_early if early > self._seen}

    def _heard(self, records: list[Record]) -> None:
        """On the feed's thread."""
        effects = [effect for record in records for effect in record.effects]
        sizes = _sizes(effects)
        unknown = self._unknown_sizes(effects)
        if unknown:
            try:
                sizes |= self._read_sizes(unknown)
            except sqlite3.Error as error:
                _log.error("sizes of messages that came cannot be read: %s", error)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._apply, effects, sizes, records[-1].seq)

    def _missed(self, after: int, upto: int) -> None:
        """On the feed's thread: nobody can tell what changed meanwhile."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._read_again)

    def _read_again(self) -> None:
        self._forget()
        self._folders.settle_soon()

    def _forget(self) -> None:
        """The caches may have missed any change."""
        self._accounts.forget()
        self._folders.distrust()

    def _apply(self, effects: list[Effect], sizes: dict[str, int], seq: int) -> None:
        for effect in effects:
            self._note(effect)
        self._filler.add([effect.message_id for effect in effects if isinstance(effect, AddContent)])
        for effect in effects:
            if isinstance(effect, DropContent):
                self._filler.remove(effect.message_ids)
        for folder_id, changes in _by_folder(effects).items():
            self._folders.apply(folder_id, changes, sizes)
        self._note_seen(seq)

    def _note(self, effect: Effect) -> None:
        self._accounts.note(effect)
        if isinstance(effect, SetRegistration) and effect.status != "active":
            self._folders.remove_account(effect.registration)

    def _unknown_sizes(self, effects: Iterable[Effect]) -> list[str]:
        """Messages that come into folders in memory but are not new, so their effects do not tell their sizes."""
        known = {effect.message_id for effect in effects if isinstance(effect, AddContent)}
        return [
            row.message_id
            for effect in effects
            if isinstance(effect, Project) and effect.folder in self._folders.wanted
            for row in effect.rows
            if row.message_id not in known
        ]

    def _read_sizes(self, message_ids: list[str]) -> dict[str, int]:
        return dict(self._transport.index.query(_SIZES, (orjson.dumps(message_ids).decode(),)))

    # --- reading ---------------------------------------------------------------------------------------------------

    def fetch(
        self, state: FolderState, rows: Rows, items: Sequence[FetchItem], dialect: Dialect, view: View | None = None
    ) -> Fetch:
        """The FETCH responses of these messages, see :class:`Fetch`; ``view``: of the session that asks."""
        return Fetch(state, rows, items, dialect, self._pieces, self._bodies, view)

    async def search(
        self, state: FolderState, program: Program, advanced: Callable[[int], None] | None = None
    ) -> Sequence[int]:
        """UIDs that match, ascending; ``view.visible`` leaves out what the session does not know yet.

        Searches take turns: one that takes long does not keep others waiting, and ends when nobody waits for it.
        ``advanced`` is told of such a one, at every turn, how many texts it has read.
        """
        source = self._source(state)
        steps = search(program, source)
        while (found := await self._search_threads.run(self._searcher.advance, steps)) is None:
            if advanced is not None:
                advanced(source.read)
        self._folders.shrink()
        return found

    async def sort(self, state: FolderState, criteria: Sequence[SortCriterion], uids: Sequence[int]) -> list[int]:
        """``uids`` (ascending, as a search gives them) in the order asked for (RFC 5256, RFC 5957)."""
        ordered = await self._search_threads.run(self._searcher.sort, self._source(state), criteria, uids)
        self._folders.shrink()
        return ordered

    async def thread(self, state: FolderState, algorithm: bytes, uids: Sequence[int], numbers: Sequence[int]) -> Forest:
        """The threads of ``uids`` by ``b"REFERENCES"`` or ``b"ORDEREDSUBJECT"``; the forest shows ``numbers``."""
        forest = await self._search_threads.run(self._searcher.thread, self._source(state), algorithm, uids, numbers)
        self._folders.shrink()
        return forest

    def _source(self, state: FolderState) -> FolderSource:
        return FolderSource(state, self._searcher)


class _Observed(Operation[Result]):
    """An operation whose effects are known afterwards: those of its last plan, should it be planned again."""

    name = ""  # of the operation observed

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


def _sizes(effects: Iterable[Effect]) -> dict[str, int]:
    return {effect.message_id: effect.size for effect in effects if isinstance(effect, AddContent)}


def _by_folder(effects: Iterable[Effect]) -> dict[int, list[FolderEffect]]:
    found: dict[int, list[FolderEffect]] = {}
    for effect in effects:
        if isinstance(effect, Project | Unproject | SetFlags | RemoveFolder):
            found.setdefault(effect.folder, []).append(effect)
    return found
