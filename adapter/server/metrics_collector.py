"""Gauges sampled periodically: of this process once a second, of the store every few seconds."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time

from adapter.observability import metrics
from adapter.server import process_state
from adapter.server.metrics_shm import SharedMetrics
from adapter.sessions.context import ServerContext
from adapter.store.disk import Directories
from adapter.transport import stats
from protocol.errors import MailError

_log = logging.getLogger(__name__)

_INTERVAL_SECONDS = 1.0
_STORE_INTERVAL_SECONDS = 5.0


class MetricsCollector:
    """Samples the gauges of a worker and publishes all its metrics."""

    def __init__(self, context: ServerContext, shared: SharedMetrics, directories: Directories) -> None:
        self._context = context
        self._shared = shared
        self._directories = directories
        metrics.START.of().value = process_state.start_time()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        measured_at = 0.0
        while True:
            if loop.time() - measured_at >= _STORE_INTERVAL_SECONDS:
                measured_at = loop.time()
                await self._sample_store()
            self.publish()
            due = loop.time() + _INTERVAL_SECONDS
            await asyncio.sleep(_INTERVAL_SECONDS)
            metrics.LOOP_LAG.of().value = max(0.0, loop.time() - due)

    def publish(self) -> None:
        """Sample this process and publish everything; the store is sampled less often, by :meth:`run`."""
        context = self._context
        metrics.OPEN.of().value = context.admission.by_worker[context.admission.counts.column]
        metrics.REFUSED.of().value = context.admission.refused
        metrics.EVICTED.of().value = context.admission.evicted
        metrics.OFFLINE.of().value = context.store is None and not context.ending
        metrics.DRAINING.of().value = context.ending
        metrics.CPU.of().value = time.process_time()
        metrics.MEMORY.of().value = process_state.resident_bytes()
        metrics.FILES.of().value = process_state.open_descriptors()
        self._shared.publish(metrics.samples())

    async def _sample_store(self) -> None:
        store = self._context.store
        if store is None:
            return
        try:
            sizes = await asyncio.to_thread(stats.collect_stats, self._directories, store.transport.index, time.time())
        except (MailError, OSError, sqlite3.Error) as error:
            _log.warning("metrics: cannot measure the store (%s); keeping the last values", error)
            return
        metrics.QUEUE.of("due").value = sizes.queue_due
        metrics.QUEUE.of("waiting").value = sizes.queue_waiting
        metrics.QUEUE_AGE.of().value = sizes.queue_oldest
        metrics.JOURNAL_BYTES.of().value = sizes.journal_bytes
        metrics.JOURNAL_SEGMENTS.of().value = sizes.journal_segments
        metrics.INDEX_BYTES.of().value = sizes.index_bytes
        metrics.APPLIED.of().value = sizes.applied
        metrics.CHECKPOINT_LAG.of().value = max(0, sizes.applied - sizes.checkpoint)
        metrics.FREE_BYTES.of().value = sizes.free_bytes
