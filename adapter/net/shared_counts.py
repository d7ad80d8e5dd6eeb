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
from typing import NewType

_ROWS = 1 << 14
_WINDOW = 16  # rows in which a key may stand
_ALL_ROWS = _ROWS + _WINDOW  # a window does not go round
_OCTETS = 8  # of a cell

Key = NewType("Key", int)


class SharedCounts:
    """``column`` says which worker this is, counted from zero."""

    def __init__(self, workers: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self.workers = workers
        self.column = 0
        self._clock = clock
        self._memory = mmap.mmap(-1, _OCTETS * _ALL_ROWS * (3 + workers))
        cells = memoryview(self._memory).cast("Q")
        self._keys, self._touched, self._common = (cells[n * _ALL_ROWS : (n + 1) * _ALL_ROWS] for n in range(3))
        self._counts = cells[3 * _ALL_ROWS :]  # those of a row stand together
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

    def key(self, text: str) -> Key:
        """What is counted under this name."""
        # With a secret: nobody can choose names that fall together.
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=self.secret).digest()
        return Key(int.from_bytes(digest, "little") | 1)  # zero: nobody's

    # --- counts of workers ---------------------------------------------------------------------------------------

    def of_workers(self, key: Key) -> list[int]:
        """What each worker counts for the key."""
        row = self._find(key)
        return [0] * self.workers if row is None else self._of_row(row)

    def add(self, key: Key) -> bool:
        """Count one more in this worker's column; False: there is no room, and it is not counted."""
        row = self._find_or_make(key)
        if row is None:
            return False
        self._counts[row * self.workers + self.column] += 1
        return True

    def take(self, key: Key) -> None:
        """One that :meth:`add` counted is no more."""
        row = self._find(key)
        if row is not None and self._counts[row * self.workers + self.column]:
            self._counts[row * self.workers + self.column] -= 1
            self._free_if_empty(row)

    def drop_worker(self, column: int) -> None:
        """A worker is dead: it counts nothing any more."""
        with self.exclusive():
            for row, count in enumerate(self._counts[column :: self.workers].tolist()):
                if count:
                    self._counts[row * self.workers + column] = 0
                    self._free_if_empty(row)

    # --- the common count ----------------------------------------------------------------------------------------

    def common(self, key: Key, forget: float) -> int:
        """The common count, if it was touched less than ``forget`` seconds ago."""
        row = self._find(key)
        if row is None or self._now() - self._touched[row] > forget * 1000:
            return 0
        return self._common[row]

    def set_common(self, key: Key, count: int, *, touch: bool = True) -> None:
        """``touch``: the time after which the count is forgotten begins now."""
        row = self._find_or_make(key) if count else self._find(key)
        if row is not None:
            self._common[row] = count
            if touch:
                self._touched[row] = self._now()
            self._free_if_empty(row)

    # --- rows ----------------------------------------------------------------------------------------------------

    def keys(self) -> int:
        """How many keys count something."""
        return sum(map(bool, self._keys.tolist()))

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _window(self, key: Key) -> tuple[int, list[int]]:
        """The first row in which a key may stand, and the keys from there on."""
        first = (key >> 1) % _ROWS
        return first, self._keys[first : first + _WINDOW].tolist()

    def _find(self, key: Key) -> int | None:
        first, keys = self._window(key)
        return first + keys.index(key) if key in keys else None

    def _find_or_make(self, key: Key) -> int | None:
        first, keys = self._window(key)
        if key in keys:
            return first + keys.index(key)
        row = first + keys.index(0) if 0 in keys else self._evict(first)
        if row is not None:
            self._keys[row] = key
            self._touched[row] = self._now()
        return row

    def _evict(self, first: int) -> int | None:
        idle = [row for row in range(first, first + _WINDOW) if not any(self._of_row(row))]
        if not idle:
            return None
        oldest = min(idle, key=self._touched.__getitem__)
        self._common[oldest] = 0
        return oldest

    def _of_row(self, row: int) -> list[int]:
        return self._counts[row * self.workers : (row + 1) * self.workers].tolist()

    def _free_if_empty(self, row: int) -> None:
        if not self._common[row] and not any(self._of_row(row)):
            self._keys[row] = 0
