"""Compaction: when the journal has grown, a snapshot is taken so that old segments can go.

It runs as a process of its own: a server that lives for months should not carry Parquet's libraries in its memory.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from adapter.store import layout, locks, snapshots
from adapter.store.disk import Directories

#: Journal kept beyond the newest snapshot before a new one is due.
DUE_BYTES = 256 << 20


def is_due(directories: Directories) -> bool:
    newest = max(snapshots.available(directories), default=0)
    total = 0
    with directories.stable(layout.JOURNAL) as journal:
        for entry in os.scandir(journal):
            match = layout.JOURNAL_SEGMENT.match(entry.name)
            if match and int(match.group(1)) > newest:
                with contextlib.suppress(FileNotFoundError):  # another process has compacted it away by now
                    total += entry.stat(follow_symlinks=False).st_size
    return total >= DUE_BYTES


class Compactor:
    """Takes a snapshot in the background when one is due; of all processes of the store, one at a time does."""

    def __init__(self, directories: Directories) -> None:
        self._directories = directories
        self._running: subprocess.Popen[bytes] | None = None
        self._duty = contextlib.ExitStack()  # held while a snapshot is being taken

    def start_if_due(self) -> None:
        if self._running is not None:
            if self._running.poll() is None:
                return
            self.close()
        if is_due(self._directories) and self._duty.enter_context(locks.duty_lock(self._directories, "compaction")):
            self._running = _start(self._directories.root)
        else:
            self._duty.close()

    def close(self) -> None:
        """Release the duty; a snapshot under way continues on its own."""
        self._running = None
        self._duty.close()


def _start(root: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own interpreter and command
        [sys.executable, "-m", "adapter.cli", "snapshot", "--root", root],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
