"""The board: each worker puts up its figures about once a second, and any of them can read those of all.

Memory that was there before the workers were made. A worker writes to its own place only. A reader that comes while a
place is being written, or finds there nothing it can read, goes without it.

Figures of workers are told apart by a label, not added up: a worker that dies and is replaced begins from zero, which
is a reset that those who collect counters know how to deal with. Figures of the store are the same whoever measured
them: the freshest count.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Iterator, Sequence

import orjson

from adapter.observability.metrics import Sample

_PLACE = 256 << 10  # octets; figures are bounded, see adapter.observability.metrics
_HEAD = struct.Struct("=QQd")  # a number that changes with every writing (odd while it lasts), size, when


class Board:
    """``number`` says which worker this is, counted from zero."""

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers
        self.number = 0
        self._memory = mmap.mmap(-1, _PLACE * workers)

    def put_up(self, samples: Sequence[Sample]) -> None:
        body = orjson.dumps([tuple(sample) for sample in samples])
        if len(body) > _PLACE - _HEAD.size:
            return
        at = self.number * _PLACE
        turn, _, _ = _HEAD.unpack_from(self._memory, at)
        turn |= 1
        _HEAD.pack_into(self._memory, at, turn, 0, 0.0)
        self._memory[at + _HEAD.size : at + _HEAD.size + len(body)] = body
        _HEAD.pack_into(self._memory, at, turn + 1, len(body), time.monotonic())

    def clear(self, number: int) -> None:
        """A worker is gone."""
        _HEAD.pack_into(self._memory, number * _PLACE, 0, 0, 0.0)

    def read(self) -> Iterator[tuple[int, float, list[Sample]]]:
        """The worker, when it wrote (monotonic), and what."""
        for number in range(self.workers):
            at = number * _PLACE
            before = _HEAD.unpack_from(self._memory, at)
            turn, size, when = before
            body = self._memory[at + _HEAD.size : at + _HEAD.size + size]
            if size and not turn & 1 and _HEAD.unpack_from(self._memory, at) == before:
                yield number, when, [_sample(*row) for row in orjson.loads(body)]


def _sample(family: str, labels: list[str], value: float, below: list[int]) -> Sample:
    return Sample(family, tuple(labels), value, tuple(below))
