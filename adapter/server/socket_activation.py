"""Socket activation (sd_listen_fds(3)): listening sockets inherited from the service manager.

They give low ports without privileges, and connections that wait during a restart instead of being refused.
``FileDescriptorName=`` of the socket unit names the kind of listener. A kind with an inherited socket is not opened
from ``[listen]``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, MutableMapping

from adapter.config.loader import ConfigError
from adapter.net.endpoints import Endpoint, Listener

_FIRST_DESCRIPTOR = 3


def inherited_sockets(kinds: Collection[str], environment: MutableMapping[str, str] = os.environ) -> list[Listener]:
    """Return the listeners meant for this process, and clear their variables. Raises ConfigError."""
    process = environment.pop("LISTEN_PID", "")
    count = environment.pop("LISTEN_FDS", "")
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    if process != str(os.getpid()) or not count.isdigit():
        return []
    listeners = []
    for number in range(int(count)):
        name = names[number] if number < len(names) else ""
        if name not in kinds:
            raise ConfigError(
                f"an inherited socket is named {name!r}: its FileDescriptorName= must be one of {', '.join(kinds)}"
            )
        listeners.append(Listener(*_adopt(name, _FIRST_DESCRIPTOR + number), ours=False))
    return listeners


def _adopt(kind: str, descriptor: int) -> tuple[Endpoint, list[socket.socket]]:
    try:
        os.set_inheritable(descriptor, False)
        inherited = socket.socket(fileno=descriptor)
        is_listening = inherited.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ConfigError(f"{kind}: inherited descriptor {descriptor} is not a socket: {error.strerror}") from None
    if not is_listening or inherited.type != socket.SOCK_STREAM:
        raise ConfigError(f"{kind}: the inherited socket is not listening: use ListenStream= and Accept=no")
    inherited.setblocking(False)
    name = inherited.getsockname()
    if inherited.family == socket.AF_UNIX:
        return Endpoint(kind, "", 0, str(name)), [inherited]
    return Endpoint(kind, name[0], name[1]), [inherited]
