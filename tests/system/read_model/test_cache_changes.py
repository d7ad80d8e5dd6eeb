"""Caches follow what other processes commit."""

from __future__ import annotations

import asyncio

from adapter.read_model.cached_folder import CachedFolder
from adapter.store.queries import mailboxes as queries
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.imap.flags import DELETED, SEEN
from tests.support.mailboxes import Listener, open_folder, open_mailboxes
from tests.support.messages import message
from tests.support.processes import run_elsewhere
from tests.support.stores import ADA, append, deliver, folder
from tests.support.waiting import until


def assert_fresh(transport: Transport, state: CachedFolder) -> None:
    """Assert that the cached state equals the index."""
    with transport.reading() as connection:
        row = queries.folder_by_id(connection, state.id)
        stored = queries.rows(connection, state.id)
    assert row is not None
    assert (state.uidvalidity, state.uidnext, state.modseq) == (row.uidvalidity, row.uidnext, row.highestmodseq)
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


def _elsewhere(root: str, folder_id: int) -> None:
    with Transport.open(root) as transport:
        deliver(transport, ADA, octets=message("from elsewhere"))
        transport.run(op.ChangeFlags(ADA, folder_id, [1], "add", SEEN, ["$Other"]))
        transport.run(op.ChangeFlags(ADA, folder_id, [2], "add", DELETED))
        transport.run(op.Expunge(ADA, folder_id))
        transport.run(op.Copy(ADA, folder_id, [1], "Archive"))
        transport.run(op.CreateFolder(ADA, "From elsewhere"))


async def test_changes_of_another_process_arrive(store: Transport) -> None:
    append(store, "INBOX", message(), message())
    async with open_mailboxes(store) as mailboxes:
        inbox, archive = await open_folder(mailboxes), await open_folder(mailboxes, "Archive")
        listener = Listener()
        inbox.subscribe(listener)
        await asyncio.to_thread(run_elsewhere, _elsewhere, store.root, inbox.id)
        await until(lambda: inbox.modseq == folder(store).highestmodseq)
        await until(lambda: len(archive.uids) == 1)
        assert_fresh(store, inbox)
        assert_fresh(store, archive)
        assert list(inbox.uids) == [1, 3]
        assert [list(change.expunged) for change in listener.changes if change.expunged] == [[2]]
        assert "From elsewhere" in (await mailboxes.account(ADA)).folders
