"""Restore content from the journal, which contains small messages in full, and from staging."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection, Iterator

from adapter.maintenance.expected import tables
from adapter.maintenance.expected.journal_segments import lines
from adapter.store import disk, journal, layout, quarantine
from adapter.store.disk import Directories
from adapter.store.effects import AddContent
from adapter.store.journal import JournalDamaged


class MissingContent:
    """Missing messages and blobs, listed in a file because all content of a store may be missing."""

    def __init__(self, directories: Directories, scratch: str, foreign: Collection[str] = ()) -> None:
        """``foreign``: names of journal segments of other stores."""
        self._directories = directories
        self._foreign = foreign
        self._list = tables.create(f"{scratch}/missing.sqlite")
        self._list.execute("CREATE TABLE IF NOT EXISTS missing (id TEXT PRIMARY KEY) WITHOUT ROWID")

    def close(self) -> None:
        self._list.close()

    def add(self, name: str) -> None:
        self._list.execute("INSERT OR IGNORE INTO missing VALUES (?)", (name,))

    def contains(self, name: str) -> bool:
        return self._list.execute("SELECT 1 FROM missing WHERE id = ?", (name,)).fetchone() is not None

    def _remove(self, name: str) -> None:
        self._list.execute("DELETE FROM missing WHERE id = ?", (name,))

    def restore(self, *, dry_run: bool = False) -> None:
        """Restore from the journal in one pass; what remains is unrecoverable. ``dry_run``: write nothing."""
        if self._list.execute("SELECT 1 FROM missing LIMIT 1").fetchone() is None:
            return
        for effect in _contents(self._directories, self._foreign):
            message, session = effect.message_id, effect.staged.session
            if self.contains(message):
                file = None if effect.file is None else effect.file.encode()
                held = self._held(effect.file_sha256, file, session, effect.staged.name)
                if held is not None:
                    if not dry_run:
                        self._put(layout.message_directory(message), layout.message_name(message), held)
                    self._remove(message)
            for blob in effect.blobs:
                if self.contains(blob.sha256):
                    held = self._held(blob.sha256, blob.data.raw if blob.data else None, session, blob.staged)
                    if held is not None:
                        if not dry_run:
                            self._put(layout.blob_directory(blob.sha256), blob.sha256, held)
                        self._remove(blob.sha256)

    def _held(self, sha256: str, data: bytes | None, session: str, staged: str | None) -> bytes | None:
        """The content of a record, inline or in staging; None if it does not match its checksum."""
        if data is None and staged is not None:
            with contextlib.suppress(OSError), self._directories.open(layout.staging_directory(session)) as staging:
                data = disk.read_file(staging, staged)
        return data if data is not None and hashlib.sha256(data).hexdigest() == sha256 else None

    def _put(self, where: layout.Parts, name: str, data: bytes) -> None:
        """Write a file, and quarantine the damaged entry of that name."""
        with self._directories.open(where, create=True) as target:
            if disk.exists(target, name):
                quarantine.move(self._directories, where, name, "does not match its checksum")
            temporary = f".{name[:200]}.restored"
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(target, temporary)
            disk.write_new(target, temporary, data, sync=True)
            disk.rename(target, temporary, target, name)


def _contents(directories: Directories, foreign: Collection[str]) -> Iterator[AddContent]:
    with directories.open(layout.JOURNAL) as directory:
        segments = sorted(name for name in os.listdir(directory) if layout.JOURNAL_SEGMENT.match(name))
    for name in (name for name in segments if name not in foreign):
        with contextlib.suppress(FileNotFoundError):  # removed by a compaction: its content is in the files
            for line in lines(directories, int(name.partition(".")[0])):
                with contextlib.suppress(JournalDamaged):
                    for effect in journal.decode(line).effects:
                        if isinstance(effect, AddContent):
                            yield effect
