"""The published sequence number: up to which record all layers are, readable by every process without a query.

Each process that applies records publishes the last sequence number while it still holds the index lock, so before it
acknowledges anything. A reader that has seen fewer records than that knows that its caches are behind. The number is
eight octets of ``locks/published``, read with one system call.

Invariants:

* the number is never below a record that was acknowledged. A process that dies between commit and publication has
  acknowledged nothing, and the next one that opens the store or commits publishes a number that covers its records;
* a wrong number (a damaged file) costs readers a pass of the change feed and no more: the index decides.
"""

from __future__ import annotations

import logging
import os

from adapter.store import disk, layout
from adapter.store.disk import Directories

_log = logging.getLogger(__name__)

_OCTETS = 8
#: Stands for a file without a number: every cache counts as behind.
_UNKNOWN = (1 << 63) - 1


class PublishedSequence:
    def __init__(self, directories: Directories) -> None:
        self._directories = directories
        self._fd = self._open()
        self._is_failing = False

    def close(self) -> None:
        os.close(self._fd)

    def get(self) -> int:
        """Return the published number. Never blocks; any thread."""
        data = os.pread(self._fd, _OCTETS, 0)
        return int.from_bytes(data, "little") if len(data) == _OCTETS else _UNKNOWN

    def set(self, seq: int) -> None:
        """Publish a number; only the holder of the index lock may do so.

        A failure is logged and not raised: the commit is durable, and the change feed brings it to readers.
        """
        try:
            self.follow()
            disk.set_counter(self._fd, seq.to_bytes(_OCTETS, "little"))
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                _log.error("sequence %d: not published (%s); other processes see changes with a delay", seq, error)
            self._is_failing = True

    def follow(self) -> None:
        """Open the file that is in place now, if another process removed the one that is open. One thread at a time."""
        if os.fstat(self._fd).st_nlink == 0:
            fresh = self._open()
            os.dup2(fresh, self._fd, inheritable=False)  # readers on other threads go on with the same descriptor
            os.close(fresh)

    def _open(self) -> int:
        with self._directories.stable(layout.LOCKS) as directory:
            return disk.open_counter(directory, layout.PUBLISHED_FILE)
