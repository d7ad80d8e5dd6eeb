"""Caches follow what other processes commit."""

from __future__ import annotations

import asyncio

from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.imap.flags import DELETED, SEEN
from tests.support.mailboxes import Listener, assert_fresh, open_folder, open_mailboxes
from tests.support.messages import message
from tests.support.processes import run_elsewhere
from tests.support.stores import ADA, append, deliver, folder
from tests.support.waiting import until


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
