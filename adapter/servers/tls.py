"""TLS for every listener: contexts from the settings, another certificate by server name, reload without a restart.

Invariants: TLS 1.2 or newer; certificates that cannot be loaded leave those in use as they were.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import cast

from adapter.settings import Tls


class TlsError(Exception):
    """A certificate cannot be used: one clear line."""


class Certificates:
    """What the listeners present. One context serves all connections; a reload replaces what new ones see."""

    def __init__(self, settings: Tls) -> None:
        self._settings = settings
        self._default: ssl.SSLContext | None = None
        self._by_name: dict[str, ssl.SSLContext] = {}
        self.reload()

    @property
    def context(self) -> ssl.SSLContext | None:
        """For the next handshake; None: no TLS is configured."""
        return self._default

    def reload(self) -> None:
        """Read the files again. Raises :class:`TlsError`."""
        if not self._settings.certificate:
            return
        default = _context(self._settings.certificate, self._settings.key)
        by_name = {
            name.lower().rstrip("."): _context(pair.certificate, pair.key)
            for name, pair in self._settings.names.items()
        }
        if by_name:
            default.sni_callback = self._choose
        self._default, self._by_name = default, by_name

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """RFC 6066 section 3; an exact name, or the one a wildcard stands for."""
        wanted = (name or "").lower().rstrip(".")
        chosen = self._by_name.get(wanted) or self._by_name.get("*." + wanted.partition(".")[2])
        if chosen is not None:
            connection.context = chosen


def _context(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Never a prompt on the terminal for a key that has a passphrase.
        context.load_cert_chain(certificate, key or None, password="")
    except FileNotFoundError as error:
        raise TlsError(f"{error.filename or key or certificate}: no such file") from None
    except (OSError, ssl.SSLError) as error:
        raise TlsError(f"{certificate}: not a certificate with its key ({error.strerror or error})") from None
    return context


async def start(
    transport: asyncio.Transport,
    protocol: asyncio.BaseProtocol,
    context: ssl.SSLContext,
    seconds: float,
    received: bytes = b"",
) -> asyncio.Transport | None:
    """The handshake on an open connection, as server; None if it failed, and the connection is closed.

    ``received`` are octets of the handshake that came before this was called: with TLS from the start, an event loop
    may read them as soon as the connection is made, whatever the protocol says (uvloop does).
    """
    loop = asyncio.get_running_loop()
    transport.pause_reading()  # until the layer is in place: what comes now is for it
    starting = asyncio.ensure_future(
        loop.start_tls(
            transport, protocol, context, server_side=True, ssl_handshake_timeout=seconds, ssl_shutdown_timeout=5.0
        )
    )
    if received:
        # Once round the loop for start_tls to begin, once for its layer to be told of the connection.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        _feed(transport.get_protocol(), received)
    try:
        return await starting
    except (OSError, ssl.SSLError):
        transport.abort()
        return None


def _feed(layer: asyncio.BaseProtocol, octets: bytes) -> None:
    buffered = cast("asyncio.BufferedProtocol", layer)
    while octets:
        room = memoryview(buffered.get_buffer(len(octets)))
        count = min(len(room), len(octets))
        room[:count] = octets[:count]
        buffered.buffer_updated(count)
        octets = octets[count:]
