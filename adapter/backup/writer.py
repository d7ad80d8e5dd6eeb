"""Writing backups: the only place that does. Nothing here is below the root of a store that is in use.

A backup in the making is a hidden directory, claimed by its process. It gets its name when it is whole and durable, so
that one that was interrupted is never taken for one that is; what dead processes left is removed by the next.

A file that never changes is linked to the store's own if both are on one file system, else to the one in the backup
before, else copied.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Iterator

from adapter.store import disk, layout, locks
from adapter.store.disk import Directories
from protocol.errors import MailError, Reason

_UNFINISHED = ".unfinished-"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE = 1 << 20
#: No links between these two places, or no more of them to this file.
_UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)


class Output:
    """A backup, or a store, in the making."""

    def __init__(self, path: str, previous: str | None = None) -> None:
        self.directories = Directories(path)
        self._previous = Directories(previous) if previous is not None else None
        self._links_to_store = True
        self.copied = 0  # octets
        self.linked = 0

    def close(self) -> None:
        self.directories.close()
        if self._previous is not None:
            self._previous.close()

    def take(self, parts: layout.Parts, name: str, source: int) -> bool:
        """Take over a file that never changes from a directory of the store; False if it is not there or unreadable."""
        with self.directories.stable(parts, create=True) as target:
            if disk.exists(target, name):
                return True
            try:
                found = os.stat(name, dir_fd=source, follow_symlinks=False)
                if not stat.S_ISREG(found.st_mode):
                    return False
                if self._link(source, name, target) or self._link_to_previous(parts, name, target, found.st_size):
                    self.linked += found.st_size
                    return True
                try:
                    fd = disk.open_read(source, name)
                except OSError as error:
                    if error.errno not in _UNREADABLE:
                        raise
                    return False
                with open(fd, "rb", buffering=0) as file:
                    self._copy(file.fileno(), target, name, found)
            except FileNotFoundError:
                return False
        return True

    def copy(self, parts: layout.Parts, name: str, source: int, size: int | None = None) -> None:
        """Copy what an open file holds, or its beginning."""
        with self.directories.open(parts, create=True) as target:
            self._copy(source, target, name, os.fstat(source), size)

    def link_to(self, parts: layout.Parts, name: str, target: str) -> None:
        with self.directories.open(parts, create=True) as directory:
            os.symlink(target, name, dir_fd=directory)

    def write(self, parts: layout.Parts, name: str, data: bytes, mode: int) -> None:
        """A small file, durable at once."""
        with self.directories.open(parts, create=True) as directory:
            with open(os.open(name, _NEW_FILE, mode, dir_fd=directory), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.fsync(directory)

    def remove(self, parts: layout.Parts, name: str) -> None:
        with self.directories.open(parts) as directory:
            os.unlink(name, dir_fd=directory)

    def _link(self, source: int, name: str, target: int) -> bool:
        if not self._links_to_store:
            return False
        try:
            hard_link(source, name, target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            self._links_to_store = error.errno == errno.EMLINK
            return False
        return True

    def _link_to_previous(self, parts: layout.Parts, name: str, target: int, size: int) -> bool:
        if self._previous is None:
            return False
        try:
            with self._previous.stable(parts) as before:
                if os.stat(name, dir_fd=before, follow_symlinks=False).st_size != size:
                    return False
                hard_link(before, name, target)
        except OSError:
            return False
        return True

    def _copy(self, source: int, target: int, name: str, like: os.stat_result, size: int | None = None) -> None:
        left = like.st_size if size is None else size
        self.copied += left
        fd = os.open(name, _NEW_FILE, 0o600, dir_fd=target)
        try:
            offset = 0
            while left and (sent := os.sendfile(fd, source, offset, min(left, _PIECE))):
                offset, left = offset + sent, left - sent
            os.fchmod(fd, stat.S_IMODE(like.st_mode))
            os.utime(fd, ns=(like.st_atime_ns, like.st_mtime_ns))  # rsync goes by it
        finally:
            os.close(fd)


def hard_link(source: int, name: str, target: int) -> None:
    os.link(name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)


@contextlib.contextmanager
def unfinished(destination: str) -> Iterator[str]:
    """A new hidden directory; it is removed at the end of the block unless :func:`finish` gave it its name."""
    os.makedirs(destination, mode=0o700, exist_ok=True)
    _remove_dead(destination)
    path = f"{destination}/{_UNFINISHED}{os.getpid()}-{os.urandom(4).hex()}"
    os.mkdir(path, 0o700)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with locks.claim_directory(fd):
            yield path
    finally:
        os.close(fd)
        shutil.rmtree(path, ignore_errors=True)


def _remove_dead(destination: str) -> None:
    for name in os.listdir(destination):
        if name.startswith(_UNFINISHED):
            fd = os.open(f"{destination}/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                with locks.claim_directory(fd) as nobody_else:
                    if nobody_else:
                        shutil.rmtree(f"{destination}/{name}", ignore_errors=True)
            finally:
                os.close(fd)


def finish(path: str, seq: int) -> str:
    """Give a backup that is whole its name: when it was taken, and the last record it holds."""
    destination = os.path.dirname(path)
    while True:
        name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{seq}"
        if not os.path.lexists(f"{destination}/{name}"):
            break
        time.sleep(0.1)
    os.rename(path, f"{destination}/{name}")
    fd = os.open(destination, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return f"{destination}/{name}"


def empty_root(path: str) -> None:
    """A directory for a store: made if it is not there. Raises MailError if something is in it."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    if os.listdir(path):
        raise MailError(Reason.UNKNOWN, f"{path} is not empty: mail is restored to a new or empty directory")
