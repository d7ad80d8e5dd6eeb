"""Shared metrics: the samples of all workers in a memory map, one seqlock-protected region for each worker.

The map is allocated before the workers are forked. A worker publishes its samples about once a second, into its own
region only; any worker can read all of them. A reader skips a region that is being written, or is empty.

Samples of workers are distinguished by a label, not added up: a replaced worker begins from zero, which Prometheus
treats as a counter reset. Samples of the store are the same in every worker; the latest ones count.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Iterator, Sequence

import orjson

from adapter.observability.metrics import Sample, WorkerSamples

_REGION_BYTES = 256 << 10  # samples are bounded, see adapter.observability.metrics
_HEADER = struct.Struct("=QQd")  # sequence number (odd while writing), size, time


class SharedMetrics:
    """The published samples of all workers; ``number`` is that of this worker, from zero."""

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers
        self.number = 0
        self._memory = mmap.mmap(-1, _REGION_BYTES * workers)

    def publish(self, samples: Sequence[Sample]) -> None:
        """Replace the samples of this worker; samples that do not fit are dropped."""
        body = orjson.dumps([tuple(sample) for sample in samples])
        if len(body) > _REGION_BYTES - _HEADER.size:
            return
        at = self.number * _REGION_BYTES
        sequence, _, _ = _HEADER.unpack_from(self._memory, at)
        sequence |= 1
        _HEADER.pack_into(self._memory, at, sequence, 0, 0.0)
        self._memory[at + _HEADER.size : at + _HEADER.size + len(body)] = body
        _HEADER.pack_into(self._memory, at, sequence + 1, len(body), time.monotonic())

    def clear(self, number: int) -> None:
        """Remove the samples of a dead worker."""
        _HEADER.pack_into(self._memory, number * _REGION_BYTES, 0, 0, 0.0)

    def read(self) -> Iterator[WorkerSamples]:
        for number in range(self.workers):
            at = number * _REGION_BYTES
            header = _HEADER.unpack_from(self._memory, at)
            sequence, size, published_at = header
            body = self._memory[at + _HEADER.size : at + _HEADER.size + size]
            if size and not sequence & 1 and _HEADER.unpack_from(self._memory, at) == header:
                yield WorkerSamples(number, published_at, [_decode(*row) for row in orjson.loads(body)])


def _decode(family: str, labels: list[str], value: float, buckets: list[int]) -> Sample:
    return Sample(family, tuple(labels), value, tuple(buckets))
