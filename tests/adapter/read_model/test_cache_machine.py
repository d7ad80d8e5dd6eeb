"""Random operations, by sessions and by other processes: after each batch the cache equals the index, and so does the
view of a listener that applied the reported changes."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from adapter.read_model.cached_folder import CachedFolder
from adapter.read_model.folder_columns import FolderColumns, Keywords, columns_of
from adapter.read_model.mailboxes import MailboxCache
from adapter.store.effects import FlagChange
from adapter.store.queries import mailboxes
from adapter.transport import operations as op
from adapter.transport.operations.base import Operation
from adapter.transport.transport import Transport
from protocol.imap.session_view import Emission, FolderChange, View
from protocol.imap.wire.lexer import Dialect
from tests.support.mailboxes import open_mailboxes
from tests.support.messages import message
from tests.support.stores import ADA, append, new_store

FOLDERS = ("INBOX", "Archive", "Drafts")
WORDS = ("$Junk", "a", "B")

some_uids = st.lists(st.integers(1, 9), min_size=1, max_size=6, unique=True).map(sorted)
some_flags = st.integers(0, 31)
some_words = st.lists(st.sampled_from(WORDS), max_size=3, unique=True)
some_folder = st.sampled_from(FOLDERS)


class Client:
    """A listener that knows the folder only from the reported changes."""

    def __init__(self, state: CachedFolder) -> None:
        self.state = state
        self.view = View(state.uids, state.modseq, state.flags, Dialect(condstore=True, qresync=True))
        self.masks = dict(zip(state.uids, state.columns.masks))
        self.modseq = state.modseq
        self.watch = state.subscribe(self)

    def folder_changed(self, changes: Sequence[FolderChange]) -> None:
        for change in changes:
            assert change.modseq > self.modseq
            self.modseq = change.modseq
            assert set(change.expunged) <= self.masks.keys() | set(range(1, 1000))
            self.view.apply(change)
        for change in changes:
            for uid in change.expunged:
                self.masks.pop(uid, None)
        for uid in changes[-1].uids:
            if uid not in self.masks:
                self.masks[uid] = self.state.masks([uid])[0]
        for change in changes:
            for uid in change.flagged:
                if uid in self.masks:
                    self.masks[uid] = self.state.masks([uid])[0]

    def folder_removed(self) -> None:
        raise AssertionError("no folder is deleted here")


class CacheMachine(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.scope = ExitStack()
        self.runner = self.scope.enter_context(asyncio.Runner())
        root = tempfile.mkdtemp(prefix="cache-machine-", dir="/dev/shm")
        self.scope.callback(shutil.rmtree, root)
        self.transport: Transport = self.scope.enter_context(new_store(f"{root}/store", ADA))
        append(self.transport, "INBOX", *[message(str(number)) for number in range(4)], flags=5, keywords=("a", "B"))
        self.edge = AsyncExitStack()
        self.runner.run(self._open())

    async def _open(self) -> None:
        self.mailboxes: MailboxCache = await self.edge.enter_async_context(open_mailboxes(self.transport))
        account = await self.mailboxes.account(ADA)
        self.ids = {name: account.folders[name].id for name in FOLDERS}
        self.clients = {name: Client(await self.mailboxes.folder(self.ids[name])) for name in ("INBOX", "Archive")}

    def teardown(self) -> None:
        if hasattr(self, "scope"):
            self.runner.run(self.edge.aclose())
            self.scope.close()

    # --- what happens ----------------------------------------------------------------------------------------------

    def _do(self, by_session: bool, *operations: Operation[Any]) -> None:
        async def run() -> None:
            if by_session:
                await asyncio.gather(*map(self.mailboxes.commit, operations), return_exceptions=True)
            else:
                waiting = [asyncio.wrap_future(self.transport.submit(operation)) for operation in operations]
                await asyncio.gather(*waiting, return_exceptions=True)

        self.runner.run(run())

    @rule(by_session=st.booleans(), name=some_folder, count=st.integers(1, 3), flags=some_flags, words=some_words)
    def append(self, by_session: bool, name: str, count: int, flags: int, words: list[str]) -> None:
        items = [
            op.AppendItem(self.transport.stage(message(f"{number}")), flags, words, 1000 + number)
            for number in range(count)
        ]
        self._do(by_session, op.Append(ADA, name, items))

    @rule(by_session=st.booleans(), count=st.integers(1, 4))
    def deliver(self, by_session: bool, count: int) -> None:
        staged = [self.transport.stage(message(f"{number}")) for number in range(count)]
        self._do(by_session, *[op.Deliver(one, "x@y.test", [ADA]) for one in staged])

    @rule(
        by_session=st.booleans(),
        name=some_folder,
        uids=some_uids,
        how=st.sampled_from(("add", "remove", "set")),
        flags=some_flags,
        words=some_words,
    )
    def flag(self, by_session: bool, name: str, uids: list[int], how: FlagChange, flags: int, words: list[str]) -> None:
        self._do(by_session, op.ChangeFlags(ADA, self.ids[name], uids, how, flags, words))

    @rule(by_session=st.booleans(), source=some_folder, to=some_folder, uids=some_uids, move=st.booleans())
    def copy(self, by_session: bool, source: str, to: str, uids: list[int], move: bool) -> None:
        kind = op.Move if move else op.Copy
        self._do(by_session, kind(ADA, self.ids[source], uids, to))

    @rule(by_session=st.booleans(), name=some_folder, uids=st.none() | some_uids)
    def expunge(self, by_session: bool, name: str, uids: list[int] | None) -> None:
        self._do(by_session, op.Expunge(ADA, self.ids[name], uids))

    @rule(by_session=st.booleans(), name=some_folder, uids=some_uids, flags=some_flags)
    def several_at_once(self, by_session: bool, name: str, uids: list[int], flags: int) -> None:
        folder = self.ids[name]
        self._do(
            by_session,
            op.ChangeFlags(ADA, folder, uids, "add", flags),
            op.Copy(ADA, folder, uids, "INBOX"),
            op.ChangeFlags(ADA, folder, uids, "remove", flags),
            op.Expunge(ADA, folder),
        )

    @rule()
    def forget(self) -> None:
        self.mailboxes._folders.drop_unused(float("inf"))

    # --- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def the_cache_is_true(self) -> None:
        if hasattr(self, "clients"):
            for name, client in self.clients.items():
                self.runner.run(self._check(name, client))

    async def _check(self, name: str, client: Client) -> None:
        with self.transport.reading() as connection:
            folder = mailboxes.folder_by_id(connection, self.ids[name])
            rows = mailboxes.rows(connection, self.ids[name])
        assert folder is not None
        state = client.state
        assert await state.wait_for(folder.highestmodseq)
        assert await self.mailboxes.folder(state.id) is state
        table = Keywords()
        for keyword in state.flags.keywords:
            table.bits([keyword])
        fresh = columns_of(
            [(r.uid, r.flags, r.keywords, r.modseq, r.internal_date, r.saved_at, r.size) for r in rows], table
        )
        assert state.columns == fresh
        assert (state.uidnext, state.modseq) == (folder.uidnext, folder.highestmodseq)
        self._check_client(client, state.columns)

    def _check_client(self, client: Client, columns: FolderColumns) -> None:
        assert client.masks == dict(zip(columns.uids, columns.masks))
        assert client.modseq == client.state.modseq
        client.view.flush(Emission.ALL, client.state)
        assert client.view.uids is columns.uids
        assert not client.view.pending


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=40, stateful_step_count=20)
