"""Who is told how a serving process does: the service manager that started it, or the supervisor of the workers.

The service manager is systemd or whatever else sets ``NOTIFY_SOCKET`` (sd_notify(3)); where there is none, the words
go nowhere. Only the process that was started speaks to it, never a worker.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, MutableMapping

Announce = Callable[[str], None]

_EXTENSION = 60.0  # seconds


class Overseer:
    """Told what happens; this one takes no notice."""

    def ready(self) -> None:
        """Connections are accepted."""

    def alive(self) -> None:
        """The event loop has its turns; to be called twice a second."""

    def reloading(self) -> None:
        """SIGHUP came."""

    def reloaded(self) -> None:
        """What SIGHUP asked for is done."""

    def stopping(self) -> None:
        """No more connections are accepted."""

    def status(self, text: str) -> None:
        """How it stands, in a few words for people."""


class ServiceManager(Overseer):
    """Announces "ready" on standard output, and everything to the service manager."""

    def __init__(self, announce: Announce, environment: MutableMapping[str, str] = os.environ) -> None:
        self._announce = announce
        self._address = environment.pop("NOTIFY_SOCKET", "")
        watchdog = environment.pop("WATCHDOG_USEC", "")
        for_us = environment.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        # Half the time it allows, as sd_watchdog_enabled(3) recommends.
        self._pause = int(watchdog) / 2e6 if watchdog.isdigit() and for_us else float("inf")
        self._next = 0.0
        self._opening = True
        self._extended = 0.0

    def ready(self) -> None:
        self._opening = False
        self._announce("ready")
        self._tell("READY=1", "STATUS=Serving mail")

    def alive(self) -> None:
        now = time.monotonic()
        if self._opening and now >= self._extended:
            # After a power loss a large store takes longer to open than services usually take to start.
            self._extended = now + _EXTENSION / 4
            self._tell(f"EXTEND_TIMEOUT_USEC={int(_EXTENSION * 1e6)}")
        if self._pause != float("inf") and now >= self._next:
            self._next = now + max(0.0, self._pause - 0.5)
            self._tell("WATCHDOG=1")

    def reloading(self) -> None:
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        self._tell("READY=1")

    def stopping(self) -> None:
        self._tell("STOPPING=1", "STATUS=Finishing what is in flight")

    def status(self, text: str) -> None:
        self._tell(f"STATUS={text}")

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        # A leading @ stands for an address in the abstract namespace.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to_manager:
            to_manager.setblocking(False)
            to_manager.sendto("\n".join(lines).encode(), address)
