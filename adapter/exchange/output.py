"""Writing exported files: the only place that writes outside the store.

Files are made for their owner only, never over something that exists.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import BinaryIO

from protocol.errors import MailError, Reason


def empty_directory(path: str) -> None:
    """Make a directory, or take one that is there and empty. Raises ``NOT_ALLOWED``."""
    for each in (os.path.dirname(path), path):  # the mode counts for the last level only
        os.makedirs(each, mode=0o700, exist_ok=True)
    if os.listdir(path):
        raise MailError(Reason.NOT_ALLOWED, f"{path} is not empty: export to another directory")


def make_directory(path: str) -> None:
    os.mkdir(path, 0o700)


def new_file(path: str) -> BinaryIO:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def write(path: str, chunks: Iterable[bytes]) -> None:
    with new_file(path) as file:
        file.writelines(chunks)


def write_then_move(temporary: str, path: str, chunks: Iterable[bytes], modified: int) -> None:
    """A file appears at ``path`` complete, last modified at ``modified``, or not at all."""
    try:
        write(temporary, chunks)
    except BaseException:
        os.unlink(temporary)
        raise
    os.utime(temporary, (modified, modified))
    os.rename(temporary, path)


def make_durable() -> None:
    os.sync()
