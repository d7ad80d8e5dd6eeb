"""Endpoints and listening sockets: ``host:port``, ``[v6]:port``, or the path of a Unix socket. Port 0 is any free one.

Sockets are opened once, before any process accepts, so that several processes can share them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

_PROBE_SECONDS = 1.0


class ListenError(Exception):
    """An endpoint cannot be opened: one clear line."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address to listen on or connect to; ``kind`` names its use."""

    kind: str
    host: str
    port: int
    path: str = ""  # of a Unix socket; host and port are then unused

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(kind: str, text: str) -> Endpoint:
    """Parse an endpoint of the settings or the command line. Raises ValueError."""
    path = text.removeprefix("unix:")
    if path.startswith("/"):
        return Endpoint(kind, "", 0, path)
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535 or not host:
        raise ValueError(f"{text!r} is neither host:port nor the path of a unix socket")
    return Endpoint(kind, host, int(port))


@dataclass(frozen=True, slots=True)
class Listener:
    """An endpoint with its actual port, and its listening sockets."""

    endpoint: Endpoint
    sockets: Sequence[socket.socket]
    ours: bool = True  # False: inherited from the service manager, which keeps the socket

    def close(self) -> None:
        for each in self.sockets:
            each.close()


def remove_paths(listeners: Sequence[Listener]) -> None:
    """Remove the Unix sockets that this server created."""
    for listener in listeners:
        if listener.ours and listener.endpoint.path:
            with contextlib.suppress(OSError):
                os.unlink(listener.endpoint.path)


def listen(endpoint: Endpoint, *, backlog: int = 512, socket_mode: int = 0o660) -> Listener:
    """Open an endpoint; ``socket_mode`` is the mode of a Unix socket. Raises ListenError."""
    try:
        if endpoint.path:
            return Listener(endpoint, [_unix_socket(endpoint.path, backlog, socket_mode)])
        sockets = list(_tcp_sockets(endpoint, backlog))
    except (OSError, socket.gaierror) as error:
        raise ListenError(f"{endpoint.kind}: cannot listen on {endpoint}: {error.strerror or error}") from None
    return Listener(replace(endpoint, port=sockets[0].getsockname()[1]), sockets)


def _tcp_sockets(endpoint: Endpoint, backlog: int) -> Iterator[socket.socket]:
    """Open one socket for each address of the host."""
    addresses = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with contextlib.ExitStack() as undo:
        opened = []
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            listening = undo.enter_context(socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(backlog)
            listening.setblocking(False)
            opened.append(listening)
        undo.pop_all()
    yield from opened


def _unix_socket(path: str, backlog: int, mode: int) -> socket.socket:
    _remove_stale(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Set the mode with the umask, not with chmod afterwards: no client may connect in between.
    mask = os.umask(0o777 & ~mode)
    try:
        listening.bind(path)
    except OSError:
        listening.close()
        raise
    finally:
        os.umask(mask)
    listening.listen(backlog)
    listening.setblocking(False)
    return listening


def _remove_stale(path: str) -> None:
    """Remove the socket of a dead process. Raises OSError if a live process listens on it."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        else:
            raise OSError(errno.EADDRINUSE, "Address already in use")
