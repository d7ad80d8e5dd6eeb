"""The byte stream of one SMTP connection: aiosmtpd's protocol class with another way to read and write.

What aiosmtpd reads line by line arrives here in chunks as large as the network brings them. Reading stops while too
much is held, writing waits while the client does not read. Each wait for the client has a time limit; the time the
server needs for itself counts for nothing.

Invariants: at most ``_HIGH`` octets plus one read are held; a client that is gone, or closes its half, never cancels
what is being done for it: it is noticed at the next read or write. A login is the exception (:meth:`while_connected`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from aiosmtpd.smtp import SMTP

from adapter.net import networks, tls
from protocol.smtp.proxy_protocol import Proxied, ProxyReader

_HIGH = 256 << 10
_FLUSH = 16 << 10
_FOREVER = float("inf")
#: For the last word to be sent to a client that is turned away.
_CLOSE_SECONDS = 1.0

_T = TypeVar("_T")

# aiosmtpd logs every line a client sends.
logging.getLogger("mail.log").setLevel(logging.CRITICAL)


class PeerGoneError(Exception):
    """The client closed the connection, or it broke."""


class InterruptedWaitError(Exception):
    """The wait for a command was ended from our side."""


class Stream(SMTP):
    """Subclasses define :meth:`_handle_client`, which aiosmtpd runs as a task for each connection."""

    transport: asyncio.Transport | None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # Not SMTP.__init__: it looks through all members of the class for each connection, makes tables for hooks that
        # are not used, and empties a table that all connections share.
        asyncio.StreamReaderProtocol.__init__(self, None, loop=loop)  # type: ignore[arg-type]
        self.loop = loop
        self.transport = None
        self._incoming: list[bytes] = []
        self._held = 0
        self._throttled = False
        self._ended = False  # no more octets will come
        self._gone = False  # the connection is lost
        self._secured = False  # by TLS, or about to be
        self._is_secure = False  # the handshake is over
        self._is_cut_short = False  # closed without waiting for the client
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = _FOREVER
        self._timer: asyncio.TimerHandle | None = None
        self._outgoing: list[bytes] = []
        self._outgoing_size = 0
        self._room: asyncio.Future[None] | None = None  # set while the client does not read
        self._only_while_connected: asyncio.Task[Any] | None = None
        self.peer_address = networks.UNIX

    # --- called by the event loop ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer_address = networks.canonical(str(peer[0]))
            with contextlib.suppress(OSError):
                transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._handler_coroutine = self.loop.create_task(self._handle_client())

    def data_received(self, data: bytes) -> None:
        self._incoming.append(data)
        self._held += len(data)
        if self._held > _HIGH and not self._throttled and self.transport is not None:
            self._throttled = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """A half-closed connection stays open: the client may still wait for the last reply. TLS has no such thing."""
        self._ended = True
        self._wake()
        self._cancel_for_client()
        return not self._secured

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = self._gone = True
        if self._timer is not None:
            self._timer.cancel()
        self._wake()
        self._cancel_for_client()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._room = self.loop.create_future()

    def resume_writing(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- work for a client that may leave --------------------------------------------------------------------------

    async def while_connected(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do work that is cancelled when the client hangs up. Raises PeerGoneError.

        A half-closed connection counts as hung up: the kernel does not tell one from the other.
        """
        task: asyncio.Task[_T] = self.loop.create_task(work)
        self._only_while_connected = task
        if self._ended:
            self.loop.call_soon(task.cancel)  # when it has begun, so that it knows
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
        """What has come, at least one octet. Raises TimeoutError, PeerGoneError, or what :meth:`interrupt` asks for."""
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
        self._held = 0
        self._resume()
        return data

    def interrupt(self) -> bool:
        """End the wait of :meth:`receive`, if there is one."""
        if self._waiter is None or self._waiter.done():
            return False
        self._waiter.set_exception(InterruptedWaitError())
        return True

    def _resume(self) -> None:
        if self._throttled and self.transport is not None and not self.transport.is_closing():
            self._throttled = False
            self.transport.resume_reading()

    def _expire_after(self, seconds: float) -> None:
        """One timer serves all waits: it is set anew only if it would come too late."""
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

    def say(self, wire: bytes) -> None:
        """Keep a reply until :meth:`flush`: replies to pipelined commands go out together (RFC 2920 3.2)."""
        self._outgoing.append(wire)
        self._outgoing_size += len(wire)

    @property
    def crowded(self) -> bool:
        """Replies must be flushed before more are made."""
        return self._outgoing_size > _FLUSH

    async def flush(self, seconds: float) -> None:
        """Raises PeerGoneError; TimeoutError if the client does not read."""
        if self._gone or self.transport is None or self.transport.is_closing():
            raise PeerGoneError
        if self._outgoing:
            self.transport.write(self._outgoing[0] if len(self._outgoing) == 1 else b"".join(self._outgoing))
            self._outgoing.clear()
            self._outgoing_size = 0
        if self._room is not None:
            _, waiting = await asyncio.wait([self._room], timeout=seconds)
            if waiting:
                raise TimeoutError

    def end_writing(self) -> bool:
        """Tell the client that nothing more comes, and go on reading; False where that cannot be."""
        if self.transport is None or not self.transport.can_write_eof():
            return False
        try:
            self.transport.write_eof()
        except OSError:
            return False
        return True

    def hang_up(self, last: bytes = b"") -> None:
        """Send what is waiting and a last word, then close."""
        if self.transport is None or self.transport.is_closing():
            return
        if self._outgoing or last:
            self.transport.write(b"".join((*self._outgoing, last)))
            self._outgoing.clear()
        self.transport.close()

    def cut_short(self, last: bytes = b"") -> None:
        """Close now, with a last word for a client that reads it; one that does not cannot keep the socket open."""
        if self._secured and not self._is_secure:  # a client in the middle of the handshake could not read it
            self.abort()
            return
        self._is_cut_short = True
        self.hang_up(last)
        self.loop.call_later(_CLOSE_SECONDS, self.abort)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    # --- what comes before or instead of plain octets --------------------------------------------------------------

    async def read_proxy_header(self, seconds: float) -> Proxied:
        """What a proxy says first; what follows is the client's. Raises ProtocolError, TimeoutError, PeerGoneError."""
        reader = ProxyReader()
        until = self.loop.time() + seconds
        while (result := reader.feed(await self.receive(max(0.0, until - self.loop.time())))) is None:
            pass
        if reader.leftover:
            self.data_received(reader.leftover)
        return result

    async def start_tls(self, context: ssl.SSLContext, seconds: float, *, from_start: bool) -> None:
        """The handshake. What came before STARTTLS is forgotten (RFC 3207 4.2); with TLS from the start it belongs to
        the handshake. Raises PeerGoneError."""
        if self.transport is None:
            raise PeerGoneError
        received = b"".join(self._incoming) if from_start else b""
        self._incoming.clear()
        self._held = 0
        self._throttled = False
        self._secured = True
        plain = self.transport
        encrypted = await tls.start(plain, self, context, seconds, received)
        if encrypted is None:
            raise PeerGoneError
        self.transport = encrypted
        self._is_secure = True
        if self._throttled:  # so much came with the end of the handshake: it stopped the transport known then
            plain.resume_reading()
            encrypted.pause_reading()
