"""Listening sockets that the service manager opened for us (sd_listen_fds(3)): low ports without privileges, and
connections that wait during a restart instead of being refused.

``FileDescriptorName=`` of the socket unit says which listener a socket is for. A kind of listener that is handed over
is not opened from ``[listen]`` again.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, MutableMapping

from adapter.config.loader import ConfigError
from adapter.net.endpoints import Endpoint, Listener

_FIRST = 3  # the descriptor of the first


def take(kinds: Collection[str], environment: MutableMapping[str, str] = os.environ) -> list[Listener]:
    """Those that are meant for this process; they are taken from the environment. Raises ConfigError."""
    process = environment.pop("LISTEN_PID", "")
    count = environment.pop("LISTEN_FDS", "")
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    if process != str(os.getpid()) or not count.isdigit():
        return []
    found = []
    for number in range(int(count)):
        name = names[number] if number < len(names) else ""
        if name not in kinds:
            raise ConfigError(
                f"an inherited socket is named {name!r}: its FileDescriptorName= must be one of {', '.join(kinds)}"
            )
        found.append(Listener(*_adopt(name, _FIRST + number), ours=False))
    return found


def _adopt(kind: str, descriptor: int) -> tuple[Endpoint, list[socket.socket]]:
    try:
        os.set_inheritable(descriptor, False)
        handed = socket.socket(fileno=descriptor)
        listens = handed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ConfigError(f"{kind}: descriptor {descriptor} is no socket: {error.strerror}") from None
    if not listens or handed.type != socket.SOCK_STREAM:
        raise ConfigError(f"{kind}: the inherited socket does not listen: use ListenStream= and Accept=no")
    handed.setblocking(False)
    name = handed.getsockname()
    if handed.family == socket.AF_UNIX:
        return Endpoint(kind, "", 0, str(name)), [handed]
    return Endpoint(kind, name[0], name[1]), [handed]
