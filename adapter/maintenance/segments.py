"""Journal segments as files: whether one can be read at all, its lines, and where its records end."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

from adapter.store import disk, journal, layout
from adapter.store.disk import Directories
from adapter.store.journal import JournalDamaged


def lines(directories: Directories, first: int) -> Iterator[bytes]:
    """Lines of a segment, padding left out; none if it cannot be read at all."""
    if not segment_trouble(directories, first):
        with open_segment(directories, first) as file:
            yield from (line for line in file if line.strip(journal.PADDING))


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
