"""An IMAP edge's view of a store, open for the length of a block, and what listens to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from adapter.read_model.cached_folder import CachedFolder
from adapter.read_model.fetch.stream import Fetch
from adapter.read_model.mailboxes import CacheLimits, MailboxCache
from adapter.store.queries import mailboxes as queries
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
    """Records the changes it is notified of."""

    def __init__(self) -> None:
        self.changes: list[FolderChange] = []
        self.removed = 0
        self._notified = asyncio.Event()

    def folder_changed(self, changes: Sequence[FolderChange]) -> None:
        assert changes
        self.changes += changes
        self._notified.set()

    def folder_removed(self) -> None:
        self.removed += 1
        self._notified.set()

    async def changed(self) -> None:
        """Wait for the next notification."""
        await asyncio.wait_for(self._notified.wait(), PATIENCE)
        self._notified.clear()


async def open_folder(mailboxes: MailboxCache, name: str = "INBOX", address: str = ADA) -> CachedFolder:
    account = await mailboxes.account(address)
    return await mailboxes.folder(account.folders[name].id)


def assert_fresh(transport: Transport, state: CachedFolder) -> None:
    """Compare the cached folder with the index."""
    with transport.reading() as connection:
        folder = queries.folder_by_id(connection, state.id)
        stored = queries.rows(connection, state.id)
    assert folder is not None
    assert (state.uidvalidity, state.uidnext, state.modseq) == (
        folder.uidvalidity,
        folder.uidnext,
        folder.highestmodseq,
    )
    columns = state.columns
    assert list(columns.uids) == [row.uid for row in stored]
    assert list(columns.modseqs) == [row.modseq for row in stored]
    assert list(columns.internal_dates) == [row.internal_date for row in stored]
    assert list(columns.save_dates) == [row.saved_at for row in stored]
    assert list(columns.sizes) == [row.size for row in stored]
    names = [set(map(str.lower, state.flags.names(mask))) for mask in columns.masks]
    system = {1: "\\seen", 2: "\\answered", 4: "\\flagged", 8: "\\deleted", 16: "\\draft"}
    assert names == [
        {name for bit, name in system.items() if row.flags & bit} | set(row.keywords.lower().split()) for row in stored
    ]


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


async def notified(transport: Transport, change: Callable[[], object]) -> None:
    """Make a change of the store and wait until every earlier subscriber has been notified."""
    loop, published = asyncio.get_running_loop(), asyncio.Event()

    def receive(records: object) -> None:
        loop.call_soon_threadsafe(published.set)  # after what the listeners before this one gave the loop to do

    subscription = await asyncio.to_thread(transport.changes.subscribe, receive)
    try:
        await asyncio.to_thread(change)
        await asyncio.wait_for(published.wait(), PATIENCE)
    finally:
        subscription.close()
