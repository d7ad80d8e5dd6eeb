"""Create a backup of a store in use: a complete, consistent copy as of one journal record.

Content is immutable and is linked or copied without a lock. Then the store is quiesced while the index is copied and
the journal files are opened. Content that the index copy names and that arrived after the first pass is linked or
copied afterwards. If content was removed in between, which is rare, the second part is repeated. Projections and folder
identities are created from the index copy.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass

from adapter.backup import manifest, writer
from adapter.backup.manifest import Manifest, count, walk
from adapter.backup.writer import TreeWriter
from adapter.store import disk, layout, snapshots, store_id
from adapter.store.disk import Directories
from adapter.store.queries import contents
from adapter.store.queries.contents import Query
from adapter.transport.recovery import checkpoint, reconcile
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason

_MAX_ROUNDS = 5
_SNAPSHOT_WAIT_SECONDS = 60.0

#: The directory of a content file, and its name.
Location = tuple[layout.Parts, str]


@dataclass(frozen=True, slots=True)
class CreatedBackup:
    path: str
    manifest: Manifest
    copied: int  # octets that were not there before
    linked: int
    missing: list[str]  # content that the index names and the store does not have


def create_backup(root: str, destination: str, *, credentials: bool) -> CreatedBackup:
    """Create a backup in a new directory below ``destination``. Raises MailError."""
    real = os.path.realpath(root)
    if os.path.commonpath((real, os.path.realpath(destination))) == real:
        raise MailError(Reason.NOT_ALLOWED, f"{destination} is inside the store: give a directory outside {root}")
    earlier = manifest.backup_names(destination)
    previous = f"{destination}/{earlier[-1]}" if earlier else None
    with (
        Transport.open(root) as transport,
        contextlib.closing(Directories(root)) as source,
        writer.unfinished_backup(destination) as path,
        contextlib.closing(TreeWriter(path, previous)) as target,
    ):
        seq, missing = _BackupRun(transport, source, target).run(credentials=credentials)
        described = _describe(target.directories, seq, credentials=credentials)
        target.write((), manifest.FILE, described.encode(), 0o444)
        return CreatedBackup(writer.publish(path, seq), described, target.copied, target.linked, missing)


class _BackupRun:
    def __init__(self, transport: Transport, source: Directories, target: TreeWriter) -> None:
        self._transport = transport
        self._source = source
        self._target = target

    def run(self, *, credentials: bool) -> tuple[int, list[str]]:
        """Return the last journal record in the backup, and the content that was missing in the store."""
        self._copy_content(self._transport.index.query)
        store_id.write(self._target.directories, self._transport.store)
        for last_round in (number == _MAX_ROUNDS for number in range(1, _MAX_ROUNDS + 1)):
            seq = self._copy_state()
            path = layout.absolute(self._target.directories.root, layout.INDEX_FILE)
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as index:
                missing = self._copy_content(contents.on_connection(index))
                if last_round or not any(self._was_removed(location) for location in missing):
                    self._remove_unreferenced(contents.on_connection(index))
                    reconcile.lay_out(self._target.directories, index)
                    break
            self._remove_state()
        if credentials:
            self._copy_credentials()
        self._copy_tree(layout.QUARANTINE)
        checkpoint.write(self._target.directories, seq)
        recorded_losses = contents.lost_parts(self._transport.index.query)
        return seq, [
            layout.absolute(self._source.root, *parts, name) for parts, name in missing if name not in recorded_losses
        ]

    # --- content: immutable files ------------------------------------------------------------------------------------

    def _copy_content(self, query: Query) -> list[Location]:
        """Link or copy the content that an index names; return what is missing."""
        return [location for location in _locations(query) if not self._link_or_copy(*location)]

    def _link_or_copy(self, parts: layout.Parts, name: str) -> bool:
        try:
            with self._source.stable(parts) as directory:
                return self._target.link_or_copy(parts, name, directory)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _was_removed(self, location: Location) -> bool:
        """Return True if the store has removed the content since; if not, it is lost and another round is useless."""
        return not _is_referenced(self._transport.index.query, *location)

    def _remove_unreferenced(self, query: Query) -> None:
        """Remove content that was copied before the index and is not named by it."""
        for top in (layout.MESSAGES, layout.ATTACHMENTS):
            with self._target.directories.stable(top, create=True):
                pass
            for entry in walk(self._target.directories, top):
                if entry.kind == "file" and not _is_referenced(query, top, entry.name):
                    self._target.remove(entry.parts, entry.name)

    # --- state: index, snapshots and journal -------------------------------------------------------------------------

    def _copy_state(self) -> int:
        """Copy index, snapshots and journal as of one record, and return its number."""
        path = layout.absolute(self._target.directories.root, layout.INDEX_FILE)
        disk.make_private(path)
        with self._target.directories.stable(layout.JOURNAL, create=True):
            pass  # an unused store has no segments
        with self._snapshots_locked(), contextlib.ExitStack() as open_files:
            with contextlib.closing(sqlite3.connect(path)) as copy:
                contents.disable_sync(copy)  # checkpoint.write() syncs the file system
                with self._transport.quiesced() as journal:
                    seq = journal.last_seq
                    self._transport.index.writer.backup(copy)
                    newest, octets = journal.extent
                    segments = {first: self._open_segment(first, open_files) for first in journal.segments()}
            self._target.copied += os.path.getsize(path)
            for snapshot_seq in snapshots.available(self._source):
                self._copy_tree(layout.snapshot_directory(snapshot_seq))
            for first, fd in segments.items():
                name = layout.journal_segment(first)
                if first == newest:
                    self._target.copy(layout.JOURNAL, name, fd, octets)
                elif not self._link_or_copy(layout.JOURNAL, name):  # compacted since
                    self._target.copy(layout.JOURNAL, name, fd)
        return seq

    def _open_segment(self, first: int, open_files: contextlib.ExitStack) -> int:
        with self._source.stable(layout.JOURNAL) as directory:
            fd = disk.open_read(directory, layout.journal_segment(first))
        open_files.callback(os.close, fd)
        return fd

    def _remove_state(self) -> None:
        """Remove the copied state before the next round; content stays."""
        for top in (layout.JOURNAL, layout.SNAPSHOTS):
            for entry in [entry for entry in walk(self._target.directories, top) if entry.kind == "file"]:
                self._target.remove(entry.parts, entry.name)
        self._target.remove((), layout.INDEX_FILE)

    @contextlib.contextmanager
    def _snapshots_locked(self) -> Iterator[None]:
        """Hold the snapshot lock: no process writes or removes a snapshot."""
        with snapshots.writing_alone(self._source, _SNAPSHOT_WAIT_SECONDS) as alone:
            if not alone:
                raise MailError(Reason.LOCK_TIMEOUT, "another process is writing a snapshot")
            yield

    def _copy_tree(self, top: layout.Parts) -> None:
        """Link or copy all files below a directory of immutable files."""
        with contextlib.suppress(FileNotFoundError):
            for entry in walk(self._source, top):
                if entry.kind == "file":
                    self._link_or_copy(entry.parts, entry.name)

    def _copy_credentials(self) -> None:
        for name in layout.CREDENTIAL_FILES:
            with contextlib.suppress(FileNotFoundError), self._source.open(layout.CREDENTIALS) as directory:
                fd = disk.open_read(directory, name)
                try:
                    self._target.copy(layout.CREDENTIALS, name, fd)
                finally:
                    os.close(fd)


def _locations(query: Query) -> Iterator[Location]:
    """Yield where the content is that an index names."""
    for message_id in contents.message_ids(query):
        yield layout.message_directory(message_id), layout.message_name(message_id)
    for sha256 in contents.blob_digests(query):
        yield layout.blob_directory(sha256), sha256


def _is_referenced(query: Query, parts: layout.Parts, name: str) -> bool:
    """Return True if an index names the content file."""
    if parts[:1] == layout.ATTACHMENTS:
        return contents.has_blob(query, name)
    return contents.has_message(query, name.removesuffix(".md"))


def _describe(directories: Directories, seq: int, *, credentials: bool) -> Manifest:
    totals = count(walk(directories))
    return Manifest(
        version=layout.VERSION,
        seq=seq,
        taken=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        credentials=credentials,
        files=totals.files,
        octets=totals.octets,
        links=totals.links,
    )
