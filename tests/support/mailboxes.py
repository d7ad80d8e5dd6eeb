"""An IMAP edge's view of a store, open for the length of a block, and what listens to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from adapter.read_model.cached_folder import CachedFolder
from adapter.read_model.fetch.stream import Fetch
from adapter.read_model.mailboxes import CacheLimits, MailboxCache
from adapter.transport.commit_queue import CommitQueue
from adapter.transport.transport import Transport
from protocol.imap.commands.fetch_items import FetchItem
from protocol.imap.session_view import FolderChange, Rows
from protocol.imap.wire.lexer import PLAIN, Dialect
from tests.support.stores import ADA
from tests.support.waiting import PATIENCE


@contextlib.asynccontextmanager
async def open_mailboxes(transport: Transport, limits: CacheLimits | None = None) -> AsyncIterator[MailboxCache]:
    commits = CommitQueue(transport, 1)
    mailboxes = MailboxCache(transport, commits, limits)
    await mailboxes.start()
    try:
        yield mailboxes
    finally:
        await mailboxes.close()
        commits.close()


class Listener:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.changes: list[FolderChange] = []
        self.removed = 0
        self._told = asyncio.Event()

    def folder_changed(self, changes: Sequence[FolderChange]) -> None:
        assert changes
        self.changes += changes
        self._told.set()

    def folder_removed(self) -> None:
        self.removed += 1
        self._told.set()

    async def told(self) -> None:
        """Wait for the next word."""
        await asyncio.wait_for(self._told.wait(), PATIENCE)
        self._told.clear()


async def open_folder(mailboxes: MailboxCache, name: str = "INBOX", address: str = ADA) -> CachedFolder:
    account = await mailboxes.account(address)
    return await mailboxes.folder(account.folders[name].id)


def all_rows(state: CachedFolder) -> Rows:
    return Rows(range(1, len(state.uids) + 1), state.uids, False)


async def fetched(
    mailboxes: MailboxCache,
    state: CachedFolder,
    items: Sequence[FetchItem],
    rows: Rows | None = None,
    dialect: Dialect = PLAIN,
) -> tuple[bytes, Fetch]:
    """The whole answer, and the fetch for what it says of failures."""
    fetch = mailboxes.fetch(state, rows or all_rows(state), items, dialect)
    chunks = [chunk async for chunk in fetch.chunks()]
    assert all(len(chunk) <= 300 << 10 for chunk in chunks)
    answer = b"".join(chunks)
    again = mailboxes.fetch(state, rows or all_rows(state), items, dialect).at_once()
    assert again is None or again == answer
    return answer, fetch


async def told(transport: Transport, change: Callable[[], object]) -> None:
    """Make a change of the store and wait until everybody who listened before knows of it."""
    loop, heard = asyncio.get_running_loop(), asyncio.Event()

    def hear(records: object) -> None:
        loop.call_soon_threadsafe(heard.set)  # after what the listeners before this one gave the loop to do

    subscription = await asyncio.to_thread(transport.changes.subscribe, hear)
    try:
        await asyncio.to_thread(change)
        await asyncio.wait_for(heard.wait(), PATIENCE)
    finally:
        subscription.close()
