"""Bringing a store of an older version up to date: a chain of steps, each from one version to the next.

Invariants: the holder of the exclusive service lock runs it, so nobody else has the store open. A step may find its own
work half done, since it was interrupted, or done, since only the version was not written: it must come to the same end.
The version is written when the step's work is durable. The index is not migrated: where its tables are others, it is
made anew from snapshots and journal, and the old one is kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.store.index import Index, IndexOfAnotherVersion
from adapter.store.journal import Journal, JournalDamaged
from adapter.transport.recovery import rebuild
from adapter.transport.recovery.opening import version
from protocol.errors import MailError, Reason

#: The version a step starts from -> what it does. There is none yet: version 1 is the first.
STEPS: dict[int, Callable[[Directories], None]] = {}


def migrate(directories: Directories, say: Callable[[str], None]) -> None:
    """Do what is needed, and say each thing when it is done. Raises MailError."""
    found = version(directories)
    while found < layout.VERSION:
        if found not in STEPS:
            raise MailError(Reason.UNKNOWN, f"{directories.root} has version {found}: there is no way from there")
        STEPS[found](directories)
        disk.sync_file_system(directories.root_fd)
        found += 1
        disk.replace_file(directories.root_fd, layout.VERSION_FILE, f"{found}\n".encode(), mode=0o444)
        say(f"version {found}")
    try:
        Index(directories).close()
    except IndexOfAnotherVersion:
        _make_index_anew(directories)
        say("the index is made anew")


def _make_index_anew(directories: Directories) -> None:
    with contextlib.closing(Journal(directories)) as journal:
        try:
            journal.refresh()
            rebuild.replace_index(directories, journal)
        except JournalDamaged as error:
            raise MailError(Reason.UNKNOWN, f"the journal is damaged ({error}): run markpost repair") from error
