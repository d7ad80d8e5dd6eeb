"""Receive a message: octets from the stream into the store's spool.

``commands`` opens an :class:`IncomingMessage` and fills it with :func:`receive`; ``delivery`` stages and commits it.

Invariants: a message that will be refused takes no more space; writes to disk run on a thread; the header block is
written once, edited, after the trace fields; only the client's time counts, never the server's; a client slower than
the minimum rate is disconnected once it has used up the grace time, however evenly it sends; the rest of a refused
message must end soon, however fast it arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from adapter.config.schema import Limits
from adapter.sessions.context import OpenStore
from adapter.smtp.stream import Stream
from adapter.transport.commit_queue import as_mail_error
from adapter.transport.staging import SPOOL_MEMORY, Spool, Staged
from protocol.mime.parser import Buffer
from protocol.smtp import replies
from protocol.smtp.data import Intake
from protocol.smtp.replies import Reply, SmtpError

#: Larger messages are never rewritten: they are spooled as they arrive.
MAX_REWRITTEN_BYTES = 1 << 20
_FOREVER = float("inf")

EditHeader = Callable[[bytes], bytes]  # raises SmtpError
Rewrite = Callable[[bytes, bytes], bytes]


class Reader(Protocol):
    """The interface of DataReader and ChunkReader."""

    done: bool
    leftover: bytes

    def feed(self, data: bytes, /) -> bytes: ...


class TooSlowError(Exception):
    """The data rate is below the limit, or a refused message does not end."""


class ReceiveTimer:
    """The idle and total time limits of one message."""

    __slots__ = ("_limits", "_received_bytes", "_waited_seconds", "refused_until")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waited_seconds = 0.0
        self._received_bytes = 0
        self.refused_until = _FOREVER  # by the caller's clock

    @property
    def timeout(self) -> float:
        """Seconds to wait for the next octets; 0: too slow."""
        return max(0.0, min(self._limits.data_idle, self._budget))

    @property
    def _budget(self) -> float:
        return self._limits.data_grace + self._received_bytes / max(1, self._limits.data_rate) - self._waited_seconds

    def refuse(self, now: float) -> None:
        # The rest is useless and may be endless: give it as long as the client might have been silent.
        self.refused_until = min(self.refused_until, now + self._limits.data_idle)

    def record(self, waited_seconds: float, received_bytes: int) -> None:
        self._waited_seconds += waited_seconds
        self._received_bytes += received_bytes


async def receive(stream: Stream, limits: Limits, reader: Reader, message: IncomingMessage | None) -> None:
    """Pass the stream through ``reader`` into ``message`` until the reader is done; None: skip the octets.

    Raises TooSlowError. Any exception ends the session: the next octets are not commands.
    """
    timer = ReceiveTimer(limits)
    data = stream.lines.take()
    while True:
        body = reader.feed(data)
        if message is not None:
            await message.add(body)
        if reader.done:
            stream.lines.feed(reader.leftover)
            return
        await stream.flush(limits.idle)
        started = stream.loop.time()
        if message is None or message.refusal is not None:
            timer.refuse(started)
        try:
            if started >= timer.refused_until:  # receive() would return octets that are already there
                raise TimeoutError
            data = await stream.receive(min(timer.timeout, timer.refused_until - started))
        except TimeoutError:
            raise TooSlowError from None
        timer.record(stream.loop.time() - started, len(data))


class IncomingMessage:
    """One message on its way from the network into the spool.

    ``edit``, if any, gets the header block and returns its replacement. ``must_rewrite`` decides by the header whether
    ``rewrite``, which gets header and body, makes the message; the body is then collected in memory first.
    """

    def __init__(
        self,
        store: OpenStore,
        intake: Intake,
        trace: bytes,
        edit: EditHeader | None = None,
        rewrite: Rewrite | None = None,
        must_rewrite: Callable[[bytes], bool] = bool,
    ) -> None:
        self.intake = intake
        self._store = store
        self._trace = trace
        self._edit = edit
        self._rewrite = rewrite
        self._must_rewrite = must_rewrite
        self._spool: Spool | None = store.transport.spool()
        self._header: bytes | None = None
        self._collected: bytearray | None = None
        self._refusal: Reply | None = None

    @property
    def refusal(self) -> Reply | None:
        return self.intake.refusal or self._refusal

    @property
    def header(self) -> bytes:
        """The header block as stored, without the trace fields; empty until it is complete."""
        return self._header or b""

    @property
    def size(self) -> int:
        return self._spool.size if self._spool is not None else 0

    # --- receiving -------------------------------------------------------------------------------------------------

    async def add(self, body: bytes) -> None:
        """Store the octets that a reader returned; the reader's intake may have completed the header.

        Raises nothing: the rest of the message still arrives and must not be taken for commands.
        """
        if self._header is None:
            if self.intake.header is None:
                return
            self._header = self.intake.header
            body = self._begin(self._header) + body
        if self.refusal is not None:
            await self.discard()
        elif self._collected is not None:
            self._collected += body
            if len(self._collected) > MAX_REWRITTEN_BYTES:
                await self._stop_collecting()
        elif body:
            await self._write(body)

    def _begin(self, header: bytes) -> bytes:
        """Edit the header; return the octets that start the message."""
        try:
            edited = self._edit(header) if self._edit is not None else header
        except Exception as error:
            self._refusal = replies.reply_to(error if isinstance(error, SmtpError) else as_mail_error(error))
            return b""
        self._header = edited
        if self._rewrite is not None and self._must_rewrite(edited):
            self._collected = bytearray()
            return b""
        return self._trace + edited

    async def _stop_collecting(self) -> None:
        """The message is too large to be rewritten: spool it as it is."""
        body, self._collected = self._collected or b"", None
        await self._write(b"".join((self._trace, self._header or b"", body)))

    async def finish(self) -> None:
        """Rewrite a collected message once it is complete."""
        if self._collected is None or self.refusal is not None or self._header is None or self._rewrite is None:
            return
        body = bytes(self._collected)
        self._collected = None
        loop = asyncio.get_running_loop()
        await self._write(self._trace + await loop.run_in_executor(self._store.pool, self._rewrite, self._header, body))

    async def _write(self, data: bytes) -> None:
        spool = self._spool
        if spool is None:
            return
        try:
            if spool.size + len(data) <= SPOOL_MEMORY:
                spool.write(data)
            else:
                await asyncio.get_running_loop().run_in_executor(self._store.pool, spool.write, data)
        except Exception as error:
            self._refusal = replies.reply_to(as_mail_error(error))
            await self.discard()

    # --- once it is complete ---------------------------------------------------------------------------------------

    def reading(self) -> AbstractContextManager[Buffer]:
        """Give access to the complete message before it is staged. Blocking."""
        if self._spool is None:
            raise RuntimeError("the message is already staged")
        return self._spool.reading()

    def stage(self) -> Staged:
        """Stage the message, once, and only if it is not refused. Blocking."""
        spool, self._spool = self._spool, None
        if spool is None:
            raise RuntimeError("the message is already staged")
        return spool.stage()

    async def discard(self) -> None:
        """Drop the message and its spool."""
        spool, self._spool = self._spool, None
        self._collected = None
        if spool is not None:
            if spool.size > SPOOL_MEMORY:
                await asyncio.get_running_loop().run_in_executor(self._store.pool, spool.close)
            else:
                spool.close()
