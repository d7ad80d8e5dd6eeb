"""Making a store from a backup: a copy that shares nothing with it.

The file that makes a directory a store is written last: what was interrupted is no store.
"""

from __future__ import annotations

import contextlib
import os

from adapter.backup import manifest, output
from adapter.backup.content_tree import Count, Entry, walk
from adapter.backup.manifest import Manifest
from adapter.backup.output import Output
from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.transport import checkpoint
from protocol.errors import MailError, Reason


def find(source: str) -> str:
    """The backup a path stands for: itself, or the newest in a directory of backups."""
    if os.path.isfile(f"{source}/{manifest.FILE}"):
        return source
    names = manifest.complete(source)
    if not names:
        raise MailError(Reason.UNKNOWN, f"{source} is no backup, and there is none in it")
    return f"{source}/{names[-1]}"


def restore(source: str, root: str) -> tuple[str, Manifest]:
    """Returns the backup that was taken, and what it held. Raises MailError, OSError."""
    path = find(source)
    with contextlib.closing(Directories(path)) as backup:
        described = manifest.read(backup)
        output.empty_root(root)
        with contextlib.closing(Output(root)) as target:
            copied = _copy(backup, target)
            for parts in layout.DIRECTORIES:
                with target.directories.stable(parts, create=True):
                    pass
            if (copied.files, copied.octets, copied.links) != (described.files, described.octets, described.links):
                raise MailError(
                    Reason.UNKNOWN,
                    f"{path} is not whole: {copied.files} of {described.files} files, {copied.octets} of"
                    f" {described.octets} octets, {copied.links} of {described.links} links; {root} is no store",
                )
            checkpoint.write(target.directories, described.seq)
            target.write((), layout.VERSION_FILE, f"{described.version}\n".encode(), 0o444)
    return path, described


def _copy(backup: Directories, target: Output) -> Count:
    copied = Count()
    for entry in walk(backup):
        if entry.kind == "directory":
            with target.directories.open((*entry.parts, entry.name), create=True):
                pass
        elif entry.kind == "link":
            with backup.open(entry.parts) as directory:
                target.link_to(entry.parts, entry.name, os.readlink(entry.name, dir_fd=directory))
            copied.links += 1
        elif entry.kind == "file" and (entry.parts or entry.name != manifest.FILE):
            _copy_file(backup, target, entry)
            copied.files += 1
            copied.octets += entry.size
    return copied


def _copy_file(backup: Directories, target: Output, entry: Entry) -> None:
    with backup.open(entry.parts) as directory:
        fd = disk.open_read(directory, entry.name)
    try:
        target.copy(entry.parts, entry.name, fd)
    finally:
        os.close(fd)
