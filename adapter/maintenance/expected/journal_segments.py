"""Journal segments as files: header, lines, torn tail, and entries that are not regular files."""

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

_ABORTED = b',"aborted":['  # inside message text the quotes would be escaped


def header_of(directories: Directories, first: int) -> Header | None:
    """The header of a segment; None if it is damaged."""
    if segment_problem(directories, first):
        return None
    try:
        return store_segments.read_header(directories, first)
    except JournalDamaged:
        return None


def checksum_at(directories: Directories, segments: list[int], seq: int) -> str | None:
    """The checksum of a record; None if the record is not in these segments, or is damaged."""
    if seq + 1 in segments and (header := header_of(directories, seq + 1)) is not None:
        return header.after
    first = max((first for first in segments if first <= seq), default=0)
    start = b'{"seq":%d,' % seq
    for line in lines(directories, first) if first else ():
        if line.startswith(start):
            with contextlib.suppress(JournalDamaged):
                journal.decode(line)
                return store_segments.checksum_of(line)
    return None


def lines(directories: Directories, first: int) -> Iterator[bytes]:
    """Yield the lines of a segment without header and padding; nothing if it is not a regular file."""
    if not segment_problem(directories, first):
        with open_segment(directories, first) as file:
            for number, line in enumerate(file):
                if line.strip(journal.PADDING) and (number or not is_header(line)):
                    yield line


def is_header(first_line: bytes) -> bool:
    """True if the first line of a segment is not a record, and so a header, perhaps damaged."""
    return not first_line.startswith(b'{"seq":')


def segment_problem(directories: Directories, first: int) -> str:
    """The reason why a segment cannot be opened, for example a directory or pipe of that name; else ""."""
    with directories.open(layout.JOURNAL) as directory:
        status = os.stat(layout.journal_segment(first), dir_fd=directory, follow_symlinks=False)
    return "" if stat.S_ISREG(status.st_mode) else "is not a regular file"


def open_segment(directories: Directories, first: int) -> BinaryIO:
    with directories.open(layout.JOURNAL) as directory:
        return open(disk.open_read(directory, layout.journal_segment(first)), "rb", buffering=1 << 20)


def is_tail(directories: Directories, first: int, line: bytes) -> bool:
    """True if no intact record follows this line."""
    seen = False
    for other in lines(directories, first):
        if seen:
            with contextlib.suppress(JournalDamaged):
                journal.decode(other)
                return False
        seen = seen or other == line
    return True


def contains_abort(directories: Directories, first: int) -> bool:
    """True if a record of the segment rolls back other records."""
    with open_segment(directories, first) as file:
        previous = b""
        while chunk := file.read(1 << 20):
            if _ABORTED in previous + chunk:
                return True
            previous = chunk[-len(_ABORTED) :]
    return False
