"""Journal segments as files: whether one can be read at all, its header, its lines, and where its records end."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

from adapter.store import disk, journal, layout
from adapter.store import segments as store_segments
from adapter.store.disk import Directories
from adapter.store.journal import JournalDamaged
from adapter.store.segments import Header

_ABORTED = b',"aborted":['  # in text of a message the quotes would be escaped


def header_of(directories: Directories, first: int) -> Header | None:
    """The header of a segment; None if it is damaged."""
    if segment_trouble(directories, first):
        return None
    try:
        return store_segments.read_header(directories, first)
    except JournalDamaged:
        return None


def checksum_at(directories: Directories, found: list[int], seq: int) -> str | None:
    """The checksum of a record; None if it is not in the segments that were found, or cannot be read."""
    if seq + 1 in found and (header := header_of(directories, seq + 1)) is not None:
        return header.after
    first = max((first for first in found if first <= seq), default=0)
    start = b'{"seq":%d,' % seq
    for line in lines(directories, first) if first else ():
        if line.startswith(start):
            with contextlib.suppress(JournalDamaged):
                journal.decode(line)
                return store_segments.checksum_of(line)
    return None


def lines(directories: Directories, first: int) -> Iterator[bytes]:
    """Lines of a segment, header and padding left out; none if it cannot be read at all."""
    if not segment_trouble(directories, first):
        with open_segment(directories, first) as file:
            for number, line in enumerate(file):
                if line.strip(journal.PADDING) and (number or not is_header(line)):
                    yield line


def is_header(first_line: bytes) -> bool:
    """Whether the first line of a segment is, or was, its header: everything but a record."""
    return not first_line.startswith(b'{"seq":')


def segment_trouble(directories: Directories, first: int) -> str:
    """Why a segment cannot be read at all: a directory or a pipe of that name, perhaps. Empty if it can."""
    with directories.open(layout.JOURNAL) as directory:
        about = os.stat(layout.journal_segment(first), dir_fd=directory, follow_symlinks=False)
    return "" if stat.S_ISREG(about.st_mode) else "is not a file"


def open_segment(directories: Directories, first: int) -> BinaryIO:
    with directories.open(layout.JOURNAL) as directory:
        return open(disk.open_read(directory, layout.journal_segment(first)), "rb", buffering=1 << 20)


def is_tail(directories: Directories, first: int, line: bytes) -> bool:
    """Whether nothing that verifies follows this line."""
    seen = False
    for other in lines(directories, first):
        if seen:
            with contextlib.suppress(JournalDamaged):
                journal.decode(other)
                return False
        seen = seen or other == line
    return True


def contains_abort(directories: Directories, first: int) -> bool:
    """Whether a record of the segment rolls back other records."""
    with open_segment(directories, first) as file:
        previous = b""
        while chunk := file.read(1 << 20):
            if _ABORTED in previous + chunk:
                return True
            previous = chunk[-len(_ABORTED) :]
    return False
