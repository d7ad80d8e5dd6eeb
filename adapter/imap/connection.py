"""One IMAP connection: octets in, octets out (RFC 3501 2.1), with a task only while there is something to do.

Invariants:

* commands are carried out one after another, in the order they came; while one runs, a bounded amount of what follows
  is read;
* what is to be sent is collected and written in few large pieces; a command that produces more than the peer takes
  waits, and one that works for long lets others have their turn;
* nothing that was received before STARTTLS is seen after it (RFC 3501 6.2.1).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from adapter.imap.compression import Deflater, Inflater
from adapter.net import tls
from protocol.errors import ProtocolError
from protocol.imap.responses import codes, status
from protocol.imap.wire.events import NEED_DATA, Event, Limits, Line
from protocol.imap.wire.framer import Framer

if TYPE_CHECKING:
    import ssl

_log = logging.getLogger(__name__)

#: Collected before it is written.
_WRITE_SIZE = 64 << 10
#: Octets the peer has not taken, from where on a command waits.
_WRITE_BUFFER = 256 << 10
#: Milliseconds a peer may take to confirm what was sent.
_UNCONFIRMED = 300_000
#: Not yet consumed, from where on nothing more is read while a command runs.
_READ_AHEAD = 128 << 10
#: Seconds of work after which others have their turn.
_TURN = 0.005


class _Begun:
    """A coroutine that was begun outside of a task and waits for something; a task can go on with it."""

    def __init__(self, work: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        while True:
            try:
                answer = yield self._waits_for
            except BaseException as error:
                step = partial(self._work.throw, error)
            else:
                step = partial(self._work.send, answer)
            try:
                self._waits_for = step()
            except StopIteration:
                return


async def _go_on_with(begun: _Begun) -> None:
    await begun


class Host(Protocol):
    """Who takes in connections: the server."""

    def connected(self, connection: Connection, transport: asyncio.BaseTransport) -> None: ...


class Conversation(Protocol):
    """Who makes sense of the events: the session."""

    async def handle(self, event: Event) -> None: ...

    def ended(self) -> None:
        """The connection is gone."""

    def writable(self) -> None:
        """The peer takes what is sent again."""

    def rested(self) -> None:
        """Everything that came in is dealt with, after others had their turn."""

    def broken(self, error: BaseException) -> None:
        """Something failed that nobody foresaw."""


class Connection(asyncio.Protocol):
    __slots__ = (
        "_deflater",
        "_framer",
        "_host",
        "_in_handshake",
        "_inflater",
        "_loop",
        "_out",
        "_out_size",
        "_reading",
        "_room",
        "_task",
        "_transport",
        "_turn_ends",
        "_waiting",
        "closing",
        "conversation",
        "heard_at",
        "implicit_tls",
        "opened_at",
        "said_at",
        "stuck_since",
    )

    def __init__(
        self, limits: Limits, loop: asyncio.AbstractEventLoop, host: Host, *, implicit_tls: bool = False
    ) -> None:
        self.conversation: Conversation | None = None
        self.implicit_tls = implicit_tls
        self.closing = False
        self.opened_at = self.heard_at = self.said_at = loop.time()
        self.stuck_since: float | None = None  # the peer does not take what is sent
        self._loop = loop
        self._host = host
        self._in_handshake = implicit_tls
        self._transport: asyncio.Transport | None = None
        self._framer = Framer(limits)
        self._out: list[bytes] = []
        self._out_size = 0
        self._task: asyncio.Task[None] | None = None
        self._waiting: asyncio.Future[None] | None = None  # for more to read
        self._room: asyncio.Future[None] | None = None  # for the peer to take what was sent
        self._reading = True
        self._turn_ends = 0.0
        self._inflater: Inflater | None = None
        self._deflater: Deflater | None = None

    # --- called by the event loop ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A peer that vanished without a word is noticed when it does not confirm what is sent.
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNCONFIRMED)
        self._host.connected(self, transport)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        if self._inflater is None:
            self._framer.feed(data)
        else:
            self._inflater.feed(data)
        if self._waiting is not None:
            self._wake()
        elif self._task is None:
            self._go_on()
        elif self._reading and self.unread > _READ_AHEAD and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.closing = True
        self._transport = None
        self._out.clear()
        if self._task is not None:
            self._task.cancel()
        if self.conversation is not None:
            self.conversation.ended()

    def pause_writing(self) -> None:
        self._room = self._loop.create_future()
        self.stuck_since = self._loop.time()

    def resume_writing(self) -> None:
        room, self._room = self._room, None
        self.stuck_since = None
        if room is not None and not room.done():
            room.set_result(None)
        if self.conversation is not None:
            self.conversation.writable()

    # --- receiving -------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """A command is being carried out."""
        return self._task is not None

    @property
    def unread(self) -> int:
        """Octets that came in and were not consumed."""
        return self._framer.buffered + (self._inflater.waiting if self._inflater is not None else 0)

    @property
    def framer(self) -> Framer:
        return self._framer

    def _inflate(self) -> bool:
        """Give the framer another piece of what came in compressed; False if there is none."""
        if self._inflater is None:
            return False
        try:
            piece = self._inflater.read()
        except ValueError as error:
            raise ProtocolError("Compressed data is damaged") from error
        if piece:
            self._framer.feed(piece)
        return bool(piece)

    def occupy(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something else before the conversation begins."""
        self._task = self._loop.create_task(self._prelude(work))

    async def _prelude(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            return
        except Exception as error:
            if self.conversation is not None:
                self.conversation.broken(error)
            self.abort()
        finally:
            self._task = None
        self.flush()
        if not self.closing:
            self._go_on()

    def _go_on(self) -> None:
        try:
            event = self._framer.next_event()
        except ProtocolError as error:
            self.bye(str(error))
            return
        if event is NEED_DATA and self._inflater is None:
            return
        # Most commands need nothing that is not at hand: such are done here and now, without a task.
        work = self._converse(event)
        try:
            waits_for = work.send(None)
        except StopIteration:
            return
        self._task = self._loop.create_task(_go_on_with(_Begun(work, waits_for)))

    async def _converse(self, event: Event) -> None:
        """Handle what came in, until more is needed."""
        conversation = self.conversation
        assert conversation is not None  # noqa: S101 - set before the first octet can come
        self._turn_ends = self._loop.time() + _TURN
        try:
            while not self.closing:
                if event is not NEED_DATA:
                    await conversation.handle(event)
                elif not self._inflate():
                    break
                self._read_on()
                event = self._framer.next_event()
                if event is NEED_DATA and self._inflater is None:
                    break
                if self._out_size >= _WRITE_SIZE or self._room is not None or self._loop.time() > self._turn_ends:
                    await self.breathe()
        except asyncio.CancelledError:
            return
        except ProtocolError as error:
            self.bye(str(error))
        except Exception as error:
            conversation.broken(error)
            self.bye("Internal error", codes.SERVERBUG)
        finally:
            self._task = None
            self.flush()
            if self._inflater is not None and not self.closing:
                conversation.rested()

    def _read_on(self) -> None:
        if not self._reading and self.unread <= _READ_AHEAD and self._transport is not None:
            self._reading = True
            self._transport.resume_reading()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def next_line(self) -> Line | None:
        """A line that belongs to the command under way (RFC 3501 6.2.2); None if it was too long."""
        self._framer.expect_line()
        self.flush()
        while True:
            event = self._framer.next_event()
            if event is not NEED_DATA:
                return event if isinstance(event, Line) else None
            if self._inflate():
                continue
            self._read_on()
            self._waiting = self._loop.create_future()
            await self._waiting

    # --- sending ---------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Queue octets; they are written when there are many or nothing is left to do."""
        self._out.append(data)
        self._out_size += len(data)

    def flush(self) -> None:
        """Write what is queued."""
        if not self._out:
            return
        out, self._out = self._out, []
        self._out_size = 0
        if self._transport is None or self._transport.is_closing():
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        if self._deflater is not None:
            data = self._deflater.write(data)
        self.said_at = self._loop.time()
        self._transport.write(data)

    async def breathe(self) -> None:
        """To be called by whatever takes long: sends, waits for a slow peer, and lets others have their turn."""
        if self._out_size >= _WRITE_SIZE:
            self.flush()
        if self._room is not None:
            await asyncio.shield(self._room)
            self._turn_ends = self._loop.time() + _TURN
        elif self._loop.time() > self._turn_ends:
            self.flush()
            await asyncio.sleep(0)
            self._turn_ends = self._loop.time() + _TURN

    # --- changes of the connection ---------------------------------------------------------------------------------

    # RFC 3501 6.2.1
    async def start_tls(self, context: ssl.SSLContext, seconds: float) -> bool:
        """Go on under TLS; False if that failed, and the connection is closed."""
        self.flush()
        received = self._framer.take_buffered()
        assert self._transport is not None  # noqa: S101 - a command is running
        plain, self._reading = self._transport, True
        self._in_handshake = True
        secured = await tls.start(plain, self, context, seconds, received if self.implicit_tls else b"")
        self._in_handshake = False
        if secured is None:
            if self._transport is not None:
                self.connection_lost(None)  # the layer that failed does not tell
            return False
        self._transport = secured
        if not self._reading:  # so much came with the end of the handshake: it stopped the transport known then
            plain.resume_reading()
            secured.pause_reading()
        return True

    # RFC 4978 3
    def start_compression(self) -> None:
        """All that follows, in both directions, is compressed; what was read already included."""
        self.flush()
        self._deflater, self._inflater = Deflater(), Inflater()
        self._inflater.feed(self._framer.take_buffered())

    # RFC 8437 4.1
    def end_compression(self) -> None:
        """What follows is plain again, in both directions."""
        self.flush()
        if self._inflater is not None:
            rest = self._inflater.rest()
            self._deflater = self._inflater = None
            if rest:
                self._framer.feed(rest)

    @property
    def compressed(self) -> bool:
        return self._deflater is not None

    # --- the end ---------------------------------------------------------------------------------------------------

    # RFC 3501 7.1.5
    def bye(self, text: str, code: bytes = b"") -> None:
        """Say why, and close."""
        if not self.closing:
            self.send(status.bye(text, code))
            self.close()

    def give_way(self) -> None:
        """Close in favour of another connection: the server has too many."""
        if self._in_handshake:  # a client in the middle of it could not read the reason
            self.abort()
        else:
            self.bye("Too many connections, try again later", codes.UNAVAILABLE)

    def close(self) -> None:
        """Send what is queued, then close."""
        self.closing = True
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once: the peer does not listen any more."""
        self.closing = True
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()
