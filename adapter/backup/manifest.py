"""``backup.json``: what a backup holds. It is written last; a directory without it is no backup."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass

import orjson

from adapter.store import disk, layout
from adapter.store.disk import Directories
from protocol.errors import MailError, Reason

FILE = layout.BACKUP_FILE


@dataclass(frozen=True, slots=True)
class Manifest:
    version: int  # of the store
    seq: int  # the last journal record it holds
    taken: str  # when
    credentials: bool
    files: int  # all that is in it, but for this file
    octets: int
    links: int

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2) + b"\n"


def read(directories: Directories) -> Manifest:
    """Raises MailError for what is no backup, or one of a newer program."""
    try:
        with directories.open(()) as top:
            manifest = Manifest(**orjson.loads(disk.read_file(top, FILE)))
    except (FileNotFoundError, ValueError, TypeError):
        raise MailError(Reason.UNKNOWN, f"{directories.root} is no backup, or one that was cut short") from None
    if manifest.version > layout.VERSION:
        raise MailError(
            Reason.UNKNOWN,
            f"{directories.root} has version {manifest.version}; this program knows up to {layout.VERSION}",
        )
    return manifest


def complete(destination: str) -> list[str]:
    """The names of the backups in a directory, the newest last."""
    try:
        names = sorted(os.listdir(destination))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name for name in names if name[:1].isdigit() and os.path.isfile(f"{destination}/{name}/{FILE}")]
