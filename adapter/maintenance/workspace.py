"""A run's scratch directory below ``maintenance/``: made for one run and removed with what earlier runs left."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator

from adapter.store import disk, layout, locks
from adapter.store.disk import Directories
from adapter.transport.recovery import ownership
from protocol.errors import MailError, Reason

_PREFIX = "run-"
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextlib.contextmanager
def scratch(directories: Directories, elsewhere: str | None = None) -> Iterator[str]:
    """The path of a fresh directory; ``elsewhere`` is a directory to make it in instead of the store."""
    place = Directories(elsewhere) if elsewhere else directories
    parts: layout.Parts = () if elsewhere else layout.MAINTENANCE
    name = f"{_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
    try:
        with place.open(parts, create=True) as parent:
            _remove_dead(place, parts, parent)
            try:
                disk.make_directory(parent, name)
            except OSError as error:
                if error.errno in _NOT_WRITABLE:
                    raise _not_writable(place, error) from error
                raise
            with place.open((*parts, name)) as fd, locks.claim_directory(fd):
                try:
                    yield layout.absolute(place.root, *parts, name)
                finally:
                    remove_tree(parent, name)
    finally:
        if elsewhere:
            place.close()


def _not_writable(place: Directories, error: OSError) -> MailError:
    whose = f"{place.root} belongs to user {ownership.owner(place)} and cannot be written: {error.strerror}"
    return MailError(Reason.UNKNOWN, f"{whose}; --scratch DIR names a directory for temporary files that can be")


def _remove_dead(place: Directories, parts: layout.Parts, parent: int) -> None:
    for name in os.listdir(parent):
        if name.startswith(_PREFIX):
            with (
                contextlib.suppress(OSError),
                place.open((*parts, name)) as fd,
                locks.claim_directory(fd) as claimed,
            ):
                if claimed:
                    remove_tree(parent, name)


def remove_tree(parent: int, name: str) -> None:
    """Remove a directory of scratch files with everything in it; never follows a link."""
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
    """A new scratch file; the directory it is in is the run's own."""
    parent = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        disk.write_new(parent, os.path.basename(path), data, mode=0o600)
    finally:
        os.close(parent)


def make_directories(place: str, names: Iterable[str]) -> None:
    """Directories inside a scratch directory, each after the one it lies in."""
    for name in names:
        parent = os.open(os.path.dirname(f"{place}/{name}"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            disk.make_directory(parent, os.path.basename(name))
        finally:
            os.close(parent)


def remove_files(place: str, names: Iterable[str]) -> None:
    """Remove scratch files, whether they are there or not."""
    parent = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(parent, name)
    finally:
        os.close(parent)


def copy_file(source: str, target: str) -> None:
    """A copy of a scratch file."""
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
