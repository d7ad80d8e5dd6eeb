"""Bringing content back from the journal, which carries small messages whole, and from what staging still holds."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator

from pybase64 import b64decode

from adapter.maintenance import tables
from adapter.maintenance.replay import lines
from adapter.store import disk, journal, layout
from adapter.store.disk import Directories
from adapter.store.journal import Effect, JournalDamaged


class Wanted:
    """Messages and blobs that should be there and are not; kept in a file, since all of a store may be lost."""

    def __init__(self, directories: Directories, scratch: str) -> None:
        self._directories = directories
        self._list = tables.create(f"{scratch}/wanted.sqlite")
        self._list.execute("CREATE TABLE IF NOT EXISTS wanted (id TEXT PRIMARY KEY) WITHOUT ROWID")

    def close(self) -> None:
        self._list.close()

    def add(self, name: str) -> None:
        self._list.execute("INSERT OR IGNORE INTO wanted VALUES (?)", (name,))

    def has(self, name: str) -> bool:
        return self._list.execute("SELECT 1 FROM wanted WHERE id = ?", (name,)).fetchone() is not None

    def _got(self, name: str) -> None:
        self._list.execute("DELETE FROM wanted WHERE id = ?", (name,))

    def restore(self) -> None:
        """Look through the journal once; what stays wanted is nowhere."""
        if self._list.execute("SELECT 1 FROM wanted LIMIT 1").fetchone() is None:
            return
        for effect in _contents(self._directories):
            message = effect["id"]
            session, name = effect["staged"]
            if self.has(message) and _put(
                self._directories,
                layout.message_directory(message),
                layout.message_name(message),
                effect["file"],
                None if effect["text"] is None else effect["text"].encode(),
                (session, name),
            ):
                self._got(message)
            for sha256, _, data, staged in effect["blobs"]:
                raw = None if data is None else b64decode(data, validate=True)
                if self.has(sha256) and _put(
                    self._directories, layout.blob_directory(sha256), sha256, sha256, raw, (session, staged)
                ):
                    self._got(sha256)


def _contents(directories: Directories) -> Iterator[Effect]:
    with directories.open(layout.JOURNAL) as directory:
        found = sorted(name for name in os.listdir(directory) if layout.JOURNAL_SEGMENT.match(name))
    for name in found:
        for line in lines(directories, int(name.partition(".")[0])):
            with contextlib.suppress(JournalDamaged):
                for effect in journal.decode(line).effects:
                    if effect["do"] == "content":
                        yield effect


def _put(
    directories: Directories,
    where: layout.Parts,
    name: str,
    sha256: str,
    data: bytes | None,
    staged: tuple[str, str | None],
) -> bool:
    """Write a file that is not there; whether its content could be had."""
    if data is None and staged[1] is not None:
        with contextlib.suppress(OSError), directories.open(layout.staging_directory(staged[0])) as staging:
            data = disk.read_file(staging, staged[1])
    if data is None or hashlib.sha256(data).hexdigest() != sha256:
        return False
    with directories.open(where, create=True) as target:
        temporary = f".{name[:200]}.restored"
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(target, temporary)
        disk.write_new(target, temporary, data, sync=True)
        disk.rename(target, temporary, target, name)
    return True
