"""Reading many small files: while one is worked on, the disk has been told of those that follow.

One after the other, every file that is not in memory costs the time the disk takes to answer.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator

_AHEAD = 64  # files that are open at a time
_WANTED = 64 << 10  # octets of each


def opened(directory: int, names: Iterable[str]) -> Iterator[tuple[str, int | OSError]]:
    """Every name in turn with its file, open until the next one is asked for, or with why it cannot be opened."""
    waiting: deque[tuple[str, int | OSError]] = deque()
    try:
        for name in names:
            waiting.append((name, _open(directory, name)))
            if len(waiting) > _AHEAD:
                yield waiting[0]
                _close(waiting.popleft()[1])
        while waiting:
            yield waiting[0]
            _close(waiting.popleft()[1])
    finally:
        for _, file in waiting:
            _close(file)


def _open(directory: int, name: str) -> int | OSError:
    try:  # a pipe that somebody put there must not keep us waiting
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    except OSError as error:
        return error
    with contextlib.suppress(OSError):  # no file, perhaps: reading it tells
        os.posix_fadvise(fd, 0, _WANTED, os.POSIX_FADV_WILLNEED)
    return fd


def _close(file: int | OSError) -> None:
    if isinstance(file, int):
        os.close(file)
