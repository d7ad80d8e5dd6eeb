"""The parts of the cache by themselves: columns, places, threads, and the filling of the index's cache."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.read_model.cached_folder import CachedFolder
from adapter.read_model.folder_columns import FolderColumns, Keywords, columns_of, differences
from adapter.read_model.mailboxes import CacheLimits
from adapter.read_model.thread_pool import ThreadPool
from adapter.store.queries.mailboxes import Folder
from adapter.transport import cache_fill
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from protocol.imap.commands.fetch_items import Attribute
from tests.support.mailboxes import fetched, open_folder, open_mailboxes
from tests.support.messages import message
from tests.support.stores import ADA, append, rows
from tests.support.waiting import until

uid_lists = st.lists(st.integers(1, 60), unique=True, max_size=40).map(sorted)


def state_of(uids: list[int]) -> CachedFolder:
    keywords = Keywords()
    columns = columns_of([(uid, uid % 4, "", uid * 10, 0, 0, uid) for uid in uids], keywords)
    folder = Folder(1, "r", "d", "INBOX", "", 1, uidnext=61, highestmodseq=600)
    return CachedFolder(folder, columns, keywords)


@given(uid_lists, uid_lists)
def test_values_of_existing_and_expunged_messages(there: list[int], asked: list[int]) -> None:
    state = state_of(there)
    existing = set(there)
    assert list(state.masks(asked)) == [uid % 4 if uid in existing else 0 for uid in asked]
    assert list(state.modseqs(array("I", asked))) == [uid * 10 if uid in existing else 0 for uid in asked]
    assert list(state.masks(state.uids)) == [uid % 4 for uid in there]
    assert state.changed_since(300) == [uid for uid in there if uid > 30]


@given(uid_lists, st.sets(st.integers(1, 60)), st.sets(st.integers(1, 60)), st.integers(0, 5))
def test_differences_of_two_states(before: list[int], gone: set[int], touched: set[int], new: int) -> None:
    top = before[-1] if before else 0
    after = [uid for uid in before if uid not in gone] + [top + 1 + number for number in range(new)]

    def columns(uids: list[int], modseqs: list[int]) -> FolderColumns:
        return columns_of([(uid, 0, "", seq, 0, 0, 0) for uid, seq in zip(uids, modseqs, strict=True)], Keywords())

    old = columns(before, [5] * len(before))
    fresh = columns(after, [9 if uid in touched or uid > top else 5 for uid in after])
    changes = differences(old, fresh, 5, 9)
    assert [uid for change in changes for uid in change.expunged] == [uid for uid in before if uid in gone]
    assert [uid for change in changes for uid in change.flagged] == [
        uid for uid in after if uid in touched and uid <= top
    ]
    assert all(change.uids == fresh.uids for change in changes)
    assert [change.modseq for change in changes][-1] == 9
    assert all(change.modseq == 6 for change in changes if change.expunged)


async def test_thread_pool_is_bounded_reports_errors_and_detects_idle_threads() -> None:
    idle = threading.Semaphore(0)
    threads = ThreadPool("test", 2, idle.release, 0.05)
    try:
        names = await asyncio.gather(*[threads.run(_slow_name) for _ in range(6)])
        assert len(set(names)) == 2
        assert await asyncio.to_thread(idle.acquire, timeout=60)
        for error in (OSError("disk"), sqlite3.OperationalError("locked")):
            with pytest.raises(MailError) as caught:
                await threads.run(_raise, error)
            assert caught.value.reason is Reason.UNKNOWN
        with pytest.raises(ZeroDivisionError):
            await threads.run(_raise, ZeroDivisionError())
        given_up = threads.start(_slow_name)
        given_up.cancel()
        assert await threads.run(int, "7") == 7
    finally:
        await asyncio.to_thread(threads.close)


def _slow_name() -> str:
    time.sleep(0.01)
    return threading.current_thread().name


def _raise(error: Exception) -> None:
    raise error


async def test_unused_values_are_dropped(store: Transport) -> None:
    append(store, "INBOX", message(), message())
    async with open_mailboxes(store, CacheLimits(idle=0.2)) as mailboxes:
        state = await open_folder(mailboxes)
        before, _ = await fetched(mailboxes, state, [Attribute.ENVELOPE])
        assert state.derived_cost > 0
        await until(lambda: state.derived_cost == 0)
        await until(lambda: len(mailboxes._folders) == 0)
        again = await open_folder(mailboxes)
        assert (await fetched(mailboxes, again, [Attribute.ENVELOPE]))[0] == before


async def test_attributes_of_expunged_messages_are_dropped(store: Transport) -> None:
    append(store, "INBOX", message(), message())
    async with open_mailboxes(store) as mailboxes:
        state = await open_folder(mailboxes)
        await fetched(mailboxes, state, [Attribute.ENVELOPE, Attribute.BODYSTRUCTURE])
        full = state.derived_cost
        await mailboxes.commit(op.Move(ADA, state.id, [1], "Trash"))
        assert 0 < state.derived_cost < full
        await mailboxes.commit(op.Move(ADA, state.id, [2], "Trash"))
        assert state.derived_cost == 0


def test_cache_rows_are_written_only_for_existing_content(store: Transport) -> None:
    append(store, "INBOX", message("a"), message("b"))
    derived = [cache_fill.derive(store.content, row.message_id) for row in rows(store)]
    stored = store.index.query("SELECT * FROM cache_messages ORDER BY message_id")
    assert sorted(map(tuple, derived)) == stored
    cache_fill.write(store, derived)  # nothing to add
    store.run(op.Move(ADA, _folder(store), [1], "Trash"))
    store.run(op.ChangeFlags(ADA, _folder(store, "Trash"), [1], "add", 8))
    store.run(op.Expunge(ADA, _folder(store, "Trash")))
    store.run(op.Collect(before=int(time.time()) + 10))
    cache_fill.write(store, derived)
    assert store.index.query("SELECT * FROM cache_messages") == stored[1:]
    assert store.index.writer.execute("PRAGMA synchronous").fetchone() == (0,)
    with pytest.raises(MailError):
        cache_fill.derive(store.content, derived[0].message_id)


def _folder(store: Transport, name: str = "INBOX") -> int:
    folder_id: int = store.index.query("SELECT folder_id FROM folders WHERE name = ? ORDER BY messages DESC", (name,))[
        0
    ][0]
    return folder_id
