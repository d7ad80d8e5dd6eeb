"""The mailbox cache: the :class:`~adapter.read_model.interface.MailboxReader` over a store, one per process.

    cache = MailboxCache(transport, commits, CacheLimits())
    await cache.start()                                          # on the loop that all sessions run on

    account = await cache.account("ada@example.test")            # folders and subscriptions, no query when warm
    folder = await cache.folder(account.folders["INBOX"].id)     # columns of the folder, microseconds when warm
    subscription = folder.subscribe(session)                     # session.folder_changed(changes) / .folder_removed()
    result = await cache.commit(op.ChangeFlags(…))               # the cache shows it when this returns
    async for chunk in cache.fetch(folder, rows, items, dialect).chunks():
        await connection.write(chunk)
    uids = await cache.search(folder, program)
    subscription.close()

Everything here is used from the event loop's thread; blocking work runs on threads. Every read and write raises
:class:`~protocol.errors.MailError`. :mod:`adapter.read_model.change_follower` keeps the caches up to date.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from adapter.read_model.account_cache import AccountCache
from adapter.read_model.cached_folder import CachedFolder, cached
from adapter.read_model.change_follower import ChangeFollower, ObservedOperation
from adapter.read_model.fetch.bodies import Bodies
from adapter.read_model.fetch.encoded_attributes import AttributeLoader
from adapter.read_model.fetch.stream import Fetch
from adapter.read_model.folder_cache import FolderCache
from adapter.read_model.interface import Account, OpenFolder, StorageUse
from adapter.read_model.recent import RecentMarks
from adapter.read_model.search_engine import FolderSearchSource, SearchEngine
from adapter.read_model.stored_messages import StoredMessages
from adapter.read_model.thread_pool import ThreadPool, trim_memory
from adapter.search.indexer import TextIndexer
from adapter.search.text_index import TextIndex
from adapter.search.text_source import TextReader
from adapter.store.effects import Actor
from adapter.store.flags import parse_uids
from adapter.store.queries import mailboxes, messages, text_search
from adapter.store.queries.mailboxes import Folder
from adapter.store.quotas import Quotas, usage
from adapter.transport.commit_queue import CommitQueue
from adapter.transport.operations.base import Operation
from adapter.transport.transport import Transport
from protocol.imap.commands.fetch_items import FetchItem
from protocol.imap.search.program import Program, search
from protocol.imap.search.sort import SortCriterion
from protocol.imap.search.thread import Forest
from protocol.imap.sequence_set import Spans, merge
from protocol.imap.session_view import Rows, View
from protocol.imap.wire.lexer import Dialect

__all__ = ["CacheLimits", "MailboxCache"]

Result = TypeVar("Result")

_READ_THREADS = 4
_SEARCH_THREADS = 2
_UPLOAD_THREADS = 4


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Memory, in octets, that the caches of one process may use: ``cache_…`` of the settings."""

    folders: int = 64 << 20  # columns and encoded attributes; selected folders always keep their columns
    bodies: int = 32 << 20  # small messages, read recently or ahead
    texts: int = 32 << 20  # folded texts that are not in the text index yet
    idle: float = 120.0  # seconds without use after which attributes, bodies and texts are dropped


class MailboxCache(StoredMessages):
    def __init__(
        self,
        transport: Transport,
        commits: CommitQueue | None = None,
        limits: CacheLimits | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        """``commits``: stages messages on its threads; without it the cache's own threads do."""
        self._limits = limits or CacheLimits()
        threads = ThreadPool("imap", _READ_THREADS, self._on_idle_thread, self._limits.idle)
        super().__init__(transport, threads)
        self.quotas = quotas
        self._commits = commits
        self._text_index = TextIndex(transport.root)
        self._search_threads = ThreadPool("search", _SEARCH_THREADS, self._on_idle_thread, self._limits.idle)
        self.upload_threads = ThreadPool("upload", _UPLOAD_THREADS, self._on_idle_thread, self._limits.idle)
        self._accounts = AccountCache(transport, threads)
        self._folders = FolderCache(transport, threads, self._limits.folders)
        self._attributes = AttributeLoader(transport, threads, self._folders.shrink)
        self._bodies = Bodies(transport, threads, self._limits.bodies)
        self._texts = TextReader(transport, self._text_index, self._limits.texts)
        self._recent = RecentMarks(transport)
        self._indexer = TextIndexer(transport, self._text_index, self._texts)
        self._engine = SearchEngine(transport, self._attributes, self._text_index, self._texts, self._indexer)
        self._follower = ChangeFollower(transport, threads, self._accounts, self._folders, self._indexer)
        self._upkeep: asyncio.Task[None] | None = None

    @property
    def transport(self) -> Transport:
        return self._transport

    async def start(self) -> None:
        r"""Follow the change feed, offer ``\Recent``, fill the text index. Call once, on the loop of all sessions.

        Without it the cache serves single reads: it is valid until the next commit of any process.
        """
        await self._follower.start()
        await self._threads.run(self._recent.open)
        self._indexer.start()
        self._upkeep = asyncio.create_task(self._drop_unused())

    async def close(self) -> None:
        """Stop the threads. No session may be left."""
        self._follower.close()
        if self._upkeep is not None:
            self._upkeep.cancel()
        loop = asyncio.get_running_loop()
        for part in (self._indexer, self._search_threads, self.upload_threads, self._threads, self._text_index):
            await loop.run_in_executor(None, part.close)
        self._recent.close()

    async def _drop_unused(self) -> None:
        while True:
            await asyncio.sleep(self._limits.idle / 4)
            since = time.monotonic() - self._limits.idle
            freed = [cache.drop_unused(since) for cache in (self._folders, self._bodies, self._texts)]
            if any(freed):
                await self._threads.run(trim_memory)

    def _on_idle_thread(self) -> None:
        """Free the memory of a thread's database connections."""
        with contextlib.suppress(sqlite3.Error):
            self._transport.index.ask(text_search.shrink_memory)
            self._text_index.shrink()
        trim_memory()

    def configure(self, limits: CacheLimits, quotas: Quotas | None = None) -> None:
        """Apply settings that were reloaded."""
        self.quotas = quotas
        self._limits = limits
        self._folders.limit, self._bodies.limit, self._texts.limit = limits.folders, limits.bodies, limits.texts
        for threads in (self._threads, self._search_threads, self.upload_threads):
            threads.idle_seconds = limits.idle
        if self._upkeep is not None:
            self._upkeep.cancel()
            self._upkeep = asyncio.create_task(self._drop_unused())

    # --- changes ---------------------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        return self._follower.is_behind

    async def catch_up(self) -> None:
        await self._follower.catch_up()

    async def commit(self, operation: Operation[Result], actor: Actor | None = None) -> Result:
        """Run an operation; when this returns, accounts and folders show it and listeners were called."""
        observed = ObservedOperation(operation)
        result = await self._transport.commit(observed, actor)
        await self._follower.show(observed)
        return result

    async def commit_staged(
        self, prepare: Callable[[], Operation[Result]], size: int, actor: Actor | None = None
    ) -> Result:
        """Run the operation that ``prepare`` makes, on a thread, of so many octets (APPEND)."""
        if self._commits is None:
            return await self.commit(await self.upload_threads.run(prepare), actor)
        prepared: list[ObservedOperation[Result]] = []

        def observe() -> Operation[Result]:
            prepared.append(ObservedOperation(prepare()))
            return prepared[0]

        result = await self._commits.run(observe, size, actor)
        await self._follower.show(prepared[0])
        return result

    # --- accounts and folders --------------------------------------------------------------------------------------

    async def account(self, address: str) -> Account:
        return await self._accounts.get(address)

    async def status(self, address: str) -> Mapping[str, Folder]:
        """One query after a change, else none."""
        return (await self._accounts.get(address, counted=True)).folders

    async def storage_use(self, address: str) -> StorageUse | None:
        quota = self.quotas.of(address) if self.quotas is not None else None
        if quota is None or not quota.limited:
            return None
        octets, count = usage(list((await self.status(address)).values()))
        return StorageUse(octets, count, quota.storage, quota.messages)

    async def folder(self, folder_id: int) -> CachedFolder:
        return await self._folders.get(folder_id)

    async def vanished(self, folder_id: int, modseq: int) -> Spans:
        sets = await self._ask(mailboxes.expunged_since, folder_id, modseq)
        return merge(span for uids in sets for span in parse_uids(uids))

    def first_recent(self, folder: OpenFolder, before: int, *, claim: bool) -> int:
        if claim:
            return self._recent.claim(cached(folder), before)
        return self._recent.peek(folder.id, folder.uidvalidity, before)

    async def recent_count(self, folder: Folder) -> int:
        first = self._recent.peek(folder.id, folder.uidvalidity, folder.uidnext)
        return await self._ask(messages.count_from, folder.id, first) if first < folder.uidnext else 0

    # --- messages of an open folder --------------------------------------------------------------------------------

    def fetch(
        self, folder: OpenFolder, rows: Rows, items: Sequence[FetchItem], dialect: Dialect, view: View | None = None
    ) -> Fetch:
        return Fetch(self, cached(folder), rows, items, dialect, self._attributes, self._bodies, view)

    async def search(
        self, folder: OpenFolder, program: Program, on_progress: Callable[[int], None] | None = None
    ) -> Sequence[int]:
        """Searches run in time slices: a long one does not block others, and ends when its caller is cancelled."""
        source = self._source(folder)
        steps = search(program, source)
        while (uids := await self._search_threads.run(self._engine.advance, steps)) is None:
            if on_progress is not None:
                on_progress(source.texts_read)
        self._folders.shrink()
        return uids

    async def sort(self, folder: OpenFolder, criteria: Sequence[SortCriterion], uids: Sequence[int]) -> list[int]:
        ordered = await self._search_threads.run(self._engine.sort, self._source(folder), criteria, uids)
        self._folders.shrink()
        return ordered

    async def thread(self, folder: OpenFolder, algorithm: bytes, uids: Sequence[int], numbers: Sequence[int]) -> Forest:
        forest = await self._search_threads.run(self._engine.thread, self._source(folder), algorithm, uids, numbers)
        self._folders.shrink()
        return forest

    def _source(self, folder: OpenFolder) -> FolderSearchSource:
        return FolderSearchSource(cached(folder), self._engine)
