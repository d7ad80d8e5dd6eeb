"""The model of an import source: its folders and its messages with flags, keywords and date."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from adapter.store import names
from protocol.errors import MailError

FORWARDED = "$Forwarded"


class SourceError(Exception):
    """A message or the whole source cannot be read; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Item:
    """A message to import."""

    label: str  # for reports
    folder: str  # its name in the source; INBOX if the source has no folders
    octets: int  # size in the source, for the progress bar
    chunks: Callable[[], Iterator[bytes]]  # the octets of the message; raises SourceError
    date: int | None = None  # internal date in seconds; None for now
    flags: int = 0
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    folders: tuple[str, ...]
    octets: int
    items: Callable[[], Iterator[Item]]
    subscriptions: tuple[str, ...] | None = field(default=None)  # None if the source has no list


def tidy_folder(levels: Iterable[str]) -> str:
    """Build a valid folder name from the levels of a foreign one; INBOX if none is usable."""
    usable = [level.replace("/", "_").encode("utf-8", "replace").decode() for level in levels if level]
    try:
        return names.normalise_folder("/".join(usable))
    except MailError:
        return names.INBOX


def read_file(path: str, chunk_bytes: int = 1 << 18) -> Iterator[bytes]:
    """Read a regular file in chunks. Symbolic links are refused, because they may point outside the source."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SourceError("not a regular file")
            while chunk := file.read(chunk_bytes):
                yield chunk
    except OSError as error:
        raise SourceError(f"{error.strerror}") from error


def read_note(path: str) -> bytes | None:
    """Read a metadata file next to the messages; None if it is missing or unreadable."""
    try:
        return b"".join(read_file(path))
    except SourceError:
        return None
