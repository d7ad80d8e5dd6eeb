"""Every system call that changes the store, and the directories it happens in.

This is the only module that creates, renames, links, removes or syncs anything below the root. Each primitive announces
itself to :data:`on_step` first: the crash tests kill the process, raise ENOSPC or drop unsynced effects at any of them.

Directories are opened one level at a time with ``O_NOFOLLOW``: a symbolic link planted anywhere in the tree is refused,
never followed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from adapter.store.layout import Parts

#: Called as ``on_step(action, directory fd or file fd, name)`` before each effect on disk.
on_step: Callable[[str, int, str], None] | None = None

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: A pipe in the place of a file must not block a reader until a process writes to it.
_NOT_A_FILE: Final = frozenset({
    errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EINVAL, errno.ENAMETOOLONG,
})  # fmt: skip
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SPACES: Final = b" " * (64 << 10)
_MOST_BUFFERS: Final = 1024  # in one system call: IOV_MAX of Linux
_libc = ctypes.CDLL(None, use_errno=True)


def step(action: str, fd: int, name: str) -> None:
    if on_step is not None:
        on_step(action, fd, name)


class Directories:
    """Directory descriptors below one root. Those that are never renamed or removed are kept open."""

    _KEEP = 320  # descriptors are few; the rest are opened for each use
    _KEEP_A_WHILE = 64

    def __init__(self, root: str) -> None:
        self.root = root
        self.root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._kept: dict[Parts, int] = {}
        self._kept_a_while = threading.local()

    def close(self) -> None:
        for fd in self._kept.values():
            os.close(fd)
        self._kept.clear()
        os.close(self.root_fd)

    def _walk(self, parts: Parts, create: bool) -> int:
        fd = os.dup(self.root_fd)
        try:
            for name in parts:
                try:
                    child = os.open(name, _DIRECTORY, dir_fd=fd)
                except FileNotFoundError:
                    if not create:
                        raise
                    with contextlib.suppress(FileExistsError):
                        make_directory(fd, name)
                    child = os.open(name, _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = child
        except BaseException:
            os.close(fd)
            raise
        return fd

    @contextlib.contextmanager
    def open(self, parts: Parts, *, create: bool = False) -> Iterator[int]:
        """A descriptor for this use only: for directories that may be renamed or removed."""
        kept: dict[Parts, int] | None = getattr(self._kept_a_while, "by_parts", None)
        fd = None if kept is None else kept.get(parts)
        if fd is not None:
            yield fd
            return
        fd = self._walk(parts, create)
        if kept is not None and len(kept) < self._KEEP_A_WHILE:
            kept[parts] = fd
            yield fd
            return
        try:
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def keeping_open(self) -> Iterator[None]:
        """Keep directories that this thread opens open until the end of the block; the block must not rename any."""
        kept: dict[Parts, int] = {}
        self._kept_a_while.by_parts = kept
        try:
            yield
        finally:
            self._kept_a_while.by_parts = None
            for fd in kept.values():
                os.close(fd)

    @contextlib.contextmanager
    def stable(self, parts: Parts, *, create: bool = False) -> Iterator[int]:
        """A directory that is never renamed or removed (messages/<date>, attachments/<ab>, the top level)."""
        fd = self._kept.get(parts)
        if fd is not None:
            yield fd
        elif len(self._kept) < self._KEEP:
            fd = self._walk(parts, create)
            winner = self._kept.setdefault(parts, fd)
            if winner != fd:
                os.close(fd)
            yield winner
        else:
            with self.open(parts, create=create) as fd:
                yield fd


def write_new(directory: int, name: str, data: bytes | memoryview, *, mode: int = 0o444, sync: bool = False) -> None:
    """Create a file that must not exist yet."""
    step("create", directory, name)
    fd = os.open(name, _NEW_FILE, mode, dir_fd=directory)
    try:
        write_all(fd, data)
        if sync:
            step("fsync", fd, name)
            os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    written = os.write(fd, data)
    if written != len(data):
        view = memoryview(data)[written:]
        while view:
            view = view[os.write(fd, view) :]


def open_new(directory: int, name: str, *, mode: int = 0o444) -> int:
    """Create a file to be written in pieces with :func:`write_all`."""
    step("create", directory, name)
    return os.open(name, _NEW_FILE, mode, dir_fd=directory)


def make_private(path: str) -> None:
    """Make an empty database for its owner alone, where there is none: SQLite would let everybody read it.

    The files SQLite makes beside a database get the mode of it.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, _NEW_FILE, 0o600))


def open_log(directory: int, name: str, *, create: bool) -> int:
    """A file to be written with :func:`write_at`."""
    return _open_writable(directory, name, 0, create)


def open_append(directory: int, name: str) -> int:
    """A file, made if it is not there, to which :func:`write_all` adds."""
    return _open_writable(directory, name, os.O_APPEND, create=True)


def _open_writable(directory: int, name: str, flags: int, create: bool) -> int:
    flags |= os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    if create:
        step("create", directory, name)
        flags |= os.O_CREAT
    return os.open(name, flags, 0o600, dir_fd=directory)


def open_counter(directory: int, name: str) -> int:
    """A file of a few octets, made if it is not there, to be written with :func:`set_counter`.

    It holds nothing that has to survive a crash, so that neither is a step.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(name, flags, 0o600, dir_fd=directory)


def set_counter(fd: int, data: bytes) -> None:
    os.pwrite(fd, data, 0)


def write_at(fd: int, pieces: Iterable[bytes | memoryview], offset: int, spaces: int = 0) -> None:
    """Write ``pieces`` one behind the other at a place, and so many spaces behind them."""
    step("append", fd, "")
    whole, rest = divmod(spaces, len(_SPACES))
    left = [*pieces, *[_SPACES] * whole, _SPACES[:rest]]
    at = 0
    while at < len(left):
        written = os.pwritev(fd, left[at : at + _MOST_BUFFERS], offset)
        offset += written
        while at < len(left) and written >= len(left[at]):
            written -= len(left[at])
            at += 1
        if written:  # rarely: what was written was less than asked for
            left[at] = memoryview(left[at])[written:]


def truncate(fd: int, size: int) -> None:
    step("truncate", fd, "")
    os.ftruncate(fd, size)


def sync_data(fd: int) -> None:
    """Make a file's content and size durable."""
    step("fsync", fd, "")
    os.fdatasync(fd)


def sync_directory(fd: int) -> None:
    step("fsync-directory", fd, "")
    os.fsync(fd)


def sync_file_system(fd: int) -> None:
    """Make everything written to this file system so far durable, errors included (syncfs(2))."""
    step("syncfs", fd, "")
    if _libc.syncfs(fd) != 0:
        code = ctypes.get_errno()
        if code != errno.ENOSYS:
            raise OSError(code, os.strerror(code))
        os.sync()


def rename(source: int, name: str, target: int, new_name: str) -> None:
    step("rename", target, new_name)
    os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)


def link(source: int, name: str, target: int, new_name: str) -> None:
    step("link", target, new_name)
    os.link(name, new_name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)


def symlink(directory: int, name: str, target: str) -> None:
    step("symlink", directory, name)
    os.symlink(target, name, dir_fd=directory)


def unlink(directory: int, name: str) -> None:
    step("unlink", directory, name)
    os.unlink(name, dir_fd=directory)


def make_directory(directory: int, name: str) -> None:
    step("mkdir", directory, name)
    os.mkdir(name, 0o700, dir_fd=directory)


def change_mode(directory: int, name: str, mode: int) -> None:
    """Set the mode of an entry that is not a link; nothing is opened, so that a pipe cannot block."""
    step("chmod", directory, name)
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.chmod(f"/proc/self/fd/{fd}", mode)
    finally:
        os.close(fd)


def remove_directory(directory: int, name: str) -> None:
    step("rmdir", directory, name)
    os.rmdir(name, dir_fd=directory)


def _temporary(name: str, thread: int | str) -> str:
    return f".{name}.{thread}.new"


def remove_unfinished(directory: int, name: str, *, rebooted: bool) -> None:
    """Remove what :func:`replace_file` left of ``name`` in threads that died half-way, as all did if ``rebooted``."""
    for about in os.listdir(directory):
        thread = about[len(name) + 2 : -4]
        if about == _temporary(name, thread) and thread.isdigit() and (rebooted or not _is_alive(int(thread))):
            unlink(directory, about)


def _is_alive(thread: int) -> bool:
    try:
        os.kill(thread, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def replace_file(directory: int, name: str, data: bytes, *, mode: int = 0o600) -> None:
    """Atomically and durably give ``name`` this content."""
    temporary = _temporary(name, threading.get_native_id())  # of this thread alone: others may replace it as well
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    try:
        write_new(directory, temporary, data, mode=mode, sync=True)
        rename(directory, temporary, directory, name)
    except OSError:
        with contextlib.suppress(OSError):
            unlink(directory, temporary)
        raise
    sync_directory(directory)


def open_read(directory: int, name: str) -> int:
    return os.open(name, _READ, dir_fd=directory)


def is_unreadable(error: OSError) -> bool:
    """True if a file may be intact and only cannot be read now: permission, I/O error, no free descriptors.

    Errors that say that there is no file, or something that is not a file, are not of that kind.
    """
    return error.errno not in _NOT_A_FILE


def read_file(directory: int, name: str) -> bytes:
    fd = os.open(name, _READ, dir_fd=directory)
    try:
        data = os.read(fd, 1 << 16)
        if len(data) < 1 << 16:
            return data
        pieces = [data]
        while data := os.read(fd, 1 << 20):
            pieces.append(data)
        return b"".join(pieces)
    finally:
        os.close(fd)


def exists(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def is_file(directory: int, name: str, size: int) -> bool:
    """True if there is a regular file of this size, not a link or a pipe."""
    try:
        about = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(about.st_mode) and about.st_size == size


def boot_id() -> str:
    """Changes when the machine restarts: the page cache of an earlier boot is gone."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return os.urandom(16).hex()  # unknown means: trust nothing that was not synced
