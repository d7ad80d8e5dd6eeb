"""Write backups and restored stores. No other module does, and nothing is written below the root of a store in use.

An unfinished backup is a hidden directory, claimed by its process. It gets its final name when it is complete and
durable, so an interrupted backup is never mistaken for a complete one. The next backup removes what crashed processes
left.

Immutable files are hard links to the store if both are on one file system, otherwise to the previous backup; files that
cannot be linked are copied.
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
_SENDFILE_BYTES = 1 << 20
_UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)
#: The two directories cannot share files, or the file has too many links.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)


class TreeWriter:
    """Writes the files of an unfinished backup, or of a store that is being restored."""

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

    def link_or_copy(self, parts: layout.Parts, name: str, source: int) -> bool:
        """Link or copy an immutable file from a directory of the store; False if it is missing or unreadable."""
        with self.directories.stable(parts, create=True) as target:
            if disk.exists(target, name):
                return True
            try:
                status = os.stat(name, dir_fd=source, follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):
                    return False
                if self._link(source, name, target) or self._link_to_previous(parts, name, target, status.st_size):
                    self.linked += status.st_size
                    return True
                try:
                    fd = disk.open_read(source, name)
                except OSError as error:
                    if error.errno not in _UNREADABLE:
                        raise
                    return False
                with open(fd, "rb", buffering=0) as file:
                    self._copy(file.fileno(), target, name, status)
            except FileNotFoundError:
                return False
        return True

    def copy(self, parts: layout.Parts, name: str, source: int, size: int | None = None) -> None:
        """Copy an open file, or its first ``size`` octets."""
        with self.directories.open(parts, create=True) as target:
            self._copy(source, target, name, os.fstat(source), size)

    def link_to(self, parts: layout.Parts, name: str, target: str) -> None:
        with self.directories.open(parts, create=True) as directory:
            os.symlink(target, name, dir_fd=directory)

    def write(self, parts: layout.Parts, name: str, data: bytes, mode: int) -> None:
        """Write a small file and sync it."""
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
            with self._previous.stable(parts) as previous:
                if os.stat(name, dir_fd=previous, follow_symlinks=False).st_size != size:
                    return False
                hard_link(previous, name, target)
        except OSError:
            return False
        return True

    def _copy(self, source: int, target: int, name: str, like: os.stat_result, size: int | None = None) -> None:
        remaining = like.st_size if size is None else size
        self.copied += remaining
        fd = os.open(name, _NEW_FILE, 0o600, dir_fd=target)
        try:
            offset = 0
            while remaining and (sent := os.sendfile(fd, source, offset, min(remaining, _SENDFILE_BYTES))):
                offset, remaining = offset + sent, remaining - sent
            os.fchmod(fd, stat.S_IMODE(like.st_mode))
            os.utime(fd, ns=(like.st_atime_ns, like.st_mtime_ns))  # rsync compares it
        finally:
            os.close(fd)


def hard_link(source: int, name: str, target: int) -> None:
    os.link(name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)


@contextlib.contextmanager
def unfinished_backup(destination: str) -> Iterator[str]:
    """Create a hidden directory and remove it after the block unless :func:`publish` has renamed it."""
    os.makedirs(destination, mode=0o700, exist_ok=True)
    _remove_abandoned(destination)
    path = f"{destination}/{_UNFINISHED}{os.getpid()}-{os.urandom(4).hex()}"
    os.mkdir(path, 0o700)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with locks.claim_directory(fd):
            yield path
    finally:
        os.close(fd)
        shutil.rmtree(path, ignore_errors=True)


def _remove_abandoned(destination: str) -> None:
    for name in os.listdir(destination):
        if name.startswith(_UNFINISHED):
            fd = os.open(f"{destination}/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                with locks.claim_directory(fd) as is_abandoned:
                    if is_abandoned:
                        shutil.rmtree(f"{destination}/{name}", ignore_errors=True)
            finally:
                os.close(fd)


def publish(path: str, seq: int) -> str:
    """Rename a complete backup to its final name, made of the time and the last record."""
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


def create_empty_root(path: str) -> None:
    """Create the directory of a store, or accept an empty one. Raises MailError otherwise."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    if os.listdir(path):
        raise MailError(Reason.UNKNOWN, f"{path} is not empty: give a new or empty directory")
