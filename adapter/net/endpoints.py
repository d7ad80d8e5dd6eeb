"""Where a listener listens: ``host:port``, ``[v6]:port``, or the path of a unix socket. Port 0 is any free one.

Sockets are opened once, before anybody accepts, so that several processes can share them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from adapter.config.loader import ConfigError
from adapter.config.schema import Listen


@dataclass(frozen=True, slots=True)
class Endpoint:
    kind: str
    host: str
    port: int
    path: str = ""  # of a unix socket; then host and port say nothing

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(kind: str, text: str) -> Endpoint:
    """Raises ConfigError."""
    path = text.removeprefix("unix:")
    if path.startswith("/"):
        return Endpoint(kind, "", 0, path)
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535 or not host:
        raise ConfigError(f"{text!r} is neither host:port nor the path of a unix socket")
    return Endpoint(kind, host, int(port))


@dataclass(frozen=True, slots=True)
class Listener:
    """An endpoint as it really is, and the sockets that listen there."""

    endpoint: Endpoint
    sockets: Sequence[socket.socket]
    ours: bool = True  # else somebody else opened it for us, and keeps it

    def close(self) -> None:
        for each in self.sockets:
            each.close()


def remove_paths(listeners: Sequence[Listener]) -> None:
    """Nobody listens there any more."""
    for listener in listeners:
        if listener.ours and listener.endpoint.path:
            with contextlib.suppress(OSError):
                os.unlink(listener.endpoint.path)


def listen(endpoint: Endpoint, settings: Listen) -> Listener:
    """Raises ConfigError."""
    try:
        if endpoint.path:
            return Listener(endpoint, [_unix_socket(endpoint.path, settings)])
        sockets = list(_tcp_sockets(endpoint, settings.backlog))
    except (OSError, socket.gaierror) as error:
        raise ConfigError(f"{endpoint.kind}: cannot listen on {endpoint}: {error.strerror or error}") from None
    return Listener(replace(endpoint, port=sockets[0].getsockname()[1]), sockets)


def _tcp_sockets(endpoint: Endpoint, backlog: int) -> Iterator[socket.socket]:
    """One for each address of the host."""
    found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with contextlib.ExitStack() as undo:
        opened = []
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = undo.enter_context(socket.socket(family, kind, protocol))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
            one.listen(backlog)
            one.setblocking(False)
            opened.append(one)
        undo.pop_all()
    yield from opened


def _unix_socket(path: str, settings: Listen) -> socket.socket:
    _remove_stale(path)
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mode must be right from the first moment: nobody may connect in between.
    mask = os.umask(0o777 & ~settings.socket_mode)
    try:
        one.bind(path)
    except OSError:
        one.close()
        raise
    finally:
        os.umask(mask)
    one.listen(settings.backlog)
    one.setblocking(False)
    return one


def _remove_stale(path: str) -> None:
    """A socket that a dead process left behind; one that somebody listens on is not touched."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        else:
            raise OSError(errno.EADDRINUSE, "Address already in use")
