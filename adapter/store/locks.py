"""The store's kernel locks, and the one order in which they are taken.

Order: the service lock (shared, for the life of a process), then ``locks/addresses/<address>.lock`` in lexicographic
order, then ``locks/index.lock``. A dead process holds nothing. Within a process one thread at a time holds a round of
locks. The order is checked at run time: taking a lock out of order is a bug and raises at once.

``filelock.lock_descriptor`` takes the same kernel lock as ``filelock.FileLock`` on the same file (the two exclude each
other), on a descriptor that stays open between rounds: 3 microseconds instead of 150.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

from filelock import lock_descriptor, unlock_descriptor

from adapter.observability.metrics import LOCK_WAIT
from adapter.store import layout
from adapter.store.disk import Directories
from protocol.errors import MailError, Reason

_KEPT_ADDRESS_LOCKS = 256
#: Back-off between two attempts: an eighth of the time waited so far, so that a free lock is taken soon.
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.0004, 0.004


def _open_lock(directory: int, name: str) -> int:
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)


class LockOrderError(RuntimeError):
    """A lock was asked for out of order: a bug in the caller."""


class LockTimeout(MailError):  # noqa: N818 - what happened, not a mistake
    """A lock timed out. ``address`` is the one it belongs to; None: it is a lock of the whole store."""

    def __init__(self, detail: str, address: str | None = None) -> None:
        super().__init__(Reason.LOCK_TIMEOUT, detail)
        self.address = address


class Locks:
    def __init__(self, directories: Directories, timeout: float) -> None:
        self._directories = directories
        self._timeout = timeout
        self._round = threading.Lock()
        self._descriptors: dict[str, int] = {}  # least recently used first
        self._held: list[tuple[int, str]] = []
        self._owner = os.getpid()
        self._service: int | None = None

    def close(self) -> None:
        with self._round:
            for fd in self._descriptors.values():
                os.close(fd)
            self._descriptors.clear()
        if self._service is not None:
            os.close(self._service)
            self._service = None

    # --- the service lock ------------------------------------------------------------------------------------------

    def share_service(self) -> None:
        """Hold the service lock shared for the life of this object, or say that maintenance holds it."""
        with self._directories.stable(layout.LOCKS) as directory:
            fd = _open_lock(directory, layout.SERVICE_LOCK)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise MailError(Reason.MAINTENANCE, "the store is in maintenance: the service lock is held") from None
        self._service = fd

    # --- rounds of locks -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def hold(self, addresses: Iterable[str]) -> Iterator[None]:
        """Hold the locks of these addresses and the index lock. One time limit covers the whole round."""
        if os.getpid() != self._owner:
            raise RuntimeError("a store must be opened again after fork()")
        began = time.monotonic()
        deadline = began + self._timeout
        if not self._round.acquire(timeout=self._timeout):
            raise LockTimeout("another thread of this process holds the store's locks")
        try:
            try:
                for address in sorted(set(addresses)):
                    if not self._take(0, layout.address_lock(address), deadline):
                        raise LockTimeout(f"{address} is locked by another process", address)
                if not self._take(1, layout.INDEX_LOCK, deadline):
                    raise LockTimeout("the index is locked by another process")
                LOCK_WAIT.of().observe(time.monotonic() - began)
                yield
            finally:
                self._release()
        finally:
            self._round.release()

    def _take(self, rank: int, name: str, deadline: float) -> bool:
        if self._held and (rank, name) <= self._held[-1]:
            raise LockOrderError(f"{name} after {self._held[-1][1]}")
        began = time.monotonic()
        while True:
            fd = self._descriptor(rank, name)
            if lock_descriptor(fd, blocking=False):
                if os.fstat(fd).st_nlink:
                    self._held.append((rank, name))
                    return True
                unlock_descriptor(fd)  # the lock file was removed and replaced: the new one counts
                os.close(self._descriptors.pop(name))
                continue
            now = time.monotonic()
            if now >= deadline:
                return False
            pause = min(max(_MIN_PAUSE_SECONDS, (now - began) / 8), _MAX_PAUSE_SECONDS)
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads waiters, protects nothing

    def _release(self) -> None:
        while self._held:
            _, name = self._held.pop()
            unlock_descriptor(self._descriptors[name])
        while len(self._descriptors) > _KEPT_ADDRESS_LOCKS:
            os.close(self._descriptors.pop(next(iter(self._descriptors))))

    def _descriptor(self, rank: int, name: str) -> int:
        fd = self._descriptors.pop(name, None)
        if fd is None:
            with self._directories.stable(layout.ADDRESS_LOCKS if rank == 0 else layout.LOCKS) as directory:
                fd = _open_lock(directory, name)
        self._descriptors[name] = fd
        return fd


def service_gate(directories: Directories) -> AbstractContextManager[Callable[[], bool]]:
    """For maintenance: a function that tries to take the service lock exclusively; released at the end."""
    return _attempts(directories, layout.SERVICE_LOCK)


def offline_claim(directories: Directories) -> AbstractContextManager[Callable[[], bool]]:
    """For a command that takes mail offline: a function that tries to claim that it is at it; let go at the end."""
    return _attempts(directories, layout.OFFLINE_LOCK)


@contextlib.contextmanager
def _attempts(directories: Directories, name: str) -> Iterator[Callable[[], bool]]:
    with directories.stable(layout.LOCKS) as directory:
        fd = _open_lock(directory, name)
    try:
        yield lambda: lock_descriptor(fd, blocking=False)
    finally:
        os.close(fd)


def is_offline_claimed(directories: Directories) -> bool:
    """True if such a command is alive, in any container: the kernel's locks show it, process numbers do not."""
    with directories.stable(layout.LOCKS) as directory:
        fd = _open_lock(directory, layout.OFFLINE_LOCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: who else asks is not alive for that
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def service_holders(directories: Directories) -> list[str]:
    """List the holders of the service lock, as ``process <pid> (<command>)``, from the kernel's list of locks."""
    return [f"process {pid} ({_command(pid)})" for pid in sorted(_holders(directories, layout.SERVICE_LOCK))]


def holds_index_lock(directories: Directories, process: int) -> bool:
    """True if the kernel's list of locks names this process as the holder of the index lock."""
    return process in _holders(directories, layout.INDEX_LOCK)


def _holders(directories: Directories, name: str) -> set[int]:
    with directories.stable(layout.LOCKS) as directory:
        try:
            inode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino
        except FileNotFoundError:
            return set()
    with open("/proc/locks") as listing:
        locks = [line.split() for line in listing]
    return {int(lock[-4]) for lock in locks if "FLOCK" in lock and "->" not in lock and lock[-3].endswith(f":{inode}")}


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(200).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return "gone"


def check_exclusion(directories: Directories) -> None:
    """Refuse a file system on which two descriptors can hold one lock."""
    name = f"probe-{os.getpid()}-{os.urandom(4).hex()}.lock"
    with directories.stable(layout.LOCKS) as directory:
        first = _open_lock(directory, name)
        second = _open_lock(directory, name)
        try:
            excluded = lock_descriptor(first, blocking=False) and not lock_descriptor(second, blocking=False)
        except OSError:
            excluded = False
        finally:
            os.close(first)
            os.close(second)
            os.unlink(name, dir_fd=directory)
    if not excluded:
        raise MailError(Reason.UNKNOWN, "locks do not exclude on this file system; put the root on a local file system")


@contextlib.contextmanager
def claim_directory(fd: int, patience: float = 0.0) -> Iterator[bool]:
    """True if no live process claims this (staging) directory; it is claimed until the end of the block.

    ``patience``: seconds to retry, because processes that only check the claim hold it for a moment.
    """
    deadline = time.monotonic() + patience
    while not (claimed := lock_descriptor(fd, blocking=False)) and time.monotonic() < deadline:
        time.sleep(0.002)
    try:
        yield claimed
    finally:
        if claimed:
            unlock_descriptor(fd)


@contextlib.contextmanager
def duty_lock(directories: Directories, duty: str) -> Iterator[bool]:
    """True if this process gets the duty, which it holds until the end of the block.

    The duty is not part of the lock order: its holder takes and releases the other locks as every writer does.
    """
    with directories.stable(layout.LOCKS) as directory:
        fd = _open_lock(directory, layout.duty_lock(duty))
    try:
        yield lock_descriptor(fd, blocking=False)
    finally:
        os.close(fd)


@contextlib.contextmanager
def credentials_lock(directories: Directories, timeout: float) -> Iterator[int]:
    """Hold the credentials for a change; yields their directory, which is made if need be and is itself the lock.

    It is taken alone: a holder takes no other lock of the store.
    """
    deadline = time.monotonic() + timeout
    with directories.open(layout.CREDENTIALS, create=True) as fd:
        while not lock_descriptor(fd, blocking=False):
            if time.monotonic() >= deadline:
                raise MailError(Reason.LOCK_TIMEOUT, "the credentials are being changed by another process")
            time.sleep(0.01)
        try:
            yield fd
        finally:
            unlock_descriptor(fd)
