"""Accepting connections from sockets that other workers may accept from as well.

Invariants: where several workers share a socket, one that has more connections than another leaves the next one to it
for a moment, and takes it if nobody else does; trouble with accepting (no more descriptors) is waited out, not spun on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

from adapter.net.endpoints import Listener
from adapter.observability import metrics
from adapter.server.listeners import NewConnection

_log = logging.getLogger(__name__)

_MOMENT = 0.02
_TROUBLE = 1.0
#: Taken from the queue before anything else has its turn.
_AT_ONCE = 32

#: Whether another worker should have the next connection.
Yields = Callable[[], bool]


class Acceptor:
    """Accepts until it is closed, which closes the sockets in this process and nowhere else."""

    def __init__(self, listener: Listener, connection: NewConnection, *, yields: Yields | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._connection = connection
        self._yields = yields
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
        self._loop.add_reader(listening.fileno(), self._ready, listening)

    def _watch_again(self, listening: socket.socket) -> None:
        self._timers.pop(listening.fileno(), None)
        self._watch(listening)
        self._accept(listening)  # what nobody else wanted

    def _pause(self, listening: socket.socket, seconds: float) -> None:
        self._loop.remove_reader(listening.fileno())
        self._timers[listening.fileno()] = self._loop.call_later(seconds, self._watch_again, listening)

    def _ready(self, listening: socket.socket) -> None:
        if self._yields is None:
            for _ in range(_AT_ONCE):
                if not self._accept(listening):
                    return
        elif self._yields():
            self._pause(listening, _MOMENT)
        else:
            self._accept(listening)

    def _accept(self, listening: socket.socket) -> bool:
        try:
            accepted, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError as error:
            _log.error("%s cannot accept: %s", self._listener.endpoint.kind, error.strerror)
            self._pause(listening, _TROUBLE)
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
