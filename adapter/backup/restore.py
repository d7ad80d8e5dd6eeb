"""Making a store from a backup: a copy that shares nothing with it.

The file that makes a directory a store is written last: what was interrupted is no store.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from adapter.backup import content_check, manifest, writer
from adapter.backup.content_tree import Entry, count, walk
from adapter.backup.manifest import Manifest
from adapter.backup.writer import Output
from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.transport.recovery import checkpoint, ownership
from protocol.errors import MailError, Reason


def find(source: str) -> str:
    """The backup a path stands for: itself, or the newest in a directory of backups."""
    if os.path.isfile(f"{source}/{manifest.FILE}"):
        return source
    names = manifest.complete(source)
    if not names:
        raise MailError(Reason.UNKNOWN, f"{source} is no backup, and there is none in it")
    return f"{source}/{names[-1]}"


@dataclass(frozen=True, slots=True)
class Restored:
    path: str  # of the backup that was taken
    manifest: Manifest
    octets: int  # there are; as many as the manifest says, unless something was changed in place
    changed: list[str]  # content that is not what it was, looked for where the octets tell of it

    @property
    def as_it_was(self) -> bool:
        return self.octets == self.manifest.octets


def restore(source: str, root: str) -> Restored:
    """Raises MailError, OSError. A backup that lacks something is refused; one in which something changed is not."""
    path = find(source)
    with contextlib.closing(Directories(path)) as backup:
        described = manifest.read(backup)
        found = count(_held(backup))
        if (found.files, found.links) != (described.files, described.links):
            raise MailError(
                Reason.UNKNOWN,
                f"{path} is not whole: {found.files} of {described.files} files,"
                f" {found.links} of {described.links} links; nothing is restored",
            )
        writer.empty_root(root)
        with contextlib.closing(Output(root)) as target:
            ownership.refuse_superuser(target.directories)
            _copy(backup, target)
            for parts in layout.DIRECTORIES:
                with target.directories.stable(parts, create=True):
                    pass
            checkpoint.write(target.directories, described.seq)
            changed = content_check.changed(target.directories) if found.octets != described.octets else []
            target.write((), layout.VERSION_FILE, f"{described.version}\n".encode(), 0o444)
    return Restored(path, described, found.octets, changed)


def _held(backup: Directories) -> Iterator[Entry]:
    """All that is in a backup, but for its description."""
    return (entry for entry in walk(backup) if entry.parts or entry.name != manifest.FILE)


def _copy(backup: Directories, target: Output) -> None:
    for entry in _held(backup):
        if entry.kind == "directory":
            with target.directories.open((*entry.parts, entry.name), create=True):
                pass
        elif entry.kind == "link":
            with backup.open(entry.parts) as directory:
                target.link_to(entry.parts, entry.name, os.readlink(entry.name, dir_fd=directory))
        elif entry.kind == "file":
            _copy_file(backup, target, entry)


def _copy_file(backup: Directories, target: Output, entry: Entry) -> None:
    with backup.open(entry.parts) as directory:
        fd = disk.open_read(directory, entry.name)
    try:
        target.copy(entry.parts, entry.name, fd)
    finally:
        os.close(fd)
