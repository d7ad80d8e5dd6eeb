"""The gate: take mail offline, and prove it.

Every process that serves or changes the store holds the service lock shared. The gate writes the offline marker, which
servers notice within a second: they refuse new sessions, drain, close the store and release the lock. The gate then
takes the lock exclusively; holding it proves that no other process can change the store. If the gate's process dies,
the kernel releases its locks, the marker becomes void, and mail comes back by itself.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from adapter.store import locks, offline_marker
from adapter.store.disk import Directories
from adapter.store.offline_marker import Marker
from adapter.transport.recovery.opening import check_directories, check_layout, check_version, open_root

DRAIN_SECONDS = 60.0  # how long to wait for servers to drain
_POLL_SECONDS = 0.05


class NotOffline(Exception):  # noqa: N818 - a state, reported by name
    """The service lock was not released in time; the text names the processes that hold it."""


@contextlib.contextmanager
def offline(root: str, *, reason: str, deadline: float = DRAIN_SECONDS) -> Iterator[Directories]:
    """Take the store offline for the duration of the block and hold the service lock exclusively.

    A store taken offline by ``maintenance on`` stays offline afterwards. Raises :class:`NotOffline`.
    """
    with contextlib.closing(open_root(root)) as directories:
        check_layout(directories)
        before = offline_marker.read(directories)
        own = offline_marker.signed(reason, lasting=False)
        with locks.offline_claim(directories) as claim:
            claim()  # before writing the marker: the marker is valid while the claim is held
            if before is None or not before.lasting:
                offline_marker.write(directories, own)
            try:
                with _exclusive(directories, deadline, claim):
                    yield directories
            finally:
                if offline_marker.read(directories) == own:  # another marker means that mail stays offline
                    offline_marker.remove(directories)


def turn_on(root: str, *, reason: str, until: str = "", deadline: float = DRAIN_SECONDS) -> Marker:
    """Take the store offline until :func:`turn_off`. Raises :class:`NotOffline` and restores the previous state."""
    with contextlib.closing(open_root(root)) as directories:
        check_layout(directories)
        before = offline_marker.read(directories)
        marker = offline_marker.signed(reason, lasting=True, until=until)
        offline_marker.write(directories, marker)
        try:
            with _exclusive(directories, deadline):
                pass
        except BaseException:  # including Ctrl-C
            if before is None:
                offline_marker.remove(directories)
            else:
                offline_marker.write(directories, before)
            raise
        return marker


def turn_off(root: str) -> bool:
    """Bring mail back online; return False if it was not offline."""
    with contextlib.closing(open_root(root)) as directories:
        check_layout(directories)
        was_offline = offline_marker.read(directories) is not None
        offline_marker.remove(directories)
        return was_offline


def status(root: str) -> tuple[Marker | None, list[str]]:
    """The offline marker, if any, and the processes that have the store open."""
    with contextlib.closing(open_root(root)) as directories:
        check_version(directories)
        check_directories(directories, create=False)
        return offline_marker.read(directories), locks.service_holders(directories)


@contextlib.contextmanager
def _exclusive(directories: Directories, deadline: float, claim: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Take the service lock exclusively, after ``claim`` succeeds: another command may hold the offline claim."""
    end = time.monotonic() + deadline
    with locks.service_gate(directories) as try_lock:
        while not (claim() and try_lock()):
            if time.monotonic() >= end:
                holders = ", ".join(locks.service_holders(directories)) or "an unknown process"
                raise NotOffline(f"still open after {deadline:.0f} s: {holders}")
            time.sleep(_POLL_SECONDS)
        yield
