"""HTTP pages for monitoring: ``/healthz``, ``/readyz`` and ``/metrics``. They contain no secrets, but are meant for
loopback.

``/healthz`` is 200 as soon as the event loop responds; ``/readyz`` only while mail is served: 503 in maintenance and
while draining. A connection carries one request (RFC 9112, GET and HEAD only); one that is longer or slower than such
a request can be is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple, cast

from adapter.observability import prometheus
from adapter.server.metrics_shm import SharedMetrics
from adapter.sessions.context import ServerContext

_MAX_REQUEST_BYTES = 8 << 10
_REQUEST_SECONDS = 5.0
_MAX_CONNECTIONS = 64

_TEXT = "text/plain; charset=utf-8"


class _Page(NamedTuple):
    status: HTTPStatus
    text: str
    content_type: str = _TEXT


class MonitoringPages:
    """The three pages; ``refresh`` publishes the current metrics of this worker."""

    def __init__(self, context: ServerContext, shared: SharedMetrics, refresh: Callable[[], None]) -> None:
        self._context = context
        self._shared = shared
        self._refresh = refresh
        self.connections = 0

    def connection(self) -> asyncio.BaseProtocol:
        return _Connection(self)

    def page(self, path: str) -> _Page:
        if path == "/healthz":
            return _Page(HTTPStatus.OK, "ok\n")
        if path == "/readyz":
            return self._readiness()
        if path == "/metrics":
            self._refresh()
            return _Page(HTTPStatus.OK, prometheus.render(self._shared.read()), prometheus.CONTENT_TYPE)
        return _Page(HTTPStatus.NOT_FOUND, "not found: try /healthz, /readyz or /metrics\n")

    def _readiness(self) -> _Page:
        if self._context.ending:
            return _Page(HTTPStatus.SERVICE_UNAVAILABLE, "draining\n")
        if self._context.store is None:
            return _Page(HTTPStatus.SERVICE_UNAVAILABLE, "offline for maintenance\n")
        return _Page(HTTPStatus.OK, "ready\n")


class _Connection(asyncio.Protocol):
    def __init__(self, pages: MonitoringPages) -> None:
        self._pages = pages
        self._received = b""
        self._socket: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast("asyncio.Transport", transport)
        self._pages.connections += 1
        if self._pages.connections > _MAX_CONNECTIONS:
            self._socket.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(_REQUEST_SECONDS, self._socket.abort)

    def connection_lost(self, error: Exception | None) -> None:
        self._pages.connections -= 1
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if b"\r\n\r\n" in self._received:
            self._respond()
        elif len(self._received) > _MAX_REQUEST_BYTES:
            self._send(_Page(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "request too long\n"))

    def _respond(self) -> None:
        line = self._received.partition(b"\r\n")[0].split(b" ")
        if len(line) != 3 or not line[2].startswith(b"HTTP/1."):
            self._send(_Page(HTTPStatus.BAD_REQUEST, "not an HTTP request\n"))
        elif line[0] not in (b"GET", b"HEAD"):
            self._send(_Page(HTTPStatus.METHOD_NOT_ALLOWED, "use GET or HEAD\n"))
        else:
            path = line[1].partition(b"?")[0].decode("latin-1")
            self._send(self._pages.page(path), with_body=line[0] == b"GET")

    def _send(self, page: _Page, *, with_body: bool = True) -> None:
        socket, self._socket = self._socket, None
        if socket is None:
            return
        body = page.text.encode()
        head = (
            f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\nContent-Type: {page.content_type}\r\n"
            f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        socket.write(head.encode("ascii") + (body if with_body else b""))
        socket.close()
