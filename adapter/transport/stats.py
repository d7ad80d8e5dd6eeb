"""Statistics of an open store: the sizes of its parts and how far they lag. Changes nothing and takes no lock."""

from __future__ import annotations

import os
from dataclasses import dataclass

from adapter.store import layout
from adapter.store.disk import Directories
from adapter.store.index import Index
from adapter.store.queries import outbox
from adapter.transport.recovery import checkpoint


@dataclass(frozen=True, slots=True)
class StoreStats:
    queue_due: int
    queue_waiting: int
    queue_oldest: float  # seconds
    journal_bytes: int
    journal_segments: int
    index_bytes: int
    applied: int  # the last journal record that the index has
    checkpoint: int  # the last that was durable everywhere
    free_bytes: int


def collect_stats(directories: Directories, index: Index, now: float) -> StoreStats:
    """Blocks. Raises OSError and sqlite3.Error."""
    queue = index.ask(outbox.length, int(now))
    with directories.stable(layout.JOURNAL) as journal:
        sizes = [
            entry.stat(follow_symlinks=False).st_size
            for entry in os.scandir(journal)
            if layout.JOURNAL_SEGMENT.match(entry.name)
        ]
    with directories.stable(()) as top:
        size = os.stat(layout.INDEX_FILE, dir_fd=top, follow_symlinks=False).st_size
        room = os.statvfs(top)
    last = checkpoint.read(directories)
    return StoreStats(
        queue_due=queue.due,
        queue_waiting=queue.waiting,
        queue_oldest=0.0 if queue.oldest is None else max(0.0, now - queue.oldest),
        journal_bytes=sum(sizes),
        journal_segments=len(sizes),
        index_bytes=size,
        applied=index.applied_seq(),
        checkpoint=last.seq if last else 0,
        free_bytes=room.f_bavail * room.f_frsize,
    )
