"""Retention: deleted content is erased after its retention period; folders with an expiry lose old messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from adapter.config.loader import Seconds
from adapter.config.schema import Retention, Settings
from adapter.store import locks
from adapter.store.disk import Directories
from adapter.store.flags import Flag
from adapter.store.journal import Record
from adapter.transport import operations as op
from adapter.transport import retention
from adapter.transport.retention import RetentionResult, RetentionRules
from adapter.transport.transport import Transport
from tests.support.messages import message
from tests.support.stores import ADA, BOB, deliver, folder, placed, rows

DAY = 86400.0


async def _apply(store: Transport, deleted: float, expire: Mapping[str, float], days_later: float) -> RetentionResult:
    rules = RetentionRules(deleted, expire)
    return await retention.apply_rules(store, rules, asyncio.Event(), lambda: time.time() + days_later * DAY)


def _move(store: Transport, uid: int, to: str, address: str = ADA) -> None:
    store.run(op.Move(address, folder(store, "INBOX", address).id, [uid], to))


def _delete(store: Transport) -> str:
    delivery = deliver(store, ADA)
    place = placed(delivery)
    store.run(op.ChangeFlags(ADA, place.folder, [place.uid], "add", Flag.DELETED))
    store.run(op.Expunge(ADA, place.folder, [place.uid]))
    return delivery.message_id


@pytest.mark.setting("retention.deleted")
async def test_deleted_content_is_erased_only_after_its_retention_period(store: Transport) -> None:
    deleted = _delete(store)
    kept = deliver(store, ADA).message_id
    settings = Settings(retention=Retention(deleted=Seconds(30 * DAY)))
    assert await _apply(store, settings.retention.deleted, {}, 29) == RetentionResult(0, 0)
    assert store.content.octets(deleted) == message()
    assert await _apply(store, settings.retention.deleted, {}, 31) == RetentionResult(1, 0)
    assert store.content.octets(kept) == message()


async def test_no_deleted_content_is_erased_where_retention_is_off(store: Transport) -> None:
    deleted = _delete(store)
    assert await _apply(store, 0, {}, 10_000) == RetentionResult(0, 0)
    assert store.content.octets(deleted) == message()


@pytest.mark.setting("retention.expire")
async def test_only_old_messages_of_a_folder_with_an_expiry_are_removed(store: Transport) -> None:
    settings = replace(Settings(), retention=Retention(expire={"trash": Seconds(7 * DAY)}))
    for address in (ADA, BOB):
        deliver(store, address)
        _move(store, 1, "Trash", address)
    deliver(store, ADA)
    assert (await _apply(store, 0, settings.retention.expire, 6)).expired == 0
    assert (await _apply(store, 0, settings.retention.expire, 8)).expired == 2
    assert [rows(store, name, ADA) == [] for name in ("Trash", "INBOX")] == [True, False]


async def test_expired_messages_are_kept_as_deleted_content_first(store: Transport) -> None:
    message_id = deliver(store, ADA).message_id
    _move(store, 1, "Junk")
    result = await _apply(store, 30 * DAY, {"Junk": 7 * DAY}, 8)
    assert result == RetentionResult(0, 1)
    assert store.content.octets(message_id) == message()


async def test_expiry_counts_from_arrival_in_the_folder(store: Transport) -> None:
    old = op.AppendItem(store.stage(message()), internal_date=1)
    store.run(op.Append(ADA, "Trash", [old]))
    assert (await _apply(store, 0, {"Trash": 7 * DAY}, 1)).expired == 0
    assert (await _apply(store, 0, {"Trash": 7 * DAY}, 8)).expired == 1


async def test_many_messages_are_removed_in_batches(store: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_BATCH_MESSAGES", 2)
    for _ in range(5):
        _delete(store)
        deliver(store, ADA)
    assert await _apply(store, 1, {"INBOX": 1.0}, 1) == RetentionResult(10, 5)


async def test_renamed_folder_keeps_the_expiry_of_its_special_use(store: Transport) -> None:
    store.run(op.RenameFolder(ADA, "Trash", "Bin"))
    deliver(store, ADA)
    _move(store, 1, "Bin")
    assert (await _apply(store, 0, {"Trash": 7 * DAY}, 8)).expired == 1


async def test_the_journal_names_retention_as_the_actor(store: Transport) -> None:
    records: list[Record] = []
    subscription = store.changes.subscribe(records.extend)
    _delete(store)
    await _apply(store, 1, {}, 1)
    store.changes.catch_up(10)
    subscription.close()
    assert records[-1].actor == retention.ACTOR
    assert records[-1].op == "collect"


async def test_one_process_at_a_time_applies_the_rules(store: Transport) -> None:
    _delete(store)
    rules, stop = RetentionRules(1e-9, {}), asyncio.Event()
    directories = Directories(store.root)
    with locks.duty_lock(directories, "retention") as is_holder:
        assert is_holder
        running = asyncio.create_task(retention.run(store, rules, stop, first_run=0.0))
        await asyncio.sleep(0)
        stop.set()
        await running
    directories.close()
    with store.reading() as connection:
        assert connection.execute("SELECT count(*) FROM messages WHERE file_sha256 <> ''").fetchone() == (1,)


async def test_retention_job_erases_content_until_it_is_stopped(store: Transport) -> None:
    deleted = _delete(store)
    stop = asyncio.Event()
    rules = RetentionRules(1e-9, {})
    running = asyncio.create_task(retention.run(store, rules, stop, first_run=0.0))
    async with asyncio.timeout(30):
        while True:
            with store.reading() as connection:
                row = connection.execute("SELECT file_sha256 FROM messages WHERE message_id = ?", (deleted,)).fetchone()
            if row == ("",):
                break
            await asyncio.sleep(0.01)
        stop.set()
        await running
