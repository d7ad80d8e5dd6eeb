"""The byte stream of one SMTP connection: aiosmtpd's protocol class with its own reading and writing.

aiosmtpd reads line by line; this class receives chunks as large as the network delivers. Reading pauses while too much
is held, writing waits while the client does not read. Each wait for the client has a time limit; the server's own time
does not count.

Invariants: at most ``_MAX_HELD_BYTES`` plus one read are held; a client that disconnects, or closes its half, never
cancels work in progress: the next read or write notices it. A login is the exception (:meth:`while_connected`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Coroutine
from socket import IPPROTO_TCP, TCP_NODELAY
from typing import Any, TypeVar, cast

from aiosmtpd.smtp import SMTP

from adapter.net import networks, tls
from protocol.smtp.lines import LineBuffer
from protocol.smtp.proxy_protocol import Proxied, ProxyReader

_MAX_HELD_BYTES = 256 << 10
_FLUSH_BYTES = 16 << 10
_FOREVER = float("inf")
#: Time for the last reply to reach a client that is refused.
_CLOSE_SECONDS = 1.0

_T = TypeVar("_T")

# aiosmtpd logs every line a client sends.
logging.getLogger("mail.log").setLevel(logging.CRITICAL)


class PeerGoneError(Exception):
    """The client closed the connection, or it broke."""


class InterruptedWaitError(Exception):
    """The server ended the wait for a command."""


class Stream(SMTP):
    """Subclasses define :meth:`_handle_client`, which aiosmtpd runs as a task for each connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # Not SMTP.__init__: for each connection it scans all members of the class, builds tables for unused hooks, and
        # clears a table that all connections share.
        asyncio.StreamReaderProtocol.__init__(self, None, loop=loop)  # type: ignore[arg-type]
        self.loop = loop
        self._socket: asyncio.Transport | None = None
        self.lines = LineBuffer()  # received, but not used yet
        self._incoming: list[bytes] = []
        self._held_bytes = 0
        self._throttled = False
        self._ended = False  # no more octets will arrive
        self._gone = False  # the connection is lost
        self._tls_started = False  # TLS is active or its handshake has begun
        self._tls_active = False  # the handshake is over
        self._is_closing_soon = False  # closed without waiting for the client
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = _FOREVER
        self._timer: asyncio.TimerHandle | None = None
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._writable: asyncio.Future[None] | None = None  # set while the client does not read
        self._only_while_connected: asyncio.Task[Any] | None = None
        self.peer_address = networks.UNIX

    # --- called by the event loop ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer_address = networks.canonical(str(peer[0]))
            with contextlib.suppress(OSError):
                transport.get_extra_info("socket").setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        self._handler_coroutine = self.loop.create_task(self._handle_client())

    def data_received(self, data: bytes) -> None:
        self._incoming.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > _MAX_HELD_BYTES and not self._throttled and self._socket is not None:
            self._throttled = True
            self._socket.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """Keep a half-closed connection open: the client may still wait for a reply. TLS cannot be half-closed."""
        self._ended = True
        self._wake()
        self._cancel_for_client()
        return not self._tls_started

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = self._gone = True
        if self._timer is not None:
            self._timer.cancel()
        self._wake()
        self._cancel_for_client()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._writable = self.loop.create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- work for a client that may disconnect ---------------------------------------------------------------------

    async def while_connected(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run work that is cancelled when the client disconnects. Raises PeerGoneError.

        A half-closed connection counts as disconnected: the kernel does not distinguish them.
        """
        task: asyncio.Task[_T] = self.loop.create_task(work)
        self._only_while_connected = task
        if self._ended:
            self.loop.call_soon(task.cancel)  # after its first step, so that its cleanup runs
        try:
            return await task
        except asyncio.CancelledError:
            if self._ended and task.cancelled():
                raise PeerGoneError from None
            raise
        finally:
            self._only_while_connected = None

    def _cancel_for_client(self) -> None:
        if self._only_while_connected is not None:
            self._only_while_connected.cancel()

    # --- reading ---------------------------------------------------------------------------------------------------

    async def receive(self, seconds: float) -> bytes:
        """The octets that have arrived, at least one. Raises TimeoutError, PeerGoneError or InterruptedWaitError."""
        if not self._incoming:
            if self._ended:
                raise PeerGoneError
            self._resume()
            self._waiter = self.loop.create_future()
            self._expire_after(seconds)
            try:
                await self._waiter
            finally:
                self._waiter = None
                self._deadline = _FOREVER
            if not self._incoming:
                raise PeerGoneError
        data = self._incoming[0] if len(self._incoming) == 1 else b"".join(self._incoming)
        self._incoming.clear()
        self._held_bytes = 0
        self._resume()
        return data

    def interrupt(self) -> bool:
        """End the wait in :meth:`receive`; False if there is none."""
        if self._waiter is None or self._waiter.done():
            return False
        self._waiter.set_exception(InterruptedWaitError())
        return True

    def _resume(self) -> None:
        if self._throttled and self._socket is not None and not self._socket.is_closing():
            self._throttled = False
            self._socket.resume_reading()

    def _expire_after(self, seconds: float) -> None:
        """Set the deadline. One timer serves all waits: it is replaced only if it would fire too late."""
        self._deadline = self.loop.time() + seconds
        if self._timer is None or self._timer.cancelled() or self._timer.when() > self._deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(self._deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self.loop.time() + 0.001 >= self._deadline:
            self._waiter.set_exception(TimeoutError())
        else:
            self._timer = self.loop.call_at(self._deadline, self._expire)

    # --- writing ---------------------------------------------------------------------------------------------------

    def queue_reply(self, wire: bytes) -> None:
        """Queue a reply until :meth:`flush`: replies to pipelined commands are sent together (RFC 2920 3.2)."""
        self._outgoing.append(wire)
        self._outgoing_bytes += len(wire)

    @property
    def must_flush(self) -> bool:
        """Enough replies are queued to be sent before the next command."""
        return self._outgoing_bytes > _FLUSH_BYTES

    async def flush(self, seconds: float) -> None:
        """Send the queued replies. Raises PeerGoneError; TimeoutError if the client does not read."""
        if self._gone or self._socket is None or self._socket.is_closing():
            raise PeerGoneError
        if self._outgoing:
            self._socket.write(self._outgoing[0] if len(self._outgoing) == 1 else b"".join(self._outgoing))
            self._outgoing.clear()
            self._outgoing_bytes = 0
        if self._writable is not None:
            _, pending = await asyncio.wait([self._writable], timeout=seconds)
            if pending:
                raise TimeoutError

    def end_writing(self) -> bool:
        """Half-close the connection and go on reading; False if that is impossible (TLS)."""
        if self._socket is None or not self._socket.can_write_eof():
            return False
        try:
            self._socket.write_eof()
        except OSError:
            return False
        return True

    def close(self, last: bytes = b"") -> None:
        """Send the queued replies and ``last``, then close."""
        if self._socket is None or self._socket.is_closing():
            return
        if self._outgoing or last:
            self._socket.write(b"".join((*self._outgoing, last)))
            self._outgoing.clear()
        self._socket.close()

    def close_soon(self, last: bytes = b"") -> None:
        """Send ``last`` and close, within a second: a client that does not read cannot keep the socket open."""
        if self._tls_started and not self._tls_active:  # in the middle of the handshake the client could not read it
            self.abort()
            return
        self._is_closing_soon = True
        self.close(last)
        self.loop.call_later(_CLOSE_SECONDS, self.abort)

    def abort(self) -> None:
        if self._socket is not None:
            self._socket.abort()

    # --- PROXY protocol and TLS ------------------------------------------------------------------------------------

    async def read_proxy_header(self, seconds: float) -> Proxied:
        """Read the PROXY header; the rest is the client's. Raises ProtocolError, TimeoutError, PeerGoneError."""
        reader = ProxyReader()
        until = self.loop.time() + seconds
        while (result := reader.feed(await self.receive(max(0.0, until - self.loop.time())))) is None:
            pass
        if reader.leftover:
            self.data_received(reader.leftover)
        return result

    async def start_tls(self, context: ssl.SSLContext, seconds: float, *, from_start: bool) -> None:
        """Run the TLS handshake. Raises PeerGoneError.

        Octets received before STARTTLS are dropped (RFC 3207 4.2); with implicit TLS they belong to the handshake.
        """
        if self._socket is None:
            raise PeerGoneError
        received = b"".join(self._incoming) if from_start else b""
        self._incoming.clear()
        self._held_bytes = 0
        self._throttled = False
        self._tls_started = True
        plain = self._socket
        encrypted = await tls.start(plain, self, context, seconds, received)
        if encrypted is None:
            raise PeerGoneError
        self._socket = encrypted
        self._tls_active = True
        if self._throttled:  # data that arrived with the end of the handshake paused the plain socket
            plain.resume_reading()
            encrypted.pause_reading()

    @property
    def cipher(self) -> str:
        """The TLS version and cipher in use, for people."""
        name, version, _ = self._socket.get_extra_info("cipher") if self._socket else ("", "", 0)
        return f"{version} {name}"
