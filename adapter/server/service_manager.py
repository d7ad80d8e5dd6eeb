"""Status reports of a serving process, to the service manager or to the supervisor of the workers.

The service manager is systemd, or any other that sets ``NOTIFY_SOCKET`` (sd_notify(3)); without one the notifications
are dropped. Only the process that was started notifies it, never a worker.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, MutableMapping

#: Prints one line on standard output.
Announce = Callable[[str], None]

_EXTENSION_SECONDS = 60.0


class StatusReporter:
    """Null implementation: ignores all status updates."""

    def ready(self) -> None:
        """Report that connections are accepted."""

    def alive(self) -> None:
        """Report a heartbeat of the event loop; called twice a second."""

    def reloading(self) -> None:
        """Report that SIGHUP arrived."""

    def reloaded(self) -> None:
        """Report that the reload has finished."""

    def stopping(self) -> None:
        """Report that no more connections are accepted."""

    def status(self, text: str) -> None:
        """Report the state in a few words for people."""


class SystemdNotifier(StatusReporter):
    """Announces "ready" on standard output, and reports everything to the service manager."""

    def __init__(self, announce: Announce, environment: MutableMapping[str, str] = os.environ) -> None:
        self._announce = announce
        self._address = environment.pop("NOTIFY_SOCKET", "")
        watchdog = environment.pop("WATCHDOG_USEC", "")
        is_for_us = environment.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        # Half the timeout, as sd_watchdog_enabled(3) recommends.
        self._interval = int(watchdog) / 2e6 if watchdog.isdigit() and is_for_us else float("inf")
        self._next_watchdog = 0.0
        self._is_opening = True
        self._next_extension = 0.0

    def ready(self) -> None:
        self._is_opening = False
        self._announce("ready")
        self._notify("READY=1", "STATUS=Serving mail")

    def alive(self) -> None:
        now = time.monotonic()
        if self._is_opening and now >= self._next_extension:
            # After a power loss a large store takes longer to open than the usual start timeout.
            self._next_extension = now + _EXTENSION_SECONDS / 4
            self._notify(f"EXTEND_TIMEOUT_USEC={int(_EXTENSION_SECONDS * 1e6)}")
        if self._interval != float("inf") and now >= self._next_watchdog:
            self._next_watchdog = now + max(0.0, self._interval - 0.5)
            self._notify("WATCHDOG=1")

    def reloading(self) -> None:
        self._notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        self._notify("READY=1")

    def stopping(self) -> None:
        self._notify("STOPPING=1", "STATUS=Draining sessions")

    def status(self, text: str) -> None:
        self._notify(f"STATUS={text}")

    def _notify(self, *lines: str) -> None:
        if not self._address:
            return
        # A leading @ denotes an address in the abstract namespace.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to_manager:
            to_manager.setblocking(False)
            to_manager.sendto("\n".join(lines).encode(), address)
