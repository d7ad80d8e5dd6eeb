"""Counters in shared memory for all workers of a server: connections by peer and user, failed logins.

The table is allocated before the workers are forked. A row belongs to a key (its digest) and has one column for each
worker and one common column. A worker changes its own column and the common one, under a kernel lock that is released
when its process dies; :meth:`drop_worker` removes the counts of a dead worker.

Invariants: memory is bounded, whatever peers send; a row with a worker's count is never reassigned to another key;
rows with only a common count are reassigned when room is needed, the least recently touched first.
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
_WINDOW = 16  # rows that may hold a key
_ALL_ROWS = _ROWS + _WINDOW  # a window does not wrap around
_CELL_BYTES = 8

Key = NewType("Key", int)


class SharedCounts:
    """The shared table; ``column`` is the number of this worker, from zero."""

    def __init__(self, workers: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self.workers = workers
        self.column = 0
        self._clock = clock
        self._memory = mmap.mmap(-1, _CELL_BYTES * _ALL_ROWS * (3 + workers))
        cells = memoryview(self._memory).cast("Q")
        self._keys, self._touched, self._common = (cells[n * _ALL_ROWS : (n + 1) * _ALL_ROWS] for n in range(3))
        self._counts = cells[3 * _ALL_ROWS :]  # row by row
        #: A key for keyed digests, known only to the workers, so that a digest is the same in each of them.
        self.secret = os.urandom(32)
        self._lock = os.memfd_create("markpost-counts") if workers > 1 else -1

    def __del__(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Make the reads and writes of the block atomic for all workers. Never blocks for long."""
        if self._lock < 0:
            yield
            return
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)

    def key(self, text: str) -> Key:
        """Return the key of a counter."""
        # Keyed, so that a peer cannot choose names that collide.
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=self.secret).digest()
        return Key(int.from_bytes(digest, "little") | 1)  # zero marks a free row

    # --- counts of workers -------------------------------------------------------------------------------------------

    def of_workers(self, key: Key) -> list[int]:
        """Return the count of each worker."""
        row = self._find(key)
        return [0] * self.workers if row is None else self._of_row(row)

    def add(self, key: Key) -> bool:
        """Add one to this worker's count; False: the table has no room, and nothing is counted."""
        row = self._find_or_make(key)
        if row is None:
            return False
        self._counts[row * self.workers + self.column] += 1
        return True

    def take(self, key: Key) -> None:
        """Undo one :meth:`add`."""
        row = self._find(key)
        if row is not None and self._counts[row * self.workers + self.column]:
            self._counts[row * self.workers + self.column] -= 1
            self._free_if_empty(row)

    def drop_worker(self, column: int) -> None:
        """Remove the counts of a dead worker."""
        with self.exclusive():
            for row, count in enumerate(self._counts[column :: self.workers].tolist()):
                if count:
                    self._counts[row * self.workers + column] = 0
                    self._free_if_empty(row)

    # --- the common count --------------------------------------------------------------------------------------------

    def common(self, key: Key, forget: float) -> int:
        """Return the common count, or 0 if it was last touched more than ``forget`` seconds ago."""
        row = self._find(key)
        if row is None or self._now() - self._touched[row] > forget * 1000:
            return 0
        return self._common[row]

    def set_common(self, key: Key, count: int, *, touch: bool = True) -> None:
        """Set the common count; with ``touch`` its expiry is postponed."""
        row = self._find_or_make(key) if count else self._find(key)
        if row is not None:
            self._common[row] = count
            if touch:
                self._touched[row] = self._now()
            self._free_if_empty(row)

    # --- rows --------------------------------------------------------------------------------------------------------

    def keys(self) -> int:
        """Return the number of rows in use."""
        return sum(map(bool, self._keys.tolist()))

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _window(self, key: Key) -> tuple[int, list[int]]:
        """Return the first row that may hold a key, and the keys of its window."""
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
