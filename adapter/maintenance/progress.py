"""Progress of a scan: the number of messages read so far, and the rate."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_INTERVAL_SECONDS = 1.0


@contextlib.contextmanager
def reporting(session: SparkSession, report_progress: Callable[[str], None], messages: int) -> Iterator[None]:
    """Report the progress of the block once a second, and the final rate."""
    began = time.monotonic()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_INTERVAL_SECONDS):
            done = int(messages * _completed_share(session))
            report_progress(f"{done:,} of {messages:,} messages read, {done / (time.monotonic() - began):,.0f}/s")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    report_progress(f"{messages:,} messages read, {messages / max(0.001, time.monotonic() - began):,.0f}/s; comparing")


def _completed_share(session: SparkSession) -> float:
    """The completed share of the active tasks; all partitions have about the same size."""
    done = total = 0
    with contextlib.suppress(Exception):  # if Spark has failed, the scan itself raises the error
        tracker = session.sparkContext.statusTracker()
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                done += info.numCompletedTasks
                total += info.numTasks
    return done / total if total else 0.0
