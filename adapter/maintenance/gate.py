"""The gate: taking mail offline, and proving it.

Every process that serves or changes the store holds the service lock shared. The gate writes the offline marker, which
servers see within a second: they refuse newcomers, finish what is in flight, close, and let go. Then the gate takes the
lock exclusively. Holding it is the proof: nobody else can change the store. If the gate's process dies, the kernel
releases its locks and the marker counts for nothing, so mail comes back by itself.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from adapter.store import locks, offline_marker
from adapter.store.disk import Directories
from adapter.store.offline_marker import Marker
from adapter.transport.recovery.opening import check_directories, check_layout, check_version, open_root

DEADLINE = 60.0  # seconds that servers get to finish what is in flight
_POLL = 0.05


class NotOffline(Exception):  # noqa: N818 - a state, reported by name
    """The lock could not be had in time; the text names who holds it."""


@contextlib.contextmanager
def offline(root: str, *, reason: str, deadline: float = DEADLINE, older: bool = False) -> Iterator[Directories]:
    """Take the store offline for the length of the block and hold the service lock exclusively.

    A store that ``maintenance on`` has taken offline stays so afterwards. ``older``: it may be of an older version.
    Raises :class:`NotOffline`.
    """
    with contextlib.closing(open_root(root)) as directories:
        check_layout(directories, older=older)
        before = offline_marker.read(directories)
        own = offline_marker.signed(reason, lasting=False)
        with locks.offline_claim(directories) as claim:
            claim()  # before the marker is there: it counts for as long as this is held
            if before is None or not before.lasting:
                offline_marker.write(directories, own)
            try:
                with _exclusive(directories, deadline, claim):
                    yield directories
            finally:
                if offline_marker.read(directories) == own:  # else somebody else wants mail to stay offline
                    offline_marker.remove(directories)


def turn_on(root: str, *, reason: str, until: str = "", deadline: float = DEADLINE) -> Marker:
    """Take the store offline until :func:`turn_off`. Raises :class:`NotOffline`, and leaves it as it was then."""
    with contextlib.closing(open_root(root)) as directories:
        check_layout(directories)
        before = offline_marker.read(directories)
        marker = offline_marker.signed(reason, lasting=True, until=until)
        offline_marker.write(directories, marker)
        try:
            with _exclusive(directories, deadline):
                pass
        except BaseException:  # also when somebody loses patience
            if before is None:
                offline_marker.remove(directories)
            else:
                offline_marker.write(directories, before)
            raise
        return marker


def turn_off(root: str) -> bool:
    """Let mail back in; False if it was not kept out."""
    with contextlib.closing(open_root(root)) as directories:
        check_layout(directories)
        was = offline_marker.read(directories) is not None
        offline_marker.remove(directories)
        return was


def status(root: str) -> tuple[Marker | None, list[str]]:
    """The marker, if the store is offline, and who has the store open."""
    with contextlib.closing(open_root(root)) as directories:
        check_version(directories)
        check_directories(directories, create=False)
        return offline_marker.read(directories), locks.service_holders(directories)


@contextlib.contextmanager
def _exclusive(directories: Directories, deadline: float, claim: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """``claim``: what comes first; another command may be at it."""
    end = time.monotonic() + deadline
    with locks.service_gate(directories) as try_lock:
        while not (claim() and try_lock()):
            if time.monotonic() >= end:
                holders = ", ".join(locks.service_holders(directories)) or "an unknown process"
                raise NotOffline(f"still open after {deadline:.0f} s: {holders}")
            time.sleep(_POLL)
        yield
