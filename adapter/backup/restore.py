"""Create a store from a backup: an independent copy that shares no file with it.

The file that makes a directory a store is written last, so an interrupted restore leaves no store.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from adapter.backup import manifest, verify, writer
from adapter.backup.manifest import Entry, Manifest, contents
from adapter.backup.writer import TreeWriter
from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.transport.recovery import checkpoint, opening
from protocol.errors import MailError, Reason


def find_backup(source: str) -> str:
    """Return the backup at a path: the directory itself, or the newest backup in it."""
    if os.path.isfile(f"{source}/{manifest.FILE}"):
        return source
    names = manifest.backup_names(source)
    if not names:
        raise MailError(
            Reason.UNKNOWN, f"{source} is not a backup and contains none: give a directory with {manifest.FILE}"
        )
    return f"{source}/{names[-1]}"


@dataclass(frozen=True, slots=True)
class Restored:
    path: str  # of the backup
    manifest: Manifest
    octets: int  # equals the manifest's number unless files were changed in place
    changed: list[str]  # content that differs from the index copy; checked only if octets differ

    @property
    def is_unchanged(self) -> bool:
        return self.octets == self.manifest.octets


def restore_backup(source: str, root: str) -> Restored:
    """Restore a backup to a new or empty directory. Raises MailError and OSError.

    An incomplete backup is refused. A backup with changed files is restored, and the changes are reported.
    """
    path = find_backup(source)
    with contextlib.closing(Directories(path)) as backup:
        described = manifest.read(backup)
        totals = verify.check_complete(backup, described)
        writer.create_empty_root(root)
        with contextlib.closing(TreeWriter(root)) as target:
            opening.refuse_superuser(target.directories)
            _copy(backup, target)
            for parts in layout.DIRECTORIES:
                with target.directories.stable(parts, create=True):
                    pass
            checkpoint.write(target.directories, described.seq)
            changed = verify.changed_content(target.directories) if totals.octets != described.octets else []
            target.write((), layout.README_FILE, layout.readme(), 0o444)
            target.write((), layout.VERSION_FILE, f"{described.version}\n".encode(), 0o444)
    return Restored(path, described, totals.octets, changed)


def _copy(backup: Directories, target: TreeWriter) -> None:
    for entry in contents(backup):
        if entry.kind == "directory":
            with target.directories.open((*entry.parts, entry.name), create=True):
                pass
        elif entry.kind == "link":
            with backup.open(entry.parts) as directory:
                target.link_to(entry.parts, entry.name, os.readlink(entry.name, dir_fd=directory))
        elif entry.kind == "file":
            _copy_file(backup, target, entry)


def _copy_file(backup: Directories, target: TreeWriter, entry: Entry) -> None:
    with backup.open(entry.parts) as directory:
        fd = disk.open_read(directory, entry.name)
    try:
        target.copy(entry.parts, entry.name, fd)
    finally:
        os.close(fd)
