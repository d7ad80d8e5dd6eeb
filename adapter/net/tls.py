"""TLS for every listener: contexts from the settings, another certificate by server name, reload without a restart.

Invariants: TLS 1.2 or newer; certificates that cannot be loaded leave those in use as they were; what a handshake began
with is what it ends with, whatever is loaded meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import cast

from adapter.config.locations import Path
from adapter.config.schema import Tls

_Stamps = tuple[tuple[int, int, int] | None, ...]

_LOOK = 1.0  # seconds between looks whether a handshake still has a connection


class TlsError(Exception):
    """A certificate cannot be used: one clear line."""


@dataclass(frozen=True, slots=True)
class _Presented:
    """What the listeners present; ``verifying`` asks peers for a certificate of theirs."""

    usual: ssl.SSLContext | None = None
    verifying: ssl.SSLContext | None = None


class Certificates:
    """What the listeners present. One context serves all connections; a reload replaces what new ones see."""

    def __init__(self, settings: Tls) -> None:
        self._settings = settings
        self._stamps: _Stamps = ()
        self._presented = _Presented()
        self.reload()

    @property
    def context(self) -> ssl.SSLContext | None:
        """For the next handshake; None: no TLS is configured."""
        return self._presented.usual

    @property
    def verifying_context(self) -> ssl.SSLContext | None:
        """For peers that must prove who they are; None: no authority is configured that could tell."""
        return self._presented.verifying

    def apply(self, settings: Tls) -> None:
        """Present what these settings say from now on. Blocks. Raises :class:`TlsError`, and nothing has changed."""
        stamps = _stamps(settings)
        presented = _load(settings)
        self._settings, self._stamps, self._presented = settings, stamps, presented

    def reload(self) -> None:
        """Read the files again. Blocks. Raises :class:`TlsError`."""
        self.apply(self._settings)

    def reload_if_changed(self) -> bool:
        """Read the files again if they are others now; whether they are. Blocks.

        Raises :class:`TlsError` once for files that do not fit together: a renewal may write one after the other.
        """
        stamps = _stamps(self._settings)
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        self._presented = _load(self._settings)
        return True


def check_files(settings: Tls) -> Iterator[tuple[Path, str]]:
    """What is wrong with the files, by setting."""
    pairs: list[tuple[Path, str, str]] = [
        (("names", name), pair.certificate, pair.key) for name, pair in settings.names.items()
    ]
    if settings.certificate:
        pairs.insert(0, (("certificate",), settings.certificate, settings.key))
    elif settings.names or settings.client_ca:
        yield ("certificate",), "must be set: it is what clients see that ask for no name"
    for path, certificate, key in pairs:
        try:
            _context(certificate, key)
        except TlsError as error:
            yield path, str(error)
    try:
        _authorities(settings.client_ca, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    except TlsError as error:
        yield ("client_ca",), str(error)


def _load(settings: Tls) -> _Presented:
    if not settings.certificate:
        return _Presented()
    return _Presented(_contexts(settings, ""), _contexts(settings, settings.client_ca) if settings.client_ca else None)


def _contexts(settings: Tls, client_ca: str) -> ssl.SSLContext:
    """The context for those who ask for no name, which leads to the others."""
    default = _context(settings.certificate, settings.key, client_ca)
    by_name = {
        name.lower().rstrip("."): _context(pair.certificate, pair.key, client_ca)
        for name, pair in settings.names.items()
    }
    if by_name:
        default.sni_callback = partial(_choose, by_name)
    return default


def _choose(
    by_name: dict[str, ssl.SSLContext], connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext
) -> None:
    """RFC 6066 section 3; an exact name, or the one a wildcard stands for."""
    wanted = (name or "").lower().rstrip(".")
    chosen = by_name.get(wanted) or by_name.get("*." + wanted.partition(".")[2])
    if chosen is not None:
        connection.context = chosen


def _context(certificate: str, key: str, client_ca: str = "") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Never a prompt on the terminal for a key that has a passphrase.
        context.load_cert_chain(certificate, key or None, password="")
    except FileNotFoundError as error:
        raise TlsError(f"{error.filename or _missing(certificate, key)}: no such file") from None
    except (OSError, ssl.SSLError) as error:
        raise TlsError(f"{certificate}: not a certificate with its key ({error.strerror or error})") from None
    _authorities(client_ca, context)
    return context


def _missing(certificate: str, key: str) -> str:
    return key if key and os.path.exists(certificate) else certificate


def _authorities(client_ca: str, context: ssl.SSLContext) -> None:
    if not client_ca:
        return
    try:
        context.load_verify_locations(client_ca)
    except (OSError, ssl.SSLError) as error:
        raise TlsError(f"{client_ca}: not the certificates of authorities ({error.strerror or error})") from None
    context.verify_mode = ssl.CERT_REQUIRED


def _stamps(settings: Tls) -> _Stamps:
    """What tells the files from others of the same name; a renewal may also change where a link leads."""
    pairs = [(settings.certificate, settings.key), *((pair.certificate, pair.key) for pair in settings.names.values())]
    return tuple(_stamp(name) for name in (*(name for pair in pairs for name in pair), settings.client_ca) if name)


def _stamp(name: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


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
    if transport.is_closing():
        return None
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
        # Nobody tells the layer of a connection that is lost before it is in place; it would wait for ever.
        while not (await asyncio.wait([starting], timeout=_LOOK))[0]:
            if transport.is_closing():
                return None
        return starting.result()
    except (OSError, ssl.SSLError):
        transport.abort()
        return None
    finally:
        starting.cancel()


def _feed(layer: asyncio.BaseProtocol, octets: bytes) -> None:
    buffered = cast("asyncio.BufferedProtocol", layer)
    while octets:
        room = memoryview(buffered.get_buffer(len(octets)))
        count = min(len(room), len(octets))
        room[:count] = octets[:count]
        buffered.buffer_updated(count)
        octets = octets[count:]
