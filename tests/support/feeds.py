"""Change feed listener for tests."""

from __future__ import annotations

import queue
import time

from adapter.store.journal import Record
from tests.support.waiting import PATIENCE


class FeedListener:
    """Keeps the records it receives, and when each arrived."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._arrived: queue.SimpleQueue[float] = queue.SimpleQueue()

    def __call__(self, records: list[Record]) -> None:
        now = time.monotonic()
        self.records += records
        for _ in records:
            self._arrived.put(now)

    def wait(self, count: int = 1) -> list[float]:
        return [self._arrived.get(timeout=PATIENCE) for _ in range(count)]

    @property
    def operations(self) -> list[str]:
        return [record.op for record in self.records]
