"""Counts that all workers of a server share: connections by peer and user, failed logins.

A table in memory that was there before the workers were made. A row belongs to a key (its digest) and has one column
for each worker and one that belongs to all. Every worker changes its own column and the common one, under a kernel
lock that a process lets go of when it dies; what a dead worker had counted is taken away by :meth:`drop_worker`.

Invariants: memory is fixed, whatever peers try; a row that counts something for a worker is never given to another
key; rows that hold nothing but the common count make room for others, the one touched longest ago first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import time
from collections.abc import Callable, Iterator

_ROWS = 1 << 14
_WINDOW = 16  # rows in which a key may stand
_KEY, _TOUCHED, _COMMON, _WORKERS = range(4)  # cells of a row; the workers' columns follow one another


class SharedCounts:
    """``column`` says which worker this is, counted from zero."""

    def __init__(self, workers: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self.workers = workers
        self.column = 0
        self._clock = clock
        self._stride = _WORKERS + workers
        self._memory = mmap.mmap(-1, 8 * _ROWS * self._stride)
        self._cells = memoryview(self._memory).cast("Q")
        #: Known to all workers and to nobody else: what is made with it is the same in each of them.
        self.secret = os.urandom(32)
        self._lock = os.memfd_create("markpost-counts") if workers > 1 else -1

    def __del__(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """What is read and written inside the block is one step for all workers. Never blocks for long."""
        if self._lock < 0:
            yield
            return
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)

    # --- counts of workers ---------------------------------------------------------------------------------------

    def of_workers(self, key: str) -> list[int]:
        """What each worker counts for the key."""
        row = self._find(self._digest(key))
        return [0] * self.workers if row is None else list(self._cells[row + _WORKERS : row + self._stride])

    def add(self, key: str) -> bool:
        """Count one more in this worker's column; False: there is no room, and it is not counted."""
        row = self._find_or_make(self._digest(key))
        if row is None:
            return False
        self._cells[row + _WORKERS + self.column] += 1
        return True

    def take(self, key: str) -> None:
        """One that :meth:`add` counted is no more."""
        row = self._find(self._digest(key))
        if row is not None and self._cells[row + _WORKERS + self.column]:
            self._cells[row + _WORKERS + self.column] -= 1
            self._free_if_empty(row)

    def drop_worker(self, column: int) -> None:
        """A worker is dead: it counts nothing any more."""
        with self.exclusive():
            for row in range(0, _ROWS * self._stride, self._stride):
                if self._cells[row + _WORKERS + column]:
                    self._cells[row + _WORKERS + column] = 0
                    self._free_if_empty(row)

    # --- the common count ----------------------------------------------------------------------------------------

    def common(self, key: str, forget: float) -> int:
        """The common count, if it was touched less than ``forget`` seconds ago."""
        row = self._find(self._digest(key))
        if row is None or self._now() - self._cells[row + _TOUCHED] > forget * 1000:
            return 0
        return self._cells[row + _COMMON]

    def set_common(self, key: str, count: int) -> None:
        row = self._find_or_make(self._digest(key)) if count else self._find(self._digest(key))
        if row is not None:
            self._cells[row + _COMMON] = count
            self._cells[row + _TOUCHED] = self._now()
            self._free_if_empty(row)

    # --- rows ----------------------------------------------------------------------------------------------------

    def keys(self) -> int:
        """How many keys count something."""
        return sum(1 for row in range(0, _ROWS * self._stride, self._stride) if self._cells[row])

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _digest(self, key: str) -> int:
        # Keyed: nobody can choose keys that fall together.
        digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, key=self.secret).digest()
        return int.from_bytes(digest, "little") | 1  # zero: nobody's

    def _window(self, digest: int) -> Iterator[int]:
        first = digest >> 1
        for number in range(first, first + _WINDOW):
            yield (number % _ROWS) * self._stride

    def _find(self, digest: int) -> int | None:
        for row in self._window(digest):
            if self._cells[row] == digest:
                return row
        return None

    def _find_or_make(self, digest: int) -> int | None:
        free: int | None = None
        for row in self._window(digest):
            held = self._cells[row]
            if held == digest:
                return row
            if not held and free is None:
                free = row
        if free is None:
            free = self._evict(digest)
        if free is not None:
            self._cells[free] = digest
            self._cells[free + _TOUCHED] = self._now()
        return free

    def _evict(self, digest: int) -> int | None:
        idle = [row for row in self._window(digest) if not any(self._cells[row + _WORKERS : row + self._stride])]
        if not idle:
            return None
        oldest = min(idle, key=lambda row: self._cells[row + _TOUCHED])
        self._cells[oldest + _COMMON] = 0
        return oldest

    def _free_if_empty(self, row: int) -> None:
        if not any(self._cells[row + _COMMON : row + self._stride]):
            self._cells[row] = 0
