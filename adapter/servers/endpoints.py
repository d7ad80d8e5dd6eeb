"""Where a listener listens: ``host:port``, ``[v6]:port``, or the path of a unix socket. Port 0 is any free one."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass

from adapter.config import ConfigError
from adapter.servers.listeners import NewConnection


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
        raise ConfigError(f"{kind}: {text!r} is neither host:port nor the path of a unix socket")
    return Endpoint(kind, host, int(port))


async def listen(
    endpoint: Endpoint, connection: NewConnection, backlog: int, socket_mode: int
) -> tuple[asyncio.Server, Endpoint]:
    """Start accepting; the endpoint as it really is. Raises ConfigError."""
    loop = asyncio.get_running_loop()
    try:
        if endpoint.path:
            # The mode must be right from the first moment: nobody may connect in between.
            mask = os.umask(0o777 & ~socket_mode)
            try:
                return await loop.create_unix_server(connection, endpoint.path, backlog=backlog), endpoint
            finally:
                os.umask(mask)
        server = await loop.create_server(connection, endpoint.host, endpoint.port, backlog=backlog)
    except (OSError, socket.gaierror) as error:
        raise ConfigError(f"{endpoint.kind}: cannot listen on {endpoint}: {error.strerror or error}") from None
    port = server.sockets[0].getsockname()[1]
    return server, Endpoint(endpoint.kind, endpoint.host, port)
