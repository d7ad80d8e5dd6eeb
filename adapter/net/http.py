"""HTTP POST with a total time limit. Blocking; redirects are not followed, so the response is the URL's own."""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import threading
import time
import urllib.parse
from collections.abc import Mapping

_MAX_RESPONSE_BYTES = 64 << 10


def is_web_address(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> tuple[int, bytes]:
    """Return the status and the beginning of the response body. Raises OSError (including TimeoutError)."""
    parts = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=seconds)
    deadline = time.monotonic() + seconds
    timed_out = threading.Event()
    try:
        connection.connect()
        timer = threading.Timer(max(deadline - time.monotonic(), 0.0), _shut_down, [connection.sock, timed_out])
        timer.daemon = True
        timer.start()
        try:
            target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
            connection.request("POST", target, body, {**_basic_auth(parts), **headers, "Connection": "close"})
            response = connection.getresponse()
            text = response.read(_MAX_RESPONSE_BYTES)
        finally:
            timer.cancel()
        if timed_out.is_set():  # a truncated response may look complete
            raise TimeoutError("no answer in time")
        return response.status, text
    except http.client.HTTPException as error:
        if timed_out.is_set():
            raise TimeoutError("no answer in time") from None
        raise OSError(f"not an HTTP answer: {type(error).__name__}") from None
    finally:
        connection.close()


def _shut_down(sock: socket.socket, timed_out: threading.Event) -> None:
    """Enforce the total time limit: a socket's timeout applies to each operation only."""
    timed_out.set()
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _basic_auth(parts: urllib.parse.SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    login = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
