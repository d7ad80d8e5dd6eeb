"""Scratch directory of a run, below ``maintenance/``: removed after the run, with the remains of crashed runs."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator

from adapter.store import disk, layout, locks
from adapter.store.disk import Directories
from adapter.transport.recovery import opening
from protocol.errors import MailError, Reason

_PREFIX = "run-"
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextlib.contextmanager
def scratch(directories: Directories, parent_path: str | None = None) -> Iterator[str]:
    """Create a scratch directory, in the store or below ``parent_path``, and yield its path."""
    base = Directories(parent_path) if parent_path else directories
    parts: layout.Parts = () if parent_path else layout.MAINTENANCE
    name = f"{_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
    try:
        with base.open(parts, create=True) as parent:
            _remove_stale(base, parts, parent)
            try:
                disk.make_directory(parent, name)
            except OSError as error:
                if error.errno in _NOT_WRITABLE:
                    raise _not_writable(base, error) from error
                raise
            with base.open((*parts, name)) as fd, locks.claim_directory(fd):
                try:
                    yield layout.absolute(base.root, *parts, name)
                finally:
                    remove_tree(parent, name)
    finally:
        if parent_path:
            base.close()


def _not_writable(base: Directories, error: OSError) -> MailError:
    problem = f"{base.root} belongs to user {opening.owner(base)} and cannot be written: {error.strerror}"
    return MailError(Reason.UNKNOWN, f"{problem}; use --scratch DIR with a writable directory for temporary files")


def _remove_stale(base: Directories, parts: layout.Parts, parent: int) -> None:
    """Remove the scratch directories of crashed runs."""
    for name in os.listdir(parent):
        if name.startswith(_PREFIX):
            with (
                contextlib.suppress(OSError),
                base.open((*parts, name)) as fd,
                locks.claim_directory(fd) as claimed,
            ):
                if claimed:
                    remove_tree(parent, name)


def remove_tree(parent: int, name: str) -> None:
    """Remove a scratch directory recursively; never follow a link."""
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        for entry in list(os.scandir(fd)):
            if entry.is_dir(follow_symlinks=False):
                remove_tree(fd, entry.name)
            else:
                with contextlib.suppress(FileNotFoundError):
                    disk.unlink(fd, entry.name)
    finally:
        os.close(fd)
    with contextlib.suppress(FileNotFoundError):
        disk.remove_directory(parent, name)


def write_file(path: str, data: bytes) -> None:
    """Create a scratch file with ``data``."""
    parent = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        disk.write_new(parent, os.path.basename(path), data, mode=0o600)
    finally:
        os.close(parent)


def make_directories(path: str, names: Iterable[str]) -> None:
    """Create directories in a scratch directory; a parent must be listed before its children."""
    for name in names:
        parent = os.open(os.path.dirname(f"{path}/{name}"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            disk.make_directory(parent, os.path.basename(name))
        finally:
            os.close(parent)


def remove_files(path: str, names: Iterable[str]) -> None:
    """Remove scratch files; missing files are ignored."""
    parent = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(parent, name)
    finally:
        os.close(parent)


def copy_file(source: str, target: str) -> None:
    """Copy a file to a new scratch file."""
    parent = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd = disk.open_new(parent, os.path.basename(target), mode=0o600)
        try:
            with open(source, "rb", buffering=0) as file:
                while data := file.read(1 << 20):
                    disk.write_all(fd, data)
        finally:
            os.close(fd)
    finally:
        os.close(parent)
