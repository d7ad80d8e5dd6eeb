"""What is told while executors read the store: how many messages they have come through, and how fast."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PAUSE = 1.0  # seconds


@contextlib.contextmanager
def told(session: SparkSession, say: Callable[[str], None], messages: int) -> Iterator[None]:
    """Say once a second how far the work of the block is, and at its end how fast it was."""
    began = time.monotonic()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_PAUSE):
            done = int(messages * _share(session))
            say(f"{done:,} of {messages:,} messages read, {done / (time.monotonic() - began):,.0f}/s")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    say(f"{messages:,} messages read, {messages / max(0.001, time.monotonic() - began):,.0f}/s; comparing")


def _share(session: SparkSession) -> float:
    """Of the tasks under way, the part that is done: pieces of work are of about the same size."""
    done = total = 0
    with contextlib.suppress(Exception):  # if Spark is gone, the work itself says so
        tracker = session.sparkContext.statusTracker()
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                done += info.numCompletedTasks
                total += info.numTasks
    return done / total if total else 0.0
