"""How large the parts of a store are and how far behind one another: a look that changes nothing and takes no lock."""

from __future__ import annotations

import os
from dataclasses import dataclass

from adapter.store import layout
from adapter.store.disk import Directories
from adapter.store.index import Index
from adapter.transport.recovery import checkpoint

_QUEUE = """
SELECT count(*) FILTER (WHERE next_attempt_at <= :now), count(*) FILTER (WHERE next_attempt_at > :now), min(created_at)
FROM outbox
"""


@dataclass(frozen=True, slots=True)
class Measures:
    queue_due: int
    queue_waiting: int
    queue_oldest: float  # seconds
    journal_bytes: int
    journal_segments: int
    index_bytes: int
    applied: int  # the last journal record that the index has
    checkpoint: int  # the last that was durable everywhere
    free_bytes: int


def look(directories: Directories, index: Index, now: float) -> Measures:
    """Blocks. Raises OSError and sqlite3.Error."""
    with index.reading() as connection:
        due, waiting, oldest = connection.execute(_QUEUE, {"now": int(now)}).fetchone()
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
    return Measures(
        queue_due=due,
        queue_waiting=waiting,
        queue_oldest=0.0 if oldest is None else max(0.0, now - oldest),
        journal_bytes=sum(sizes),
        journal_segments=len(sizes),
        index_bytes=size,
        applied=index.applied_seq(),
        checkpoint=last.seq if last else 0,
        free_bytes=room.f_bavail * room.f_frsize,
    )
