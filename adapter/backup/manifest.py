"""The manifest of a backup, ``backup.json``, and the walk over its files.

The manifest is written last. A directory without it is not a backup.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import orjson

from adapter.store import disk, layout
from adapter.store.disk import Directories
from protocol.errors import MailError, Reason

FILE = layout.BACKUP_FILE


@dataclass(frozen=True, slots=True)
class Manifest:
    version: int  # format version of the store
    seq: int  # the last journal record in the backup
    taken: str  # time of the backup
    credentials: bool  # True if passwords are included
    files: int  # number of files, without the manifest
    octets: int
    links: int

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2) + b"\n"


def read(directories: Directories) -> Manifest:
    """Read the manifest. Raises MailError if it is missing, damaged or of a newer version."""
    try:
        with directories.open(()) as top:
            manifest = Manifest(**orjson.loads(disk.read_file(top, FILE)))
    except (FileNotFoundError, ValueError, TypeError):
        raise MailError(
            Reason.UNKNOWN, f"{directories.root} is not a backup, or is incomplete: {FILE} is missing or damaged"
        ) from None
    if manifest.version > layout.VERSION:
        raise MailError(
            Reason.UNKNOWN,
            f"{directories.root} has version {manifest.version}, this program reads up to {layout.VERSION}:"
            " install the markpost that wrote it",
        )
    return manifest


def backup_names(destination: str) -> list[str]:
    """Return the names of the complete backups in a directory, the newest last."""
    try:
        names = sorted(os.listdir(destination))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name for name in names if name[:1].isdigit() and os.path.isfile(f"{destination}/{name}/{FILE}")]


# --- the files of a backup -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    parts: layout.Parts  # of its directory
    name: str
    kind: str  # "file", "link", "directory" or "other"
    size: int = 0


def walk(directories: Directories, parts: layout.Parts = ()) -> Iterator[Entry]:
    """Yield everything below a directory, each directory before its contents, without following links."""
    with directories.open(parts) as fd:
        entries = sorted(
            (entry.name, _kind(entry), entry.stat(follow_symlinks=False).st_size) for entry in os.scandir(fd)
        )
    for name, kind, size in entries:
        yield Entry(parts, name, kind, size if kind == "file" else 0)
        if kind == "directory":
            yield from walk(directories, (*parts, name))


def contents(backup: Directories) -> Iterator[Entry]:
    """Yield everything in a backup but its manifest."""
    return (entry for entry in walk(backup) if entry.parts or entry.name != FILE)


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


@dataclass(slots=True)
class Totals:
    files: int = 0
    octets: int = 0
    links: int = 0


def count(entries: Iterable[Entry]) -> Totals:
    totals = Totals()
    for entry in entries:
        totals.files += entry.kind == "file"
        totals.links += entry.kind == "link"
        totals.octets += entry.size
    return totals
