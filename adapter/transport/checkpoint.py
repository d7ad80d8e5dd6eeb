"""Checkpoints: up to which journal record everything is durable in files and index, and under which boot.

A delivery is committed by the journal's fsync alone. Files, links and index reach the disk together at a checkpoint,
with one syncfs. After a power loss (another boot id) recovery starts from the last checkpoint; if the journal ends
exactly there, nothing was lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from adapter.store import disk, layout
from adapter.store.disk import Directories


@dataclass(frozen=True, slots=True)
class Checkpoint:
    seq: int
    boot: str


def read(directories: Directories) -> Checkpoint | None:
    """The last checkpoint, or None where there is none that can be read."""
    try:
        with directories.stable(layout.JOURNAL) as directory:
            body = orjson.loads(disk.read_file(directory, layout.CHECKPOINT_FILE))
        return Checkpoint(int(body["seq"]), str(body["boot"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remove_unfinished(directories: Directories) -> None:
    """Remove what processes that died while writing a checkpoint left behind. Call this before :func:`write`."""
    last = read(directories)
    rebooted = last is None or last.boot != disk.boot_id()
    with directories.stable(layout.JOURNAL) as directory:
        disk.remove_unfinished(directory, layout.CHECKPOINT_FILE, rebooted=rebooted)


def write(directories: Directories, seq: int) -> None:
    """Make everything up to ``seq``, which must be applied, durable; then say so."""
    disk.sync_file_system(directories.root_fd)
    body = orjson.dumps({"seq": seq, "boot": disk.boot_id()}) + b"\n"
    with directories.stable(layout.JOURNAL) as directory:
        disk.replace_file(directory, layout.CHECKPOINT_FILE, body)
