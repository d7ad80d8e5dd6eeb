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


def test_listener_gets_every_record_once_and_in_order(store: Transport) -> None:
    listener = FeedListener()
    store.changes.subscribe(listener)
    for number in range(30):
        store.run(op.Subscribe(ADA, f"f{number}"))
    listener.wait(30)
    seqs = [record.seq for record in listener.records]
    assert seqs == list(range(seqs[0], seqs[0] + 30))
    assert [_subscribed(record) for record in listener.records] == [f"f{number}" for number in range(30)]


def test_announced_records_are_already_in_the_index(store: Transport) -> None:
    """A record is announced only after the index has applied it."""
    uids: list[int] = []
    done = threading.Event()

    def query_index(records: list[Record]) -> None:
        for record in records:
            for effect in record.effects:
                if isinstance(effect, Project):
                    rows = store.index.query(
                        "SELECT uid FROM mailbox_projections WHERE folder_id = ? AND uid = ?",
                        (effect.folder, effect.rows[0].uid),
                    )
                    uids.extend(row[0] for row in rows)
        if len(uids) == 10:
            done.set()

    store.changes.subscribe(query_index)
    for _ in range(10):
        deliver(store, ADA)
    assert done.wait(PATIENCE)
    assert uids == list(range(1, 11))


def test_closed_subscription_does_not_affect_other_listeners(store: Transport) -> None:
    listeners = [FeedListener(), FeedListener()]
    first = store.changes.subscribe(listeners[0])
    store.changes.subscribe(listeners[1])
    store.run(op.Subscribe(ADA, "a"))
    for listener in listeners:
        listener.wait()
    first.close()
    first.close()
    store.run(op.Subscribe(ADA, "b"))
    listeners[1].wait()
    assert (len(listeners[0].records), len(listeners[1].records)) == (1, 2)


def test_subscription_catches_up_from_an_old_record(store: Transport) -> None:
    start = store.index.applied_seq()
    for name in ("a", "b", "c"):
        store.run(op.Subscribe(ADA, name))
    listener = FeedListener()
    subscription = store.changes.subscribe(listener, after=start + 1)
    assert [record.seq for record in listener.records] == [start + 2, start + 3]
    store.run(op.Subscribe(ADA, "d"))
    listener.wait(3)
    assert [record.seq for record in listener.records] == [start + 2, start + 3, start + 4]
    assert subscription.seq == start + 4


def test_subscription_can_start_at_the_first_record(store: Transport) -> None:
    listener = FeedListener()
    store.changes.subscribe(listener, after=0)
    assert listener.operations == ["register", "register"]


def test_subscription_from_a_compacted_record_is_refused(store: Transport) -> None:
    for name in ("a", "b", "c"):
        store.run(op.Subscribe(ADA, name))
        store.snapshot()
    with pytest.raises(JournalDamaged):
        store.changes.subscribe(FeedListener(), after=0)
    listener = FeedListener()
    store.changes.subscribe(listener)
    store.run(op.Subscribe(ADA, "d"))
    listener.wait()
    assert listener.operations == ["subscribe"]


def test_subscription_from_a_compacted_record_reports_the_gap(store: Transport) -> None:
    for name in ("a", "b", "c"):
        store.run(op.Subscribe(ADA, name))
        store.snapshot()
    listener, gaps = FeedListener(), queue.SimpleQueue[tuple[int, int]]()
    subscription = store.changes.subscribe(listener, 1, lambda *gap: gaps.put(gap))
    assert gaps.get_nowait() == (1, store.index.applied_seq())
    assert subscription.seq == store.index.applied_seq()
    store.run(op.Subscribe(ADA, "d"))
    listener.wait()
    assert listener.operations == ["subscribe"]


def test_feed_continues_after_missing_two_compactions(store: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    listener, gaps = FeedListener(), queue.SimpleQueue[tuple[int, int]]()
    store.changes.subscribe(listener, None, lambda *gap: gaps.put(gap))
    without_gap_handler = FeedListener()
    store.changes.subscribe(without_gap_handler)  # a listener without a gap handler continues as well
    start = store.index.applied_seq()
    with store.changes._mutex, Transport.open(store.root) as beside:  # as if the process had been suspended
        for name in ("a", "b", "c"):
            beside.run(op.Subscribe(ADA, name))
            beside.snapshot()
    assert gaps.get(timeout=PATIENCE) == (start, start + 3)
    store.run(op.Subscribe(ADA, "d"))
    listener.wait()
    without_gap_handler.wait()
    assert [_subscribed(record) for record in listener.records] == ["d"]
    assert [_subscribed(record) for record in without_gap_handler.records] == ["d"]


def test_reader_returns_records_on_demand_and_reports_gaps(store: Transport) -> None:
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


def test_copies_and_moves_are_not_new_mail(store: Transport) -> None:
    start = store.index.applied_seq()
    deliver(store, ADA, BOB)
    inbox = folder(store).id
    store.run(op.Copy(ADA, inbox, [1], "Archive"))
    store.run(op.Move(ADA, inbox, [1], "Trash"))
    records = store.changes.reader(start).read()
    arrivals = [arrival for record in records for arrival in new_mail(record)]
    assert [(arrival.folder_name, arrival.uid) for arrival in arrivals] == [("INBOX", 1), ("INBOX", 1)]
    assert {arrival.folder for arrival in arrivals} == {inbox, folder(store, address=BOB).id}


def test_listener_gets_every_record_across_rotation_and_compaction(store: Transport) -> None:
    listener = FeedListener()
    store.changes.subscribe(listener)
    for number in range(12):
        store.run(op.Subscribe(ADA, f"f{number}"))
        if number % 3 == 2:
            store.snapshot()
    listener.wait(12)
    assert len(listener.records) == 12


def test_aborted_operation_is_never_announced(store: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = FeedListener()
    store.changes.subscribe(listener)

    def fail(action: str, fd: int, name: str) -> None:
        if action == "symlink":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "on_step", fail)
    with pytest.raises(MailError):
        deliver(store, ADA)
    monkeypatch.setattr(disk, "on_step", None)
    store.run(op.Subscribe(ADA, "x"))
    listener.wait()
    assert listener.operations == ["subscribe"]
    late = FeedListener()
    store.changes.subscribe(late, after=0)
    assert late.operations == ["register", "register", "subscribe"]


def test_failing_listener_does_not_affect_others(store: Transport, caplog: pytest.LogCaptureFixture) -> None:
    def fail(records: list[Record]) -> None:
        raise ZeroDivisionError

    listener = FeedListener()
    store.changes.subscribe(fail)
    store.changes.subscribe(listener)
    with caplog.at_level(logging.CRITICAL):
        for name in ("a", "b"):
            store.run(op.Subscribe(ADA, name))
        listener.wait(2)
    assert len(listener.records) == 2


def test_a_listener_may_end_its_own_subscription_or_start_another(store: Transport) -> None:
    listener, other = FeedListener(), FeedListener()
    subscriptions: list[Subscription] = []

    def once(records: list[Record]) -> None:
        subscriptions.pop().close()
        store.changes.subscribe(other)
        listener(records)

    subscriptions.append(store.changes.subscribe(once))
    store.run(op.Subscribe(ADA, "a"))
    listener.wait()
    store.run(op.Subscribe(ADA, "b"))
    other.wait()
    assert (len(listener.records), len(other.records)) == (1, 1)


def test_watch_iterates_over_new_records(store: Transport) -> None:
    records = watch(store.changes, store.index.applied_seq())
    store.run(op.Subscribe(ADA, "a"))

    def first(iterator: Iterator[Record]) -> str:
        return next(iterator).op

    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(first(records)))
    thread.start()
    time.sleep(0.02)
    store.run(op.Subscribe(ADA, "b"))
    thread.join(PATIENCE)
    assert results == ["subscribe"]
    records.close()  # type: ignore[attr-defined]


# --- other processes -------------------------------------------------------------------------------------------------


def test_two_open_stores_announce_each_others_records(tmp_path: Path) -> None:
    with new_store(tmp_path / "store", ADA, BOB) as one, Transport.open(tmp_path / "store") as two:
        listeners = FeedListener(), FeedListener()
        one.changes.subscribe(listeners[0])
        two.changes.subscribe(listeners[1])
        for number in range(10):
            deliver((one, two)[number % 2], ADA)
        for listener in listeners:
            listener.wait(10)
        assert [record.seq for record in listeners[0].records] == [record.seq for record in listeners[1].records]
