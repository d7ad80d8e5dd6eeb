"""TLS for every listener: contexts from certificate files, certificates by server name, reload without a restart.

Invariants: TLS 1.2 or newer; if new certificates cannot be loaded, the current ones stay in use; a handshake ends with
the certificates it began with, even if a reload happens in between.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

_FileStamps = tuple[tuple[int, int, int] | None, ...]
_SettingPath = tuple[str, ...]

_CONNECTION_CHECK_SECONDS = 1.0  # interval of the check that a handshake still has its connection
_SHUTDOWN_SECONDS = 5.0


class TlsError(Exception):
    """A certificate cannot be used: one clear line."""


class CertificatePair(Protocol):
    """A PEM file with a certificate and its chain, and one with the key (empty: the same file)."""

    @property
    def certificate(self) -> str: ...
    @property
    def key(self) -> str: ...


class TlsFiles(CertificatePair, Protocol):
    """The default certificate and those of other server names. The configuration's section [tls] is one."""

    @property
    def names(self) -> Mapping[str, CertificatePair]: ...
    @property
    def client_ca(self) -> str: ...


@dataclass(frozen=True, slots=True)
class _Contexts:
    """The contexts of one set of files; ``verifying`` demands a client certificate."""

    default: ssl.SSLContext | None = None
    verifying: ssl.SSLContext | None = None


class Certificates:
    """The certificates of all listeners. One context serves all connections; a reload replaces it for new ones."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamps: _FileStamps = ()
        self._contexts = _Contexts()
        self.reload()

    @property
    def context(self) -> ssl.SSLContext | None:
        """The context for the next handshake; None: TLS is not configured."""
        return self._contexts.default

    @property
    def verifying_context(self) -> ssl.SSLContext | None:
        """The context for peers that must present a certificate; None: ``client_ca`` is not configured."""
        return self._contexts.verifying

    def apply(self, files: TlsFiles) -> None:
        """Present these certificates from now on. Blocking. On :class:`TlsError` nothing has changed."""
        stamps = _stamps(files)
        contexts = _load(files)
        self._files, self._stamps, self._contexts = files, stamps, contexts

    def reload(self) -> None:
        """Reload the files. Blocking. Raises :class:`TlsError`."""
        self.apply(self._files)

    def reload_if_changed(self) -> bool:
        """Reload the files if they have changed, and return whether they have. Blocking.

        Raises :class:`TlsError` once for files that do not match: a renewal may write one after the other.
        """
        stamps = _stamps(self._files)
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        self._contexts = _load(self._files)
        return True


def check_files(files: TlsFiles) -> Iterator[tuple[_SettingPath, str]]:
    """Yield the problems of the files, each with the path of its setting."""
    pairs: list[tuple[_SettingPath, str, str]] = [
        (("names", name), pair.certificate, pair.key) for name, pair in files.names.items()
    ]
    if files.certificate:
        pairs.insert(0, (("certificate",), files.certificate, files.key))
    elif files.names or files.client_ca:
        yield ("certificate",), "must be set: clients that send no server name (SNI) get this certificate"
    for path, certificate, key in pairs:
        try:
            _context(certificate, key)
        except TlsError as error:
            yield path, str(error)
    try:
        _trust(files.client_ca, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    except TlsError as error:
        yield ("client_ca",), str(error)


def _load(files: TlsFiles) -> _Contexts:
    if not files.certificate:
        return _Contexts()
    return _Contexts(_with_names(files, ""), _with_names(files, files.client_ca) if files.client_ca else None)


def _with_names(files: TlsFiles, client_ca: str) -> ssl.SSLContext:
    """Build the default context, which switches to another one by server name."""
    default = _context(files.certificate, files.key, client_ca)
    by_name = {
        name.lower().rstrip("."): _context(pair.certificate, pair.key, client_ca) for name, pair in files.names.items()
    }
    if by_name:
        default.sni_callback = partial(_select_context, by_name)
    return default


def _select_context(
    by_name: dict[str, ssl.SSLContext], connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext
) -> None:
    """Select a context by server name (RFC 6066 section 3): an exact match, else a wildcard."""
    server_name = (name or "").lower().rstrip(".")
    match = by_name.get(server_name) or by_name.get("*." + server_name.partition(".")[2])
    if match is not None:
        connection.context = match


def _context(certificate: str, key: str, client_ca: str = "") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # With an empty password OpenSSL does not prompt on the terminal for a key that has a passphrase.
        context.load_cert_chain(certificate, key or None, password="")
    except FileNotFoundError as error:
        raise TlsError(f"{error.filename or _missing_file(certificate, key)}: no such file") from None
    except (OSError, ssl.SSLError) as error:
        raise TlsError(f"{certificate}: not a certificate with its key ({error.strerror or error})") from None
    _trust(client_ca, context)
    return context


def _missing_file(certificate: str, key: str) -> str:
    return key if key and os.path.exists(certificate) else certificate


def _trust(client_ca: str, context: ssl.SSLContext) -> None:
    """Demand client certificates of these authorities."""
    if not client_ca:
        return
    try:
        context.load_verify_locations(client_ca)
    except (OSError, ssl.SSLError) as error:
        raise TlsError(f"{client_ca}: not a file of CA certificates ({error.strerror or error})") from None
    context.verify_mode = ssl.CERT_REQUIRED


def _stamps(files: TlsFiles) -> _FileStamps:
    """Stamp every file, to notice a replacement; a renewal may also change the target of a symlink."""
    pairs = [(files.certificate, files.key), *((pair.certificate, pair.key) for pair in files.names.values())]
    return tuple(_stamp(name) for name in (*(name for pair in pairs for name in pair), files.client_ca) if name)


def _stamp(name: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(name)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


async def start(
    transport: asyncio.Transport,
    protocol: asyncio.BaseProtocol,
    context: ssl.SSLContext,
    seconds: float,
    received: bytes = b"",
) -> asyncio.Transport | None:
    """Perform the server's handshake on an open connection; None: it failed, and the connection is closed.

    ``received`` are octets of the handshake that arrived before this call: with implicit TLS an event loop may read
    them as soon as the connection is made, even if the protocol has paused reading (uvloop does).
    """
    if transport.is_closing():
        return None
    loop = asyncio.get_running_loop()
    transport.pause_reading()  # until the TLS layer is in place: the next octets are for it
    handshake = asyncio.ensure_future(
        loop.start_tls(
            transport,
            protocol,
            context,
            server_side=True,
            ssl_handshake_timeout=seconds,
            ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
        )
    )
    if received:
        # One iteration of the loop for start_tls to begin, one for its layer to be connected.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        _feed(transport.get_protocol(), received)
    try:
        # The layer is not notified of a connection lost before it is in place, and would wait without end.
        while not (await asyncio.wait([handshake], timeout=_CONNECTION_CHECK_SECONDS))[0]:
            if transport.is_closing():
                return None
        return handshake.result()
    except (OSError, ssl.SSLError):
        transport.abort()
        return None
    finally:
        handshake.cancel()


def _feed(layer: asyncio.BaseProtocol, octets: bytes) -> None:
    buffered = cast("asyncio.BufferedProtocol", layer)
    while octets:
        room = memoryview(buffered.get_buffer(len(octets)))
        count = min(len(room), len(octets))
        room[:count] = octets[:count]
        buffered.buffer_updated(count)
        octets = octets[count:]
