"""Three pages for those who watch over a server: ``/healthz``, ``/readyz`` and ``/metrics``. Nothing in them is secret,
but they are meant for loopback.

``/healthz`` is 200 as soon as the event loop answers; ``/readyz`` only while mail is served: 503 in maintenance and
while draining. One request for each connection (RFC 9112, GET and HEAD only); what is longer or slower than such a
request can be is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple, cast

from adapter.observability import prometheus
from adapter.server.metrics_shm import Board
from adapter.sessions.context import ServerContext

#: The kind of listener these are on.
HEALTH = "metrics"

_LONGEST_REQUEST = 8 << 10
_PATIENCE = 5.0
_MOST = 64  # connections at once

_TEXT = "text/plain; charset=utf-8"


class _Page(NamedTuple):
    status: HTTPStatus
    text: str
    kind: str = _TEXT


class Health:
    """``refresh`` puts up this worker's figures."""

    def __init__(self, services: ServerContext, board: Board, refresh: Callable[[], None]) -> None:
        self._services = services
        self._board = board
        self._refresh = refresh
        self.open = 0

    def connection(self) -> asyncio.BaseProtocol:
        return _Connection(self)

    def page(self, path: str) -> _Page:
        if path == "/healthz":
            return _Page(HTTPStatus.OK, "ok\n")
        if path == "/readyz":
            return self._readiness()
        if path == "/metrics":
            self._refresh()
            return _Page(HTTPStatus.OK, prometheus.render(self._board), prometheus.CONTENT_TYPE)
        return _Page(HTTPStatus.NOT_FOUND, "healthz, readyz and metrics are here\n")

    def _readiness(self) -> _Page:
        if self._services.ending:
            return _Page(HTTPStatus.SERVICE_UNAVAILABLE, "draining\n")
        if self._services.store is None:
            return _Page(HTTPStatus.SERVICE_UNAVAILABLE, "offline for maintenance\n")
        return _Page(HTTPStatus.OK, "ready\n")


class _Connection(asyncio.Protocol):
    def __init__(self, health: Health) -> None:
        self._health = health
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._health.open += 1
        if self._health.open > _MOST:
            self._transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE, self._transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        self._health.open -= 1
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if b"\r\n\r\n" in self._received:
            self._answer()
        elif len(self._received) > _LONGEST_REQUEST:
            self._send(_Page(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too long\n"))

    def _answer(self) -> None:
        line = self._received.partition(b"\r\n")[0].split(b" ")
        if len(line) != 3 or not line[2].startswith(b"HTTP/1."):
            self._send(_Page(HTTPStatus.BAD_REQUEST, "not a request\n"))
        elif line[0] not in (b"GET", b"HEAD"):
            self._send(_Page(HTTPStatus.METHOD_NOT_ALLOWED, "GET or HEAD\n"))
        else:
            path = line[1].partition(b"?")[0].decode("latin-1")
            self._send(self._health.page(path), with_body=line[0] == b"GET")

    def _send(self, page: _Page, *, with_body: bool = True) -> None:
        transport, self._transport = self._transport, None
        if transport is None:
            return
        body = page.text.encode()
        head = (
            f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\nContent-Type: {page.kind}\r\n"
            f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        transport.write(head.encode("ascii") + (body if with_body else b""))
        transport.close()
