"""One IMAP connection: octets in, octets out (RFC 3501 2.1), with a task only while a command is waiting.

Invariants:

* commands are carried out one after another, in the order received; while one runs, a bounded amount of the following
  input is read;
* output is collected and written in few large pieces; a command that produces more than the peer accepts waits, and a
  long one yields to other connections;
* input received before STARTTLS is discarded (RFC 3501 6.2.1).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from adapter.imap.compression import Deflater, Inflater
from adapter.net import tls
from protocol.errors import ProtocolError
from protocol.imap.responses import codes, status
from protocol.imap.wire.events import NEED_DATA, CommandLimits, Event, Line
from protocol.imap.wire.framer import Framer

if TYPE_CHECKING:
    import ssl

_log = logging.getLogger(__name__)

#: Output is collected up to this size before it is written.
_FLUSH_BYTES: Final = 64 << 10
#: A command waits while the socket has more than this unsent.
_MAX_UNSENT_BYTES: Final = 256 << 10
#: How long the peer's kernel may leave sent data unacknowledged.
_TCP_USER_TIMEOUT_MS: Final = 300_000
#: While a command runs, reading stops once this much input is waiting.
_READ_AHEAD_BYTES: Final = 128 << 10
#: How long a command may work before it yields to other connections.
_TIME_SLICE_SECONDS: Final = 0.005


class _Started:
    """A coroutine that was started outside of a task and is waiting; awaiting this object resumes it."""

    def __init__(self, work: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        while True:
            try:
                result = yield self._waits_for
            except BaseException as error:
                step = partial(self._work.throw, error)
            else:
                step = partial(self._work.send, result)
            try:
                self._waits_for = step()
            except StopIteration:
                return


async def _resume(started: _Started) -> None:
    await started


class Host(Protocol):
    """The server, which admits connections."""

    def connected(self, connection: Connection, stream: asyncio.BaseTransport) -> None: ...


class SessionEvents(Protocol):
    """The session, which handles the events of a connection."""

    async def handle(self, event: Event) -> None: ...

    def connection_closed(self) -> None: ...

    def writable(self) -> None:
        """The peer accepts output again."""

    def input_handled(self) -> None:
        """All input is handled, and the connection is no longer busy."""

    def report_error(self, error: BaseException) -> None:
        """Log an unexpected error."""


class Connection(asyncio.Protocol):
    __slots__ = (
        "_deflater",
        "_framer",
        "_host",
        "_in_handshake",
        "_inflater",
        "_input_arrived",
        "_loop",
        "_out",
        "_out_size",
        "_reading",
        "_slice_ends",
        "_socket",
        "_task",
        "_writes_resumed",
        "implicit_tls",
        "is_closing",
        "opened_at",
        "received_at",
        "sent_at",
        "session",
        "write_blocked_since",
    )

    def __init__(
        self, limits: CommandLimits, loop: asyncio.AbstractEventLoop, host: Host, *, implicit_tls: bool = False
    ) -> None:
        self.session: SessionEvents | None = None
        self.implicit_tls = implicit_tls
        self.is_closing = False
        self.opened_at = self.received_at = self.sent_at = loop.time()
        self.write_blocked_since: float | None = None  # the peer does not accept output
        self._loop = loop
        self._host = host
        self._in_handshake = implicit_tls
        self._socket: asyncio.Transport | None = None
        self._framer = Framer(limits)
        self._out: list[bytes] = []
        self._out_size = 0
        self._task: asyncio.Task[None] | None = None
        self._input_arrived: asyncio.Future[None] | None = None
        self._writes_resumed: asyncio.Future[None] | None = None
        self._reading = True
        self._slice_ends = 0.0
        self._inflater: Inflater | None = None
        self._deflater: Deflater | None = None

    # --- called by the event loop ----------------------------------------------------------------------------------

    def connection_made(self, stream: asyncio.BaseTransport) -> None:
        self._socket = cast("asyncio.Transport", stream)
        self._socket.set_write_buffer_limits(high=_MAX_UNSENT_BYTES)
        raw = stream.get_extra_info("socket")
        if raw is not None and raw.family != socket.AF_UNIX:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Detects a peer that disappeared without closing the connection: it does not acknowledge sent data.
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _TCP_USER_TIMEOUT_MS)
        self._host.connected(self, stream)

    def data_received(self, data: bytes) -> None:
        self.received_at = self._loop.time()
        if self._inflater is None:
            self._framer.feed(data)
        else:
            self._inflater.feed(data)
        if self._input_arrived is not None:
            self._wake()
        elif self._task is None:
            self._start_handling()
        elif self._reading and self.unhandled_octets > _READ_AHEAD_BYTES and self._socket is not None:
            self._reading = False
            self._socket.pause_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closing = True
        self._socket = None
        self._out.clear()
        if self._task is not None:
            self._task.cancel()
        if self.session is not None:
            self.session.connection_closed()

    def pause_writing(self) -> None:
        self._writes_resumed = self._loop.create_future()
        self.write_blocked_since = self._loop.time()

    def resume_writing(self) -> None:
        resumed, self._writes_resumed = self._writes_resumed, None
        self.write_blocked_since = None
        if resumed is not None and not resumed.done():
            resumed.set_result(None)
        if self.session is not None:
            self.session.writable()

    # --- receiving -------------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """A command is being carried out."""
        return self._task is not None

    @property
    def unhandled_octets(self) -> int:
        """Octets that were received and not consumed."""
        return self._framer.buffered + (self._inflater.waiting if self._inflater is not None else 0)

    def set_limits(self, limits: CommandLimits) -> None:
        """Set the limits of the following commands."""
        self._framer.limits = limits

    def accept_literal(self) -> None:
        """Accept the announced literal."""
        self._framer.accept()

    def refuse_literal(self, status: str, text: str, code: str | None = None) -> None:
        """Refuse the command at its announced literal; a Refused event follows."""
        self._framer.refuse(status, text, code)

    def expect_line(self) -> None:
        """Read the next line as a Line, not as a command."""
        self._framer.expect_line()

    def _inflate(self) -> bool:
        """Feed the framer with another piece of the compressed input; False if there is none."""
        if self._inflater is None:
            return False
        try:
            piece = self._inflater.read()
        except ValueError as error:
            raise ProtocolError("Compressed data is damaged") from error
        if piece:
            self._framer.feed(piece)
        return bool(piece)

    def run_before_session(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine, such as the TLS handshake, before any input is handled."""
        self._task = self._loop.create_task(self._run_then_handle(work))

    async def _run_then_handle(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            return
        except Exception as error:
            if self.session is not None:
                self.session.report_error(error)
            self.abort()
        finally:
            self._task = None
        self.flush()
        if not self.is_closing:
            self._start_handling()

    def _start_handling(self) -> None:
        """Handle the input, in a task only if a command has to wait."""
        try:
            event = self._framer.next_event()
        except ProtocolError as error:
            self.bye(str(error))
            return
        if event is NEED_DATA and self._inflater is None:
            return
        work = self._handle_events(event)
        try:
            waits_for = work.send(None)
        except StopIteration:
            return
        self._task = self._loop.create_task(_resume(_Started(work, waits_for)))

    async def _handle_events(self, event: Event) -> None:
        """Handle events until more input is needed."""
        session = self.session
        assert session is not None  # noqa: S101 - set before the first octet can arrive
        self._slice_ends = self._loop.time() + _TIME_SLICE_SECONDS
        try:
            while not self.is_closing:
                if event is not NEED_DATA:
                    await session.handle(event)
                elif not self._inflate():
                    break
                self._resume_reading()
                event = self._framer.next_event()
                if event is NEED_DATA and self._inflater is None:
                    break
                if (
                    self._out_size >= _FLUSH_BYTES
                    or self._writes_resumed is not None
                    or self._loop.time() > self._slice_ends
                ):
                    await self.drain()
        except asyncio.CancelledError:
            return
        except ProtocolError as error:
            self.bye(str(error))
        except Exception as error:
            session.report_error(error)
            self.bye("Internal error", codes.SERVERBUG)
        finally:
            self._task = None
            self.flush()
            if self._inflater is not None and not self.is_closing:
                session.input_handled()

    def _resume_reading(self) -> None:
        if not self._reading and self.unhandled_octets <= _READ_AHEAD_BYTES and self._socket is not None:
            self._reading = True
            self._socket.resume_reading()

    def _wake(self) -> None:
        arrived, self._input_arrived = self._input_arrived, None
        if arrived is not None and not arrived.done():
            arrived.set_result(None)

    async def next_line(self) -> Line | None:
        """Read a line that belongs to the command under way (RFC 3501 6.2.2); None if it was too long."""
        self._framer.expect_line()
        self.flush()
        while True:
            event = self._framer.next_event()
            if event is not NEED_DATA:
                return event if isinstance(event, Line) else None
            if self._inflate():
                continue
            self._resume_reading()
            self._input_arrived = self._loop.create_future()
            await self._input_arrived

    # --- sending ---------------------------------------------------------------------------------------------------

    @property
    def unsent_octets(self) -> int:
        """Output that the peer has not accepted."""
        return self._out_size + (self._socket.get_write_buffer_size() if self._socket is not None else 0)

    def send(self, data: bytes) -> None:
        """Queue output; it is written once there is enough of it, or when all input is handled."""
        self._out.append(data)
        self._out_size += len(data)

    def flush(self) -> None:
        """Write the queued output."""
        if not self._out:
            return
        out, self._out = self._out, []
        self._out_size = 0
        if self._socket is None or self._socket.is_closing():
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        if self._deflater is not None:
            data = self._deflater.write(data)
        self.sent_at = self._loop.time()
        self._socket.write(data)

    async def drain(self) -> None:
        """Write enough output, wait for a slow peer, yield to other connections: called repeatedly by long commands."""
        if self._out_size >= _FLUSH_BYTES:
            self.flush()
        if self._writes_resumed is not None:
            await asyncio.shield(self._writes_resumed)
            self._slice_ends = self._loop.time() + _TIME_SLICE_SECONDS
        elif self._loop.time() > self._slice_ends:
            self.flush()
            await asyncio.sleep(0)
            self._slice_ends = self._loop.time() + _TIME_SLICE_SECONDS

    # --- TLS and compression ---------------------------------------------------------------------------------------

    # RFC 3501 6.2.1
    async def start_tls(self, context: ssl.SSLContext, seconds: float) -> bool:
        """Complete a TLS handshake; False if it failed, and the connection is closed."""
        self.flush()
        received = self._framer.take_buffered()
        assert self._socket is not None  # noqa: S101 - a command is running
        plain, self._reading = self._socket, True
        self._in_handshake = True
        secured = await tls.start(plain, self, context, seconds, received if self.implicit_tls else b"")
        self._in_handshake = False
        if secured is None:
            if self._socket is not None:
                self.connection_lost(None)  # asyncio does not call it after a failed handshake
            return False
        self._socket = secured
        if not self._reading:  # so much data followed the handshake that reading was paused, on the plain socket
            plain.resume_reading()
            secured.pause_reading()
        return True

    # RFC 4978 3
    def start_compression(self) -> None:
        """Compress both directions from here on; input that is already buffered is compressed, too."""
        self.flush()
        self._deflater, self._inflater = Deflater(), Inflater()
        self._inflater.feed(self._framer.take_buffered())

    # RFC 8437 4.1
    def end_compression(self) -> None:
        """End the compression of both directions."""
        self.flush()
        if self._inflater is not None:
            rest = self._inflater.rest()
            self._deflater = self._inflater = None
            if rest:
                self._framer.feed(rest)

    @property
    def is_compressed(self) -> bool:
        return self._deflater is not None

    # --- closing ---------------------------------------------------------------------------------------------------

    # RFC 3501 7.1.5
    def bye(self, text: str, code: bytes = b"") -> None:
        """Send BYE with a reason, and close."""
        if not self.is_closing:
            self.send(status.bye(text, code))
            self.close()

    def evict(self) -> None:
        """Close in favour of another connection: the server has too many."""
        if self._in_handshake:  # the client could not read the reason
            self.abort()
        else:
            self.bye("Too many connections, try again later", codes.UNAVAILABLE)

    def close(self) -> None:
        """Send the queued output, then close."""
        self.is_closing = True
        self.flush()
        if self._socket is not None:
            self._socket.close()

    def abort(self) -> None:
        """Close at once and drop the queued output."""
        self.is_closing = True
        self._out.clear()
        if self._socket is not None:
            self._socket.abort()
