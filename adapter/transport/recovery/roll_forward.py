"""Roll forward: apply what the journal committed but files or index do not have yet.

After a crash of a process the page cache is whole: the records the index has not applied are applied, in milliseconds.
After a power loss everything since the last checkpoint is suspect: content since then is verified and restored from the
journal (or from synced staging), and the index is rebuilt from snapshot and journal. After a sync that failed it is
suspect as well, and reading it proves nothing: the page cache may show what never reached the disk. There content is
written again from the journal; files in staging were synced on their own and are trusted.

Files of folders are not replayed step by step, since any part of a batch may already be on disk: content is put in
place, the index is brought up to date, and then each touched directory is made equal to what the index says.
"""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import dataclass

from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.store.effects import AddContent, DropContent
from adapter.store.index import Index, IndexDiverged, set_applied
from adapter.store.journal import Journal, JournalDamaged, Record, taken_back, without_aborted
from adapter.transport import apply as effects
from adapter.transport.apply import content
from adapter.transport.apply.content import Belief
from adapter.transport.recovery import checkpoint, rebuild, reconcile

_log = logging.getLogger(__name__)


class Recovery:
    """Keeps the index in step with the journal; only the holder of the index lock may call it."""

    def __init__(self, directories: Directories, journal: Journal, index: Index) -> None:
        self._directories = directories
        self._journal = journal
        self._index = index
        self._in_step = -1  # journal seq up to which we know the index to be applied

    def committed(self, seq: int) -> None:
        """The caller just applied everything up to this record."""
        self._in_step = seq

    def catch_up(self) -> int:
        """Apply what other processes journaled and, dying, did not apply. Returns how many records that were."""
        if self._in_step == self._journal.last_seq:
            return 0
        applied, checksum = self._index.applied_for_writer()
        check_reaches(self._journal, applied)
        check_history(self._journal, applied, checksum)
        count = 0
        if applied < self._journal.last_seq:
            count = self._roll_forward(applied)
        self._in_step = self._journal.last_seq
        return count

    def _roll_forward(self, applied: int) -> int:
        self._journal.write_again(applied)
        records = list(self._journal.records(applied, self._journal.last_seq))
        with self._index.transaction() as connection:
            count = restore_files(self._directories, connection, records, Belief.NAMES, apply=True)
            set_applied(connection, self._journal.last_seq, self._journal.last_checksum)
        if count:
            _log.warning("rolled %d operations forward from the journal", count)
        return count


def restore_files(
    directories: Directories,
    connection: sqlite3.Connection,
    records: list[Record],
    belief: Belief,
    *,
    apply: bool,
) -> int:
    """Bring content, index (if ``apply``) and directories to where these records lead; returns how many count.

    Aborted records do not count, but parts of what was done and undone for them may be on disk.
    """
    undone = taken_back(records)
    records = list(without_aborted(iter(records)))
    dropped = {
        message_id
        for record in records
        for effect in record.effects
        if isinstance(effect, DropContent)
        for message_id in effect.message_ids
    }
    touched = reconcile.Touched()
    for record in records:
        for effect in record.effects:
            if isinstance(effect, AddContent):
                content.restore(effect, directories, belief, leaving=effect.message_id in dropped)
            elif isinstance(effect, DropContent):
                content.remove_again(effect, directories)
            touched.add(effect)
            if apply:
                effects.apply_index(effect, connection, record.at)
    for effect in (effect for record in undone for effect in record.effects):
        touched.add(effect)
        content.revert(effect, directories, connection)
    reconcile.reconcile(directories, connection, touched, rewrite=belief is Belief.NOTHING)
    return len(records)


def check_reaches(journal: Journal, seq: int) -> None:
    """Raise :class:`JournalDamaged` if the journal ends before a record that is known to have been written.

    Continuing would reuse the sequence numbers of the lost records and hide that they are missing.
    """
    if journal.last_seq < seq:
        raise JournalDamaged(f"records {journal.last_seq + 1} to {seq} are missing")


def check_history(journal: Journal, seq: int, checksum: str) -> None:
    """Raise :class:`IndexDiverged` if the index applied another record of this number than the journal holds.

    One of the two is a copy that went its own way: rolling it forward would mix two histories.
    """
    journaled = journal.checksum_at(seq)
    if journaled is not None and journaled != checksum:
        raise IndexDiverged(f"record {seq} has the checksum {journaled} in the journal, {checksum} in the index")


@dataclass(frozen=True, slots=True)
class Suspect:
    """Records after ``seq`` may not be durable in files and index."""

    seq: int
    cached: bool  # the machine went on since: what it shows need not be what is on disk


def find_suspect(directories: Directories, journal: Journal) -> Suspect | None:
    """Return where to start from if the machine restarted or a sync failed before all layers were durable."""
    last = checkpoint.read(directories) or checkpoint.Checkpoint(0, "")
    restarted = last.boot != disk.boot_id()
    if not restarted and not last.suspect:
        return None
    with directories.stable(()) as root:
        # Of a transaction that was never committed. It was not synced: SQLite might take garbage for old pages.
        interrupted = restarted and disk.exists(root, f"{layout.INDEX_FILE}-journal")
    if last.seq >= journal.last_seq and not interrupted:
        return None
    # Records that were compacted away were durable before.
    return Suspect(max(last.seq, min(journal.segments(), default=1) - 1), not restarted)


def replace_index(directories: Directories, journal: Journal, suspect: Suspect) -> None:
    """Rebuild the index, before anything else; no other process may use the store."""
    why = "a sync failed" if suspect.cached else "the machine stopped without a clean close"
    _log.warning("%s: restoring from record %d on", why, suspect.seq)
    rebuild.replace_index(directories, journal)


def restore_suspect(directories: Directories, journal: Journal, index: Index, suspect: Suspect) -> None:
    """Then put all later files in place; the caller marks them durable."""
    belief = Belief.NOTHING if suspect.cached else Belief.CONTENT
    records = list(journal.records(suspect.seq, journal.last_seq))
    with index.transaction() as connection:
        restore_files(directories, connection, records, belief, apply=False)
