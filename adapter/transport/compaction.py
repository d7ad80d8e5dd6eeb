"""Compaction: when the journal has grown, a snapshot is taken so that old segments can go.

It runs as a process of its own: a server that lives for months should not carry Parquet's libraries in its memory.
"""

from __future__ import annotations

import os
import subprocess
import sys

from adapter.store import layout, snapshots
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
                total += entry.stat(follow_symlinks=False).st_size
    return total >= DUE_BYTES


def start(root: str) -> subprocess.Popen[bytes]:
    """Take a snapshot in the background; the caller may wait for it or poll it."""
    return subprocess.Popen(  # noqa: S603 - our own interpreter and command
        [sys.executable, "-m", "adapter.cli", "snapshot", "--root", root],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
