"""Checkpoints: up to which journal record everything is durable in files and index, and under which boot.

A delivery is committed by the journal's fsync alone. Files, links and index reach the disk together at a checkpoint,
with one syncfs. After a power loss (another boot id) recovery starts from the last checkpoint; if the journal ends
exactly there, nothing was lost.

A syncfs that fails may have lost what it should have written, and the system goes on to show it; the next one says
nothing of it. So the checkpoint before is marked as suspect, and stays the last one until what came after it was
written again (:mod:`adapter.transport.recovery.roll_forward`).
"""

from __future__ import annotations

import errno
import logging
import os
import re
from dataclasses import dataclass, replace

import orjson

from adapter.store import disk, layout, store_id
from adapter.store.disk import Directories

_log = logging.getLogger(__name__)

_UNFINISHED_SEGMENT = re.compile(r"\.([0-9]{16}\.jsonl)\.[0-9]+\.new\Z")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    seq: int
    boot: str
    suspect: bool = False  # a later sync failed: what came after this record may not be on disk


class SyncFailed(OSError):  # noqa: N818 - what happened
    """The checkpoint could not be made durable, and no later one may be."""


def read(directories: Directories, store: str | None = None) -> Checkpoint | None:
    """The last checkpoint, or None where there is none of this store that can be read.

    ``store``: its id; by default the one that the root names.
    """
    try:
        with directories.stable(layout.JOURNAL) as directory:
            body = orjson.loads(disk.read_file(directory, layout.CHECKPOINT_FILE))
        if body["store"] != (store or store_id.read(directories)):
            return None
        return Checkpoint(int(body["seq"]), str(body["boot"]), bool(body.get("suspect")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def remove_unfinished(directories: Directories) -> None:
    """Remove what processes that died while writing a checkpoint, or beginning a segment, left behind.

    Call this before :func:`write`.
    """
    last = read(directories)
    rebooted = last is None or last.boot != disk.boot_id()
    with directories.stable(layout.JOURNAL) as directory:
        segments = {match[1] for name in os.listdir(directory) if (match := _UNFINISHED_SEGMENT.match(name))}
        for name in (layout.CHECKPOINT_FILE, *sorted(segments)):
            disk.remove_unfinished(directory, name, rebooted=rebooted)


def write(directories: Directories, seq: int, *, afresh: bool = False) -> None:
    """Make everything up to ``seq``, which must be applied, durable; then say so. Raises :class:`SyncFailed`.

    ``afresh``: what a failed sync may have lost was written again.
    """
    last = read(directories)
    if last is not None and last.suspect and not afresh:
        raise SyncFailed(
            errno.EIO,
            f"a sync failed, what came after record {last.seq} may not be on disk:"
            " it is written again when all programs that use the store have ended and the first one starts",
        )
    try:
        disk.sync_file_system(directories.root_fd)
    except OSError as error:
        try:
            distrust(directories)
        except OSError as trouble:
            _log.error("that a sync failed cannot be noted: %s", trouble)
        raise SyncFailed(error.errno, f"sync failed: {error.strerror}") from error
    _put(directories, Checkpoint(seq, disk.boot_id()))


def distrust(directories: Directories) -> None:
    """Mark the last checkpoint: nothing that came after it counts as durable until it was written again."""
    last = read(directories) or Checkpoint(0, disk.boot_id())
    if not last.suspect:
        _put(directories, replace(last, suspect=True))


def _put(directories: Directories, new: Checkpoint) -> None:
    body = {"store": store_id.read(directories), "seq": new.seq, "boot": new.boot}
    body |= {"suspect": True} if new.suspect else {}
    with directories.stable(layout.JOURNAL) as directory:
        disk.replace_file(directory, layout.CHECKPOINT_FILE, orjson.dumps(body) + b"\n")
