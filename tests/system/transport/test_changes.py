"""The change feed between processes: latency, and polling where inotify is missing."""

from __future__ import annotations

import statistics
import time
from multiprocessing.queues import Queue
from typing import Any

import pytest

from adapter.transport import changes
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from tests.support.feeds import FeedListener
from tests.support.processes import channel, running
from tests.support.stores import ADA, BOB, deliver, folder
from tests.support.waiting import PATIENCE


def _deliver_on_demand(root: str, orders: Queue[Any], answers: Queue[Any]) -> None:
    with Transport.open(root) as store:
        answers.put("ready")
        while orders.get() is not None:
            deliver(store, BOB)
            answers.put(time.monotonic())


def _latencies(store: Transport, count: int) -> list[float]:
    """Seconds from the acknowledgement in another process until the feed delivers the record here."""
    orders, answers = channel(), channel()
    ear = FeedListener()
    store.changes.subscribe(ear)
    store.run(op.Subscribe(ADA, "first"))
    ear.wait()  # by now the feed is being followed
    latencies = []
    with running(_deliver_on_demand, store.root, orders, answers):
        assert answers.get(timeout=PATIENCE) == "ready"
        for _ in range(count):
            time.sleep(0.02)
            orders.put("deliver")
            committed = answers.get(timeout=PATIENCE)
            (arrived,) = ear.wait()
            latencies.append(arrived - committed)
        orders.put(None)
    assert ear.operations == ["subscribe"] + ["deliver"] * count
    return latencies


def test_records_of_other_processes_arrive_without_polling(
    store: Transport, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "_POLL", 1e6)  # every record arrives by notification, none by polling
    latencies = sorted(_latencies(store, 15))
    with capsys.disabled():
        print(f"\n  change feed across processes: median {statistics.median(latencies) * 1000:.1f} ms,", end=" ")
        print(f"worst {latencies[-1] * 1000:.1f} ms after the acknowledgement")
    assert min(latencies) < 0.2  # the rest is for make bench
    assert folder(store, address=BOB).messages == 15


def test_without_inotify_changes_are_polled_for(
    store: Transport, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unavailable() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(changes, "INotify", unavailable)
    _latencies(store, 3)
    assert "polled" in caplog.text
