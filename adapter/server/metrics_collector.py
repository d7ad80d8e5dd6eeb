"""The figures that are not counted but looked at: of this process once a second, of the store every few seconds."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sqlite3
import time

from adapter.observability import metrics
from adapter.server.metrics_shm import Board
from adapter.sessions.context import ServerContext
from adapter.store import stats
from adapter.store.disk import Directories
from protocol.errors import MailError

_log = logging.getLogger(__name__)

_PAUSE = 1.0
_STORE_PAUSE = 5.0
_PAGE = resource.getpagesize()


class Figures:
    """Keeps a worker's place on the board fresh."""

    def __init__(self, services: ServerContext, board: Board, directories: Directories) -> None:
        self._services = services
        self._board = board
        self._directories = directories
        metrics.START.of().value = _started()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        measured = 0.0
        while True:
            if loop.time() - measured >= _STORE_PAUSE:
                measured = loop.time()
                await self._measure()
            self.put_up()
            due = loop.time() + _PAUSE
            await asyncio.sleep(_PAUSE)
            metrics.LOOP_LAG.of().value = max(0.0, loop.time() - due)

    def put_up(self) -> None:
        """Everything as it is now, but for the store, which is looked at less often."""
        services = self._services
        metrics.OPEN.of().value = services.admission.by_worker[services.admission.counts.column]
        metrics.REFUSED.of().value = services.admission.refused
        metrics.EVICTED.of().value = services.admission.evicted
        metrics.OFFLINE.of().value = services.store is None and not services.ending
        metrics.DRAINING.of().value = services.ending
        metrics.CPU.of().value = time.process_time()
        with open("/proc/self/statm", encoding="ascii") as file:
            metrics.MEMORY.of().value = int(file.read().split()[1]) * _PAGE
        metrics.FILES.of().value = len(os.listdir("/proc/self/fd"))
        self._board.put_up(metrics.samples())

    async def _measure(self) -> None:
        store = self._services.store
        if store is None:
            return
        try:
            found = await asyncio.to_thread(stats.look, self._directories, store.transport.index, time.time())
        except (MailError, OSError, sqlite3.Error) as error:
            _log.warning("the store cannot be measured: %s", error)
            return
        metrics.QUEUE.of("due").value = found.queue_due
        metrics.QUEUE.of("waiting").value = found.queue_waiting
        metrics.QUEUE_AGE.of().value = found.queue_oldest
        metrics.JOURNAL_BYTES.of().value = found.journal_bytes
        metrics.JOURNAL_SEGMENTS.of().value = found.journal_segments
        metrics.INDEX_BYTES.of().value = found.index_bytes
        metrics.APPLIED.of().value = found.applied
        metrics.CHECKPOINT_LAG.of().value = max(0, found.applied - found.checkpoint)
        metrics.FREE_BYTES.of().value = found.free_bytes


def _started() -> float:
    """When this process was made, since the epoch."""
    with open("/proc/self/stat", encoding="ascii") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - since_boot
