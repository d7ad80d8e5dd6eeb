"""What every importable source yields: folders, and messages with all a store keeps of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from adapter.store import names
from protocol.errors import MailError

FORWARDED = "$Forwarded"


class SourceError(Exception):
    """One message, or the whole source, cannot be read; the text says why."""


@dataclass(frozen=True, slots=True)
class Item:
    """One message to be imported."""

    label: str  # how to name it to a person
    folder: str  # as the source calls it; INBOX where it has no folders
    octets: int  # in the source, for the progress bar
    chunks: Callable[[], Iterator[bytes]]  # the message; raises SourceError
    date: int | None = None  # internal date in seconds; None: now
    flags: int = 0
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    folders: tuple[str, ...]
    octets: int
    items: Callable[[], Iterator[Item]]
    subscriptions: tuple[str, ...] | None = field(default=None)  # None: the source says nothing of them


def tidy_folder(levels: Iterable[str]) -> str:
    """A folder name from the levels of a foreign one; INBOX if nothing usable is left."""
    usable = [level.replace("/", "_").encode("utf-8", "replace").decode() for level in levels if level]
    try:
        return names.normalise_folder("/".join(usable))
    except MailError:
        return names.INBOX


def read_file(path: str, size: int = 1 << 18) -> Iterator[bytes]:
    """A file in chunks; a symbolic link is refused, it could lead anywhere, and so is what is no file."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SourceError("not a regular file")
            while chunk := file.read(size):
                yield chunk
    except OSError as error:
        raise SourceError(f"{error.strerror}") from error


def read_note(path: str) -> bytes | None:
    """What lies beside messages and tells of them; None if it is not there, or is nothing to read."""
    try:
        return b"".join(read_file(path))
    except SourceError:
        return None
