"""One HTTP request. It blocks, for so long at most; redirects are not followed, so that an answer is the URL's own."""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import threading
import time
import urllib.parse
from collections.abc import Mapping

_MAX_ANSWER = 64 << 10


def is_web_address(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> tuple[int, bytes]:
    """The status and the beginning of the answer. Raises OSError (TimeoutError among them)."""
    parts = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=seconds)
    deadline = time.monotonic() + seconds
    late = threading.Event()
    try:
        connection.connect()
        timer = threading.Timer(max(deadline - time.monotonic(), 0.0), _cut, [connection.sock, late])
        timer.daemon = True
        timer.start()
        try:
            target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
            connection.request("POST", target, body, {**_login(parts), **headers, "Connection": "close"})
            answer = connection.getresponse()
            text = answer.read(_MAX_ANSWER)
        finally:
            timer.cancel()
        if late.is_set():  # what was cut may look whole
            raise TimeoutError("no answer in time")
        return answer.status, text
    except http.client.HTTPException as error:
        if late.is_set():
            raise TimeoutError("no answer in time") from None
        raise OSError(f"not an HTTP answer: {type(error).__name__}") from None
    finally:
        connection.close()


def _cut(sock: socket.socket, late: threading.Event) -> None:
    """The time limit of a socket holds for each step; this one holds for all of them."""
    late.set()
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _login(parts: urllib.parse.SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    login = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
