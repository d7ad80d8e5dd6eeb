"""A hardened wrapper around aioimaplib.

* Its parser, which recurses for every line, gets a bounded number of lines at a time.
* The size of the response to one command is bounded.
* Any exception of its parser ends the connection; the text is dropped, because it may contain the command, and so the
  password.
* A lost connection or a timeout ends every call, which aioimaplib would not do by itself. The connection is then not
  used again.
* Its log is silenced.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import aioimaplib
from aioimaplib.aioimaplib import AUTH, SELECTED, Cmd, Command, Commands, Exec, quoted

_MAX_PARSED_LINES = 100
_CANCEL_SECONDS = 1.0
_CODE = re.compile(rb"\[([^ \]]+)")
_PERMANENT_CODES = (b"", b"NONEXISTENT", b"TRYCREATE")  # of a NO (RFC 5530); others may be temporary
#: Octets that a response may have besides the requested contents.
OVERHEAD_BYTES = 4 << 20

for _logger in ("aioimaplib", "aioimaplib.aioimaplib"):
    logging.getLogger(_logger).setLevel(logging.CRITICAL + 1)  # it logs all traffic

# RFC 5465, which it does not support
Commands.setdefault("NOTIFY", Cmd("NOTIFY", (AUTH, SELECTED), Exec.is_sync))

Line = bytes | bytearray
Result = TypeVar("Result")


class UpstreamError(Exception):
    """The upstream server is unreachable, lost, or violates the protocol. The text may be logged."""


class Refused(UpstreamError):  # noqa: N818 - a response
    """The server responded NO or BAD; ``is_permanent``: because of the request, not of a temporary failure."""

    def __init__(self, text: str, *, is_permanent: bool = False) -> None:
        super().__init__(text)
        self.is_permanent = is_permanent


async def run_blocking(function: Callable[..., Result], *arguments: Any) -> Result:
    """Run a function on a thread. A cancelled caller waits for its end, because the store may be closed after that."""
    work = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


class _Protocol(aioimaplib.IMAP4ClientProtocol):  # type: ignore[misc, unused-ignore]
    remaining_bytes = OVERHEAD_BYTES
    error = ""

    def data_received(self, d: bytes) -> None:
        self.remaining_bytes -= len(d)
        if self.remaining_bytes < 0:
            self.abort("response too large")
        for block in _blocks(d):
            if self.error:
                return
            try:
                super().data_received(block)
            except Exception as error:
                self.abort(f"malformed response ({type(error).__name__})")

    async def welcome(self, command: bytes) -> None:
        try:
            await super().welcome(command)
        except Exception:
            self.abort("not an IMAP greeting")

    def abort(self, reason: str) -> None:
        self.error = self.error or reason
        if self.transport is not None:
            self.transport.abort()


def _blocks(data: bytes) -> Iterator[bytes]:
    """Split after every hundred lines."""
    if data.count(b"\n") <= _MAX_PARSED_LINES:
        yield data
        return
    lines = data.splitlines(keepends=True)
    for first in range(0, len(lines), _MAX_PARSED_LINES):
        yield b"".join(lines[first : first + _MAX_PARSED_LINES])


class _Connection(aioimaplib.IMAP4):  # type: ignore[misc, unused-ignore]
    def create_client(
        self, host: str, port: int, loop: Any, conn_lost_cb: Any = None, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        self.protocol = _Protocol(loop, conn_lost_cb)
        self._client_task = loop.create_task(loop.create_connection(lambda: self.protocol, host, port, ssl=ssl_context))


class Client:
    """One connection. Every method raises :class:`UpstreamError`; except after a :class:`Refused` it is then closed."""

    def __init__(self, host: str, port: int, timeout: float, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        self._host = host
        self._port = port
        self._timeout = timeout
        self._lost: asyncio.Future[None] = loop.create_future()
        self._imap = _Connection(host, port, loop, timeout, self._on_lost, tls)

    def _on_lost(self, error: Exception | None) -> None:
        if not self._lost.done():
            self._lost.set_result(None)

    @property
    def _protocol(self) -> Any:
        return self._imap.protocol

    def close(self) -> None:
        """Close the connection at once."""
        connecting: asyncio.Task[Any] = self._imap._client_task
        if not connecting.done():
            connecting.cancel()
        elif not connecting.cancelled():
            connecting.exception()  # mark as retrieved
        if self._protocol.transport is not None:
            self._protocol.transport.abort()
        for task in (*self._protocol.tasks, *self._imap.tasks):
            task.cancel()  # a task may hold a lock that even cancelled calls wait for
        self._on_lost(None)

    # --- calls -------------------------------------------------------------------------------------------------------

    async def greeting(self) -> None:
        try:
            await self._call(self._imap._wait_connection_and_hello())
        except UpstreamError as error:
            raise UpstreamError(f"{self._host}:{self._port}: {error}") from None

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """Start TLS, and discard all earlier state (RFC 3501 6.2.1)."""
        await self.run("STARTTLS")
        protocol = self._protocol
        if protocol.incomplete_line:
            self.close()
            raise UpstreamError("plaintext data after STARTTLS")
        loop = asyncio.get_running_loop()

        async def encrypt() -> None:
            protocol.transport = await loop.start_tls(protocol.transport, protocol, context, server_hostname=self._host)
            await protocol.capability()

        await self._call(encrypt())

    async def login(self, user: str, password: str) -> None:
        if self._protocol.state == "AUTH":
            return  # RFC 3501 7.1.4: PREAUTH
        if self.offers("LOGINDISABLED"):
            raise UpstreamError("logins are disabled on this connection; set tls")
        response = await self._call(self._protocol.login(quoted(user), password))
        if response.result != "OK":
            raise Refused("login refused: wrong user or password")
        await self._call(self._protocol.capability())

    def offers(self, capability: str) -> bool:
        return capability in {str(each).upper() for each in self._protocol.capabilities}

    async def run(self, name: str, *arguments: str, max_bytes: int = OVERHEAD_BYTES) -> list[Line]:
        """Run a command, and return the lines of its response; the last one is the text of the result."""
        protocol = self._protocol
        return await self._lines(
            name, lambda: protocol.execute(Command(name, protocol.new_tag(), *arguments)), max_bytes
        )

    async def examine(self, name: str, *parameters: str) -> list[Line]:
        """Open a mailbox for reading only (RFC 3501 6.3.2)."""
        lines = await self.run("EXAMINE", quoted(name), *parameters)
        self._protocol.state = "SELECTED"  # aioimaplib sets it for SELECT only
        return lines

    async def fetch(self, numbers: str, items: str, *, uid: bool, max_bytes: int = OVERHEAD_BYTES) -> list[Line]:
        return await self._lines("FETCH", lambda: self._protocol.fetch(numbers, items, by_uid=uid), max_bytes)

    async def search(self, *criteria: str, max_bytes: int) -> list[Line]:
        """Search the open mailbox for UIDs."""
        return await self._lines(
            "SEARCH", lambda: self._protocol.search(*criteria, charset=None, by_uid=True), max_bytes
        )

    async def idle(self, seconds: float, is_news: Callable[[Sequence[Line]], bool]) -> list[Line]:
        """Wait for responses that ``is_news`` accepts (RFC 2177); return all that arrived."""
        protocol, imap = self._protocol, self._imap
        protocol.remaining_bytes = OVERHEAD_BYTES
        while not protocol.idle_queue.empty():
            protocol.idle_queue.get_nowait()
        idling = await self._call(imap.idle_start(seconds + 2 * self._timeout))
        deadline = asyncio.get_running_loop().time() + seconds
        received: list[Line] = []
        has_news = False
        while not has_news and (left := deadline - asyncio.get_running_loop().time()) > 0:
            push = asyncio.ensure_future(protocol.idle_queue.get())
            try:
                await asyncio.wait({push, self._lost}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if self._lost.done():
                    raise self._connection_error()
                lines = push.result() if push.done() else []
                received += lines
                has_news = is_news(lines)
            finally:
                push.cancel()
        imap.idle_done()
        await self._call(idling)
        while not protocol.idle_queue.empty():
            received += protocol.idle_queue.get_nowait()
        return received

    async def _lines(self, name: str, start: Any, max_bytes: int) -> list[Line]:
        self._protocol.remaining_bytes = max_bytes
        try:
            work = start()
        except ValueError:
            raise Refused(f"{name}: a name that IMAP cannot express") from None
        response = await self._call(work)
        if response.result != "OK":
            raise Refused(f"{name} refused: {response.result}", is_permanent=_is_permanent(response))
        lines: list[Line] = response.lines
        return lines

    async def _call(self, work: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> Any:
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._lost}, timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled() and task.exception() is None:
                return task.result()
            if not task.done() and not self._lost.done():
                self._protocol.abort(f"no response for {self._timeout:g} seconds")
            raise self._connection_error(task)
        except BaseException:
            self.close()
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_SECONDS)
            if task.done() and not task.cancelled():
                task.exception()  # mark as retrieved
            raise

    def _connection_error(self, task: asyncio.Future[Any] | None = None) -> UpstreamError:
        """Make the error of a closed connection, without texts of aioimaplib: they may contain a command."""
        error = task.exception() if task is not None and task.done() and not task.cancelled() else None
        if self._protocol.error:
            return UpstreamError(self._protocol.error)
        if isinstance(error, ConnectionError) and error.errno:
            return UpstreamError(os.strerror(error.errno))
        if isinstance(error, OSError):
            return UpstreamError(error.strerror or str(error) or type(error).__name__)
        return UpstreamError(f"{type(error).__name__}" if error is not None else "connection lost")


def _is_permanent(response: Any) -> bool:
    code = _CODE.match(bytes(response.lines[-1])) if response.lines else None
    return response.result == "NO" and (code[1].upper() if code else b"") in _PERMANENT_CODES
