"""Listeners: what a connection to each kind becomes, and how connections are accepted from shared sockets.

Invariants: where several workers share a socket, a worker with more connections than another leaves the next one to it
for a moment, and accepts it if no other worker has; when accepting fails (no free descriptors), the acceptor pauses
instead of spinning.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from adapter.net.endpoints import Listener
from adapter.observability import metrics
from adapter.sessions.context import ServerContext
from adapter.smtp.listener_config import ListenerConfig
from adapter.smtp.session import SmtpSession
from protocol.smtp.states import Service

if TYPE_CHECKING:
    from adapter.imap.server import ImapServer

_log = logging.getLogger(__name__)

_YIELD_SECONDS = 0.02
_ERROR_PAUSE_SECONDS = 1.0
#: Connections accepted in one turn of the event loop.
_MAX_BATCH = 32

#: Makes the protocol of one connection.
NewConnection = Callable[[], asyncio.BaseProtocol]
#: Returns whether another worker should accept the next connection.
ShouldYield = Callable[[], bool]

_SMTP_SERVICES = {
    "smtp": (Service.MX, False),
    "submission": (Service.SUBMISSION, False),
    "submissions": (Service.SUBMISSION, True),
    "lmtp": (Service.LMTP, False),
}


class ConnectionFactory:
    """Makes the protocols of new connections, for all listeners of a process."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def for_listener(self, kind: str) -> NewConnection:
        if kind in ("imap", "imaps"):
            return partial(self._imap_server.connection, implicit_tls=kind == "imaps")
        service, implicit_tls = _SMTP_SERVICES[kind]
        return self._smtp(service, implicit_tls=implicit_tls)

    @functools.cached_property
    def _imap_server(self) -> ImapServer:
        """The IMAP server of all IMAP listeners."""
        # Imported here, because a server without IMAP starts faster and needs less memory.
        from adapter.imap.server import ImapServer

        return ImapServer(self._context)

    def _smtp(self, service: Service, *, implicit_tls: bool) -> NewConnection:
        config = ListenerConfig.load(self._context, service, implicit_tls=implicit_tls)
        settings = self._context.settings

        def current() -> ListenerConfig:
            nonlocal config, settings
            if self._context.settings is not settings:  # reloaded
                config = ListenerConfig.load(self._context, service, implicit_tls=implicit_tls)
                settings = self._context.settings
            return config

        return partial(SmtpSession, asyncio.get_running_loop(), current)


class Acceptor:
    """Accepts connections until it is closed; closing affects the sockets of this process only."""

    def __init__(
        self, listener: Listener, connection: NewConnection, *, should_yield: ShouldYield | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._connection = connection
        self._should_yield = should_yield
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepted = metrics.CONNECTIONS.of(listener.endpoint.kind)
        for each in listener.sockets:
            self._watch(each)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for each in self._listener.sockets:
            if each.fileno() >= 0:
                self._loop.remove_reader(each.fileno())
        self._listener.close()

    def _watch(self, listening: socket.socket) -> None:
        self._loop.add_reader(listening.fileno(), self._on_readable, listening)

    def _resume(self, listening: socket.socket) -> None:
        self._timers.pop(listening.fileno(), None)
        self._watch(listening)
        self._accept(listening)  # a connection that no other worker has accepted

    def _pause(self, listening: socket.socket, seconds: float) -> None:
        self._loop.remove_reader(listening.fileno())
        self._timers[listening.fileno()] = self._loop.call_later(seconds, self._resume, listening)

    def _on_readable(self, listening: socket.socket) -> None:
        if self._should_yield is None:
            for _ in range(_MAX_BATCH):
                if not self._accept(listening):
                    return
        elif self._should_yield():
            self._pause(listening, _YIELD_SECONDS)
        else:
            self._accept(listening)

    def _accept(self, listening: socket.socket) -> bool:
        try:
            accepted, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError as error:
            _log.error(
                "%s: cannot accept (%s); pausing for %d s",
                self._listener.endpoint.kind,
                error.strerror,
                _ERROR_PAUSE_SECONDS,
            )
            self._pause(listening, _ERROR_PAUSE_SECONDS)
            return False
        self._accepted.add()
        accepted.setblocking(False)
        task = self._loop.create_task(self._attach(accepted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _attach(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._connection, accepted)
        except OSError:
            with contextlib.suppress(OSError):
                accepted.close()
