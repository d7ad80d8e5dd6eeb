"""Repair target: the tables that repair changes, and their installation as the index.

With a complete journal, the expected tables become the index first, and every further change is a journaled ``repair``
record, so that a later replay gives the same tables. Otherwise changes go to the private tables, and a snapshot of
them seals the result: from there on snapshot and journal are complete again. If the process crashes, the store is
either unchanged or partly repaired, and the next run starts with a new inspection.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import Sequence

from adapter.maintenance import workspace
from adapter.maintenance.expected import tables
from adapter.maintenance.expected.replay import BASE, UNREPAIRED
from adapter.maintenance.expected.replay_process import ReplayFacts
from adapter.store import disk, index, layout, quarantine, snapshots
from adapter.store.disk import Directories
from adapter.store.effects import OPERATOR, Actor, Effect
from adapter.store.index import Index
from adapter.store.journal import Journal, Record
from adapter.store.segments import Header, begin_segment
from adapter.transport import apply, ids
from adapter.transport.recovery import checkpoint

_ACTOR = Actor(OPERATOR, "markpost repair")


class RepairTarget:
    """The tables under repair: private until they are sealed, or the index with its journal."""

    def __init__(self, directories: Directories, facts: ReplayFacts, scratch: str) -> None:
        self.directories = directories
        self.facts = facts
        self._base = f"{scratch}/{BASE}"
        self._scratch = scratch
        if facts.read:  # the next inspection continues from these tables
            workspace.copy_file(self._base, f"{scratch}/{UNREPAIRED}")
        self._private: sqlite3.Connection | None = tables.private(tables.connect(self._base, write=True))
        self._index: Index | None = None
        self._journal: Journal | None = None
        self.changes = 0

    def close(self) -> None:
        if self._private is not None:
            self._private.close()
            self._private = None
        if self._index is not None:
            self._index.close()
            self._index = None
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    @property
    def connection(self) -> sqlite3.Connection:
        connection = self._private if self._index is None else self._index.writer
        if connection is None:
            raise RuntimeError("the repair target is closed")
        return connection

    def open_journal(self, *, replace: bool) -> None:
        """Journal all further changes. ``replace``: install the expected tables as the index first."""
        if replace:
            self._swap_index()
        elif self._private is not None:
            self._private.close()
            self._private = None
        if self.facts.behind:
            self._begin_segment(self.facts.last_seq + 1, self.facts.last_checksum)
        self._journal = Journal(self.directories, self.facts.store)
        last = checkpoint.read(self.directories, self.facts.store)
        self._journal.durable_seq = last.seq if last else 0
        self._journal.refresh()
        self._index = Index(self.directories, self.facts.store)

    def commit(self, changes: Sequence[Effect]) -> None:
        """Apply effects to the tables; with a complete journal, as one record."""
        if not changes:
            return
        self.changes += 1
        at = ids.microseconds()
        if self._index is None or self._journal is None:
            connection = self.connection
            connection.execute("BEGIN")
            try:
                for effect in changes:
                    apply.apply_index(effect, connection, at)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            return
        with self._index.transaction() as connection:
            for effect in changes:
                apply.apply_index(effect, connection, at)
            self._journal.append([Record(at=at, op="repair", actor=_ACTOR, effects=list(changes))])
            index.set_applied(connection, self._journal.last_seq, self._journal.last_checksum)

    def finish(self) -> None:
        """Seal private tables, and make the result durable."""
        if self._index is None:
            self._seal()
        seq = self.connection.execute("SELECT value FROM meta WHERE key = 'applied_seq'").fetchone()[0]
        checkpoint.write(self.directories, int(seq), afresh=True)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _seal(self) -> None:
        seq, checksum = self.facts.next_seq, os.urandom(4).hex()  # not a record's: the start of the new chain
        index.set_applied(self.connection, seq, checksum)
        with self.directories.open(layout.SNAPSHOTS, create=True):
            pass
        snapshots.write(self.directories, self.connection, seq)
        self._begin_segment(seq + 1, checksum)
        self._swap_index()
        self._index = Index(self.directories, self.facts.store)

    def _begin_segment(self, seq: int, after: str) -> None:
        with self.directories.open(layout.JOURNAL, create=True):
            pass
        begin_segment(self.directories, Header(self.facts.store, seq, after))

    def _swap_index(self) -> None:
        """Install the private tables as the index; back up the old index."""
        if self._private is not None:
            self._private.close()
            self._private = None
        kept = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.urandom(3).hex()}-{layout.INDEX_FILE}"
        new_name = f"{layout.INDEX_FILE}.new"
        with self.directories.open(()) as root, self.directories.open(layout.INDEX_BACKUPS, create=True) as backups:
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(root, new_name)
            self._move_base(root, new_name)
            disk.sync_file_system(root)
            # Remove the old rollback journal first: SQLite would roll it back into the new index.
            if disk.exists(root, f"{layout.INDEX_FILE}-journal"):
                disk.rename(root, f"{layout.INDEX_FILE}-journal", backups, f"{kept}-journal")
            if self.facts.index_kind == "index-foreign":
                quarantine.move(self.directories, (), layout.INDEX_FILE, self.facts.index_detail)
            if disk.exists(root, layout.INDEX_FILE):
                is_file = tables.is_file(layout.absolute(self.directories.root, layout.INDEX_FILE))
                (disk.link if is_file else disk.rename)(root, layout.INDEX_FILE, backups, kept)
            disk.rename(root, new_name, root, layout.INDEX_FILE)
            disk.sync_directory(root)

    def _move_base(self, root: int, new_name: str) -> None:
        """Move the private tables into the root; copy them if the scratch directory is on another file system."""
        scratch = os.open(self._scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            disk.rename(scratch, BASE, root, new_name)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            workspace.copy_file(self._base, layout.absolute(self.directories.root, new_name))
        finally:
            os.close(scratch)
