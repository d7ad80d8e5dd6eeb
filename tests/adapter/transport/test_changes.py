"""The change feed: in this process, across processes, from an old record on, and without inotify."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.store import disk
from adapter.store.effects import Project, Subscribe
from adapter.store.journal import JournalDamaged, Record
from adapter.transport import operations as op
from adapter.transport.changes import Gap, Subscription, new_mail, watch
from adapter.transport.transport import Transport
from protocol.errors import MailError
from tests.support.feeds import FeedListener
from tests.support.stores import ADA, BOB, deliver, folder, new_store
from tests.support.waiting import PATIENCE


def _subscribed(record: Record) -> str:
    """The folder that the record subscribes to."""
    (effect,) = record.effects
    assert isinstance(effect, Subscribe)
    return effect.name


def test_a_listener_hears_everything_in_order_and_once(store: Transport) -> None:
    ear = FeedListener()
    store.changes.subscribe(ear)
    for number in range(30):
        store.run(op.Subscribe(ADA, f"f{number}"))
    ear.wait(30)
    seqs = [record.seq for record in ear.records]
    assert seqs == list(range(seqs[0], seqs[0] + 30))
    assert [_subscribed(record) for record in ear.records] == [f"f{number}" for number in range(30)]


def test_what_is_heard_can_be_found(store: Transport) -> None:
    """A record is passed on when the index has applied it, not before."""
    found: list[int] = []
    done = threading.Event()

    def look(records: list[Record]) -> None:
        for record in records:
            for effect in record.effects:
                if isinstance(effect, Project):
                    rows = store.index.query(
                        "SELECT uid FROM mailbox_projections WHERE folder_id = ? AND uid = ?",
                        (effect.folder, effect.rows[0].uid),
                    )
                    found.extend(row[0] for row in rows)
        if len(found) == 10:
            done.set()

    store.changes.subscribe(look)
    for _ in range(10):
        deliver(store, ADA)
    assert done.wait(PATIENCE)
    assert found == list(range(1, 11))


def test_several_listeners_and_one_that_goes(store: Transport) -> None:
    ears = [FeedListener(), FeedListener()]
    first = store.changes.subscribe(ears[0])
    store.changes.subscribe(ears[1])
    store.run(op.Subscribe(ADA, "a"))
    for ear in ears:
        ear.wait()
    first.close()
    first.close()
    store.run(op.Subscribe(ADA, "b"))
    ears[1].wait()
    assert (len(ears[0].records), len(ears[1].records)) == (1, 2)


def test_catching_up_from_an_old_record(store: Transport) -> None:
    start = store.index.applied_seq()
    for name in ("a", "b", "c"):
        store.run(op.Subscribe(ADA, name))
    ear = FeedListener()
    subscription = store.changes.subscribe(ear, after=start + 1)
    assert [record.seq for record in ear.records] == [start + 2, start + 3]
    store.run(op.Subscribe(ADA, "d"))
    ear.wait(3)
    assert [record.seq for record in ear.records] == [start + 2, start + 3, start + 4]
    assert subscription.seq == start + 4


def test_from_the_very_beginning(store: Transport) -> None:
    ear = FeedListener()
    store.changes.subscribe(ear, after=0)
    assert ear.operations == ["register", "register"]


def test_a_record_that_was_compacted_away_cannot_be_caught_up_with(store: Transport) -> None:
    for name in ("a", "b", "c"):
        store.run(op.Subscribe(ADA, name))
        store.snapshot()
    with pytest.raises(JournalDamaged):
        store.changes.subscribe(FeedListener(), after=0)
    ear = FeedListener()
    store.changes.subscribe(ear)
    store.run(op.Subscribe(ADA, "d"))
    ear.wait()
    assert ear.operations == ["subscribe"]


def test_who_was_left_behind_hears_of_the_gap(store: Transport) -> None:
    for name in ("a", "b", "c"):
        store.run(op.Subscribe(ADA, name))
        store.snapshot()
    ear, gaps = FeedListener(), queue.SimpleQueue[tuple[int, int]]()
    subscription = store.changes.subscribe(ear, 1, lambda *gap: gaps.put(gap))
    assert gaps.get_nowait() == (1, store.index.applied_seq())
    assert subscription.seq == store.index.applied_seq()
    store.run(op.Subscribe(ADA, "d"))
    ear.wait()
    assert ear.operations == ["subscribe"]


def test_a_feed_that_two_compactions_left_behind_goes_on(store: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    ear, gaps = FeedListener(), queue.SimpleQueue[tuple[int, int]]()
    store.changes.subscribe(ear, None, lambda *gap: gaps.put(gap))
    deaf = FeedListener()
    store.changes.subscribe(deaf)  # one who does not ask for gaps goes on as well
    start = store.index.applied_seq()
    with store.changes._mutex, Transport.open(store.root) as beside:  # as if the process had been stopped for a while
        for name in ("a", "b", "c"):
            beside.run(op.Subscribe(ADA, name))
            beside.snapshot()
    assert gaps.get(timeout=PATIENCE) == (start, start + 3)
    store.run(op.Subscribe(ADA, "d"))
    ear.wait()
    deaf.wait()
    assert [_subscribed(record) for record in ear.records] == ["d"]
    assert [_subscribed(record) for record in deaf.records] == ["d"]


def test_reading_at_one_s_own_pace(store: Transport) -> None:
    reader = store.changes.reader(0)
    for number in range(5):
        store.run(op.Subscribe(ADA, f"f{number}"))
    assert [record.seq for record in reader.read(2)] == [1, 2]
    assert [record.seq for record in reader.read(2)] == [3, 4]
    assert [record.seq for record in reader.read()] == [5, 6, 7]
    assert reader.read() == []
    for number in range(5, 8):
        store.run(op.Subscribe(ADA, f"f{number}"))
        store.snapshot()
    with pytest.raises(Gap) as gap:
        store.changes.reader(2).read()
    assert (gap.value.after, gap.value.upto) == (2, 10)
    with pytest.raises(Gap):
        reader.read()
    assert reader.read() == []
    store.run(op.Subscribe(ADA, "last"))
    assert [record.seq for record in reader.read()] == [11]


def test_new_mail_is_what_came_with_its_content(store: Transport) -> None:
    start = store.index.applied_seq()
    deliver(store, ADA, BOB)
    inbox = folder(store).id
    store.run(op.Copy(ADA, inbox, [1], "Archive"))
    store.run(op.Move(ADA, inbox, [1], "Trash"))
    records = store.changes.reader(start).read()
    arrivals = [arrival for record in records for arrival in new_mail(record)]
    assert [(arrival.folder_name, arrival.uid) for arrival in arrivals] == [("INBOX", 1), ("INBOX", 1)]
    assert {arrival.folder for arrival in arrivals} == {inbox, folder(store, address=BOB).id}


def test_a_listener_goes_on_hearing_through_rotation_and_compaction(store: Transport) -> None:
    ear = FeedListener()
    store.changes.subscribe(ear)
    for number in range(12):
        store.run(op.Subscribe(ADA, f"f{number}"))
        if number % 3 == 2:
            store.snapshot()
    ear.wait(12)
    assert len(ear.records) == 12


def test_an_aborted_operation_is_never_heard_of(store: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    ear = FeedListener()
    store.changes.subscribe(ear)

    def fail(action: str, fd: int, name: str) -> None:
        if action == "symlink":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "on_step", fail)
    with pytest.raises(MailError):
        deliver(store, ADA)
    monkeypatch.setattr(disk, "on_step", None)
    store.run(op.Subscribe(ADA, "x"))
    ear.wait()
    assert ear.operations == ["subscribe"]
    late = FeedListener()
    store.changes.subscribe(late, after=0)
    assert late.operations == ["register", "register", "subscribe"]


def test_a_listener_that_fails_harms_nobody(store: Transport, caplog: pytest.LogCaptureFixture) -> None:
    def fail(records: list[Record]) -> None:
        raise ZeroDivisionError

    ear = FeedListener()
    store.changes.subscribe(fail)
    store.changes.subscribe(ear)
    with caplog.at_level(logging.CRITICAL):
        for name in ("a", "b"):
            store.run(op.Subscribe(ADA, name))
        ear.wait(2)
    assert len(ear.records) == 2


def test_a_listener_may_end_its_own_subscription_or_start_another(store: Transport) -> None:
    ear, other = FeedListener(), FeedListener()
    subscriptions: list[Subscription] = []

    def once(records: list[Record]) -> None:
        subscriptions.pop().close()
        store.changes.subscribe(other)
        ear(records)

    subscriptions.append(store.changes.subscribe(once))
    store.run(op.Subscribe(ADA, "a"))
    ear.wait()
    store.run(op.Subscribe(ADA, "b"))
    other.wait()
    assert (len(ear.records), len(other.records)) == (1, 1)


def test_watching_as_an_iterator(store: Transport) -> None:
    records = watch(store.changes, store.index.applied_seq())
    store.run(op.Subscribe(ADA, "a"))

    def first(found: Iterator[Record]) -> str:
        return next(found).op

    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(first(records)))
    thread.start()
    time.sleep(0.02)
    store.run(op.Subscribe(ADA, "b"))
    thread.join(PATIENCE)
    assert results == ["subscribe"]
    records.close()  # type: ignore[attr-defined]


# --- other processes -------------------------------------------------------------------------------------------------


def test_two_stores_in_one_process_hear_each_other(tmp_path: Path) -> None:
    with new_store(tmp_path / "store", ADA, BOB) as one, Transport.open(tmp_path / "store") as two:
        ears = FeedListener(), FeedListener()
        one.changes.subscribe(ears[0])
        two.changes.subscribe(ears[1])
        for number in range(10):
            deliver((one, two)[number % 2], ADA)
        for ear in ears:
            ear.wait(10)
        assert [record.seq for record in ears[0].records] == [record.seq for record in ears[1].records]
