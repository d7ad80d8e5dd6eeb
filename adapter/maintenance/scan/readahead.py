"""Read many small files with read-ahead (posix_fadvise).

Without read-ahead, every file that is not in the page cache costs one full disk latency.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator

_MAX_OPEN_FILES = 64
_READAHEAD_BYTES = 64 << 10  # of each file


def open_ahead(directory: int, names: Iterable[str]) -> Iterator[tuple[str, int | OSError]]:
    """Yield each name with an open descriptor, valid until the next iteration, or with the error of opening it."""
    queue: deque[tuple[str, int | OSError]] = deque()
    try:
        for name in names:
            queue.append((name, _open(directory, name)))
            if len(queue) > _MAX_OPEN_FILES:
                yield queue[0]
                _close(queue.popleft()[1])
        while queue:
            yield queue[0]
            _close(queue.popleft()[1])
    finally:
        for _, file in queue:
            _close(file)


def _open(directory: int, name: str) -> int | OSError:
    try:  # O_NONBLOCK: opening a pipe must not block
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    except OSError as error:
        return error
    with contextlib.suppress(OSError):  # not a regular file, perhaps: reading it raises the error
        os.posix_fadvise(fd, 0, _READAHEAD_BYTES, os.POSIX_FADV_WILLNEED)
    return fd


def _close(file: int | OSError) -> None:
    if isinstance(file, int):
        os.close(file)
