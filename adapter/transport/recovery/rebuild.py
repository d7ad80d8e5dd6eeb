"""Rebuild the index from the latest snapshot and the journal, next to the old one, which is kept."""

from __future__ import annotations

import contextlib
import os
import time

from adapter.store import disk, index, layout, snapshots
from adapter.store.disk import Directories
from adapter.store.journal import Journal, without_aborted
from adapter.transport import apply


def build(directories: Directories, journal: Journal, path: str) -> int:
    """Fill a new index at ``path`` with everything up to the journal's last record; returns that record's seq.

    Raises :class:`~adapter.store.journal.JournalDamaged` if snapshot and journal do not reach from the beginning to
    the end without a gap.
    """
    connection = index.create(path, journal.store)
    try:
        seq = snapshots.load_latest(directories, connection)
        _, checksum = index.applied(connection)
        with index.bulk_transaction(connection):
            for record in without_aborted(journal.records(seq, journal.last_seq, checksum)):
                for effect in record.effects:
                    apply.apply_index(effect, connection, record.at)
            index.set_applied(connection, journal.last_seq, journal.last_checksum)
        return journal.last_seq
    finally:
        connection.close()


def is_unfinished(directories: Directories, applied: int) -> bool:
    """True if a repair sealed its tables with a snapshot and died before journal and index followed.

    Only repair makes a snapshot of records that the index does not have. Continuing with the old index would assign
    sequence numbers twice.
    """
    newest = max(snapshots.available(directories), default=0)
    return applied < newest and snapshots.verify(directories, newest)


def finish(directories: Directories, journal: Journal) -> None:
    """Let the journal go on behind the newest snapshot, and build the index from there."""
    newest = max(snapshots.available(directories))
    journal.go_on_after(newest, snapshots.checksum_of(directories, newest))
    replace_index(directories, journal)


def replace_index(directories: Directories, journal: Journal) -> None:
    """Rebuild the index and replace the old one, which moves to the index backups."""
    new_name = f"{layout.INDEX_FILE}.new"
    with directories.stable(()) as root:
        for leftover in (new_name, f"{new_name}-journal"):
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(root, leftover)
        build(directories, journal, layout.absolute(directories.root, new_name))
        disk.sync_file_system(root)
        kept = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.urandom(3).hex()}-{layout.INDEX_FILE}"
        with directories.open(layout.INDEX_BACKUPS, create=True) as backups:
            # SQLite would roll the old rollback journal back into the new index: it must be gone before.
            if disk.exists(root, f"{layout.INDEX_FILE}-journal"):
                disk.rename(root, f"{layout.INDEX_FILE}-journal", backups, f"{kept}-journal")
            if disk.exists(root, layout.INDEX_FILE):
                disk.link(root, layout.INDEX_FILE, backups, kept)
        disk.rename(root, new_name, root, layout.INDEX_FILE)
        disk.sync_directory(root)
