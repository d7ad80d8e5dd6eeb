"""One message on its way from the network into the store's spool.

Invariants: a message bound to be refused takes no more room; what goes to disk is written on a thread; the header block
is written once, edited, with the trace fields before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

from adapter.sessions.context import OpenStore
from adapter.transport.commit_queue import as_mail_error
from adapter.transport.staging import SPOOL_MEMORY, Spool, Staged
from protocol.mime.parser import Buffer
from protocol.smtp import replies
from protocol.smtp.data import Intake
from protocol.smtp.replies import Reply, SmtpError

#: Only messages smaller than this are ever rewritten as a whole.
MAX_REWRITTEN = 1 << 20

EditHeader = Callable[[bytes], bytes]  # raises SmtpError
Rewrite = Callable[[bytes, bytes], bytes]


class Incoming:
    """``edit`` gets the header block and returns what stands for it; ``rewrite`` gets a header and a body.

    ``rewrites`` says by the header whether a message is to be rewritten; it is then collected first.
    """

    def __init__(
        self,
        store: OpenStore,
        intake: Intake,
        trace: bytes,
        edit: EditHeader,
        rewrite: Rewrite | None = None,
        rewrites: Callable[[bytes], bool] = bool,
    ) -> None:
        self.intake = intake
        self._store = store
        self._trace = trace
        self._edit = edit
        self._rewrite = rewrite
        self._rewrites = rewrites
        self._spool: Spool | None = store.transport.spool()
        self._header: bytes | None = None
        self._collected: bytearray | None = None
        self._refusal: Reply | None = None

    @property
    def refusal(self) -> Reply | None:
        return self.intake.refusal or self._refusal

    @property
    def header(self) -> bytes:
        """The header block as it is kept, without the trace fields; empty until it is complete."""
        return self._header or b""

    @property
    def size(self) -> int:
        return self._spool.size if self._spool is not None else 0

    async def add(self, body: bytes) -> None:
        """Take what a reader returned; the reader's intake may have completed the header.

        Raises nothing: the rest of the message comes all the same, and must not be taken for commands.
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
            if len(self._collected) > MAX_REWRITTEN:
                await self._give_up_rewriting()
        elif body:
            await self._write(body)

    async def finish(self) -> None:
        """The message is complete."""
        if self._collected is None or self.refusal is not None or self._header is None or self._rewrite is None:
            return
        body = bytes(self._collected)
        self._collected = None
        loop = asyncio.get_running_loop()
        await self._write(self._trace + await loop.run_in_executor(self._store.pool, self._rewrite, self._header, body))

    def stage(self) -> Staged:
        """Blocks; once, after a message that is not refused."""
        spool, self._spool = self._spool, None
        if spool is None:
            raise RuntimeError("a message is staged twice")
        return spool.stage()

    def reading(self) -> AbstractContextManager[Buffer]:
        """Give access to the complete message before it is staged. Blocking."""
        if self._spool is None:
            raise RuntimeError("the message is staged already")
        return self._spool.reading()

    async def discard(self) -> None:
        """Forget the message; nothing is kept after this."""
        spool, self._spool = self._spool, None
        self._collected = None
        if spool is not None:
            if spool.size > SPOOL_MEMORY:
                await asyncio.get_running_loop().run_in_executor(self._store.pool, spool.close)
            else:
                spool.close()

    def _begin(self, header: bytes) -> bytes:
        try:
            edited = self._edit(header)
        except Exception as error:
            self._refusal = replies.reply_to(error if isinstance(error, SmtpError) else as_mail_error(error))
            return b""
        self._header = edited
        if self._rewrite is not None and self._rewrites(edited):
            self._collected = bytearray()
            return b""
        return self._trace + edited

    async def _give_up_rewriting(self) -> None:
        body, self._collected = self._collected or b"", None
        await self._write(b"".join((self._trace, self._header or b"", body)))

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
