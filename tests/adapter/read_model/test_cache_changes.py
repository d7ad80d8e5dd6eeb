"""The folder cache: what sessions see of changes made by themselves, by others, and by other processes."""

from __future__ import annotations

import asyncio
import time
from array import array

import pytest

from adapter.read_model.cached_folder import CachedFolder
from adapter.read_model.mailboxes import CacheLimits, MailboxCache
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from protocol.imap.flags import DELETED, FLAGGED, SEEN
from protocol.imap.session_view import Emission, View
from protocol.imap.wire.lexer import PLAIN
from tests.support.mailboxes import Listener, assert_fresh, notified, open_folder, open_mailboxes
from tests.support.messages import message
from tests.support.stores import ADA, BOB, append, deliver, placed, rows
from tests.support.waiting import PATIENCE, until


async def test_own_change_is_shown_when_the_commit_returns(store: Transport) -> None:
    append(store, "INBOX", message(), message())
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        listener = Listener()
        state.subscribe(listener)
        done = await mailboxes.commit(op.ChangeFlags(ADA, state.id, [2], "add", FLAGGED, ["$Work"]))
        assert state.modseq == done.modseq
        assert state.flags.names(state.masks([2])[0]) == ["\\Flagged", "$Work"]
        assert [(change.modseq, list(change.flagged)) for change in listener.changes] == [(done.modseq, [2])]
        await mailboxes.commit(op.ChangeFlags(ADA, state.id, [1], "add", DELETED))
        gone = await mailboxes.commit(op.Expunge(ADA, state.id))
        assert gone.uids == [1]
        assert list(state.uids) == [2]
        assert [list(change.expunged) for change in listener.changes] == [[], [], [1]]
        staged = store.stage(message("later"))
        [new] = await mailboxes.commit_staged(lambda: op.Append(ADA, "INBOX", [op.AppendItem(staged)]), 0)
        assert list(state.uids) == [2, new.uid]
        assert_fresh(store, state)
        reported = len(listener.changes)
        # The feed has brought the same changes once more when it brings this one.
        await notified(store, lambda: store.run(op.Subscribe(ADA, "Elsewhere")))
        assert len(listener.changes) == reported
        assert_fresh(store, state)


async def test_changes_hidden_by_compaction_are_shown(store: Transport) -> None:
    """The process slept while another changed and compacted the store: folders and accounts are read again."""
    append(store, "INBOX", message(), message())
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        listener = Listener()
        state.subscribe(listener)
        assert "New" not in (await mailboxes.account(ADA)).folders
        with store.changes._mutex, Transport.open(store.root) as beside:
            for name in ("New", "Newer", "Newest"):
                beside.run(op.CreateFolder(ADA, name))
                beside.snapshot()
            beside.run(op.ChangeFlags(ADA, state.id, [1], "add", DELETED))
            beside.run(op.Expunge(ADA, state.id))
            deliver(beside, ADA)
            beside.snapshot()
            beside.snapshot()
        await until(lambda: list(state.uids) == [2, 3])
        assert_fresh(store, state)
        assert any(1 in change.expunged for change in listener.changes)
        assert "Newest" in (await mailboxes.account(ADA)).folders


async def test_delivery_is_reported_within_milliseconds(store: Transport) -> None:
    deliver(store, ADA)
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        listener = Listener()
        state.subscribe(listener)
        best = PATIENCE
        for _ in range(10):
            staged = store.stage(message())
            await asyncio.wrap_future(store.submit(op.Deliver(staged, "x@y.test", [ADA])))
            acknowledged = time.perf_counter()
            await listener.changed()
            best = min(best, time.perf_counter() - acknowledged)
        assert best < 0.2  # by the feed, not by polling
        assert_fresh(store, state)


async def test_view_of_a_session_follows_the_folder(store: Transport) -> None:
    append(store, "INBOX", *[message(str(number)) for number in range(5)])
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        listener = Listener()
        state.subscribe(listener)
        view = View(state.uids, state.modseq, state.flags, PLAIN)
        await mailboxes.commit(op.ChangeFlags(ADA, state.id, [2, 4], "add", DELETED))
        await mailboxes.commit(op.Expunge(ADA, state.id))
        await mailboxes.commit(op.Copy(ADA, state.id, [1], "INBOX"))
        for change in listener.changes:
            view.apply(change)
        assert view.flush(Emission.ALL, state) == b"* 4 EXPUNGE\r\n* 2 EXPUNGE\r\n* 4 EXISTS\r\n"
        assert view.uids == state.uids == array("I", [1, 3, 5, 6])


async def test_moved_message_keeps_its_size(store: Transport) -> None:
    append(store, "INBOX", message(body="x" * 999))
    async with open_mailboxes(store) as mailboxes:
        archive, inbox = await open_folder(mailboxes, "Archive"), await open_folder(mailboxes)
        await mailboxes.commit(op.Move(ADA, inbox.id, [1], "Archive"))
        assert list(archive.columns.sizes) == [rows(store, "Archive")[0].size]
        assert not inbox.uids
        assert_fresh(store, archive)


async def test_deleted_folder_is_reported_to_its_listeners(store: Transport) -> None:
    store.run(op.CreateFolder(ADA, "Short"))
    append(store, "Short", message())
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes, "Short")
        listener = Listener()
        state.subscribe(listener)
        await mailboxes.commit(op.DeleteFolder(ADA, "Short"))
        assert listener.removed == 1
        assert [list(change.expunged) for change in listener.changes] == [[1]]
        assert state.is_removed
        assert "Short" not in (await mailboxes.account(ADA)).folders
        with pytest.raises(MailError) as caught:
            await mailboxes.folder(state.id)
        assert caught.value.reason is Reason.NO_SUCH_FOLDER


async def test_deactivated_account_closes_its_folders(store: Transport) -> None:
    async with open_mailboxes(store) as mailboxes:
        mine, other = await open_folder(mailboxes), await open_folder(mailboxes, address=BOB)
        listener, bystander = Listener(), Listener()
        mine.subscribe(listener)
        other.subscribe(bystander)
        store.run(op.Deregister(ADA))
        await listener.changed()
        assert (listener.removed, bystander.removed) == (1, 0)
        with pytest.raises(MailError) as caught:
            await mailboxes.account(ADA)
        assert caught.value.reason is Reason.INACTIVE_ADDRESS


async def test_account_has_folders_subscriptions_and_counters(store: Transport) -> None:
    async with open_mailboxes(store) as mailboxes:
        first = await mailboxes.account(ADA)
        assert await mailboxes.account(ADA) is first
        await mailboxes.commit(op.CreateFolder(ADA, "Work/2026"))
        await mailboxes.commit(op.Subscribe(ADA, "Work/2026"))
        await mailboxes.commit(op.RenameFolder(ADA, "Work", "Play"))
        account = await mailboxes.account(ADA)
        assert {"Play", "Play/2026"} <= account.folders.keys()
        assert "Work" not in account.folders
        assert "Work/2026" in account.subscriptions
        inbox = await open_folder(mailboxes)
        deliver(store, ADA)
        await until(lambda: len(inbox.uids) == 1)
        status = await mailboxes.status(ADA)
        assert (status["INBOX"].messages, status["INBOX"].unseen) == (1, 1)
        await mailboxes.commit(op.ChangeFlags(ADA, status["INBOX"].id, [1], "add", SEEN))
        status = await mailboxes.status(ADA)
        assert status["INBOX"].unseen == 0
        assert await mailboxes.status(ADA) == status


async def test_changes_during_the_read_of_a_folder_are_not_lost(store: Transport) -> None:
    append(store, "INBOX", *[message(str(number)) for number in range(20)])
    async with open_mailboxes(store) as mailboxes:
        account = await mailboxes.account(ADA)
        inbox = account.folders["INBOX"].id
        for turn in range(20):
            mailboxes._folders.drop_unused(time.monotonic() + 1)
            change = op.ChangeFlags(ADA, inbox, [turn + 1], "add", FLAGGED)
            committed = asyncio.wrap_future(store.submit(change))
            await asyncio.sleep(0.0005 * (turn % 5))
            state = await mailboxes.folder(inbox)
            state.subscribe(Listener())
            done = await committed
            await state.wait_for(done.modseq)
            assert_fresh(store, state)
            state.subscriptions.clear()


async def test_gap_in_the_changes_is_filled_from_the_index(store: Transport, caplog: pytest.LogCaptureFixture) -> None:
    append(store, "INBOX", message(), message(), message())
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        listener = Listener()
        state.subscribe(listener)
        mailboxes._folders._folders.pop(state.id)  # deaf for a while
        await notified(store, lambda: store.run(op.ChangeFlags(ADA, state.id, [1], "add", SEEN)))
        await notified(store, lambda: store.run(op.ChangeFlags(ADA, state.id, [2], "add", DELETED)))
        await notified(store, lambda: store.run(op.Expunge(ADA, state.id)))
        mailboxes._folders._folders[state.id] = state
        deliver(store, ADA)
        await listener.changed()
        assert_fresh(store, state)
        assert [list(change.expunged) for change in listener.changes] == [[2], []]
        assert list(listener.changes[-1].flagged) == [1]
        assert "missed" in caplog.text


async def test_memory_is_bounded_and_folders_with_listeners_stay_current(store: Transport) -> None:
    names = [f"Folder {number}" for number in range(8)]
    for name in names:
        store.run(op.CreateFolder(ADA, name))
        append(store, name, message(), message())
    limits = CacheLimits(folders=6000)
    async with open_mailboxes(store, limits) as mailboxes:
        watched = await open_folder(mailboxes, names[0])
        watched.subscribe(Listener())
        for name in names[1:]:
            await open_folder(mailboxes, name)
        assert len(mailboxes._folders) < len(names)
        assert await open_folder(mailboxes, names[0]) is watched
        append(store, names[0], message())
        await until(lambda: len(watched.uids) == 3)
        assert_fresh(store, watched)
        again = await open_folder(mailboxes, names[1])
        assert_fresh(store, again)
        mailboxes._folders.drop_unused(time.monotonic() + 1)
        assert len(mailboxes._folders) == 1


async def test_unseen_modseq_and_vanished(store: Transport) -> None:
    append(store, "INBOX", message(), message(), message(), flags=SEEN)
    append(store, "INBOX", message())
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        assert state.first_unseen() == 4
        before = state.modseq
        await mailboxes.commit(op.ChangeFlags(ADA, state.id, [2], "set", DELETED))
        assert state.changed_since(before) == [2]
        assert state.first_unseen() == 2
        await mailboxes.commit(op.Expunge(ADA, state.id, [2]))
        assert await mailboxes.vanished(state.id, before) == [(2, 2)]
        assert list(state.masks([1, 2, 3])) == [SEEN, 0, SEEN]
        assert state.modseqs([2, 4])[0] == 0


async def test_too_many_keywords_are_not_shown(store: Transport) -> None:
    append(store, "INBOX", message(), keywords=tuple(f"k{number}" for number in range(1100)))
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        assert len(state.flags.names(state.masks([1])[0])) == 1024


async def test_concurrent_openers_of_a_folder_share_one_read(store: Transport) -> None:
    placed(deliver(store, ADA))
    async with open_mailboxes(store) as mailboxes:
        inbox = (await mailboxes.account(ADA)).folders["INBOX"].id
        first = asyncio.create_task(mailboxes.folder(inbox))
        await asyncio.sleep(0)
        first.cancel()
        states = await asyncio.gather(*[mailboxes.folder(inbox) for _ in range(5)])
        assert len({id(state) for state in states}) == 1


async def test_failed_operation_changes_nothing(store: Transport) -> None:
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        with pytest.raises(MailError):
            await mailboxes.commit(op.Copy(ADA, state.id, [1], "No such folder"))
        assert_fresh(store, state)


async def _commits(mailboxes: MailboxCache, state: CachedFolder, bits: int) -> None:
    for uid in range(1, 11):
        await mailboxes.commit(op.ChangeFlags(ADA, state.id, [uid], "add", bits))
        assert state.masks([uid])[0] & bits


async def test_concurrent_commits_are_shown_and_reported_once(store: Transport) -> None:
    append(store, "INBOX", *[message(str(number)) for number in range(10)])
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        listener = Listener()
        state.subscribe(listener)
        await asyncio.gather(*[_commits(mailboxes, state, bits) for bits in (1, 2, 4, 8, 16)])
        assert_fresh(store, state)
        modseqs = [change.modseq for change in listener.changes]
        assert modseqs == sorted(set(modseqs))
        assert len(modseqs) == 50
