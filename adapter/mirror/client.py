"""aioimaplib, with a fence around it.

What it does by itself is not safe to rely on, so that here

* its parser, which calls itself for every line, gets a bounded number of lines at a time;
* what a server may send for one command is bounded;
* whatever it raises while it reads (its texts may hold the command, and so the password) ends the connection, unseen;
* a connection that is lost, or a call that takes too long, ends every call: it would never do so by itself. A
  connection on which that happened is not used again;
* nothing it logs is shown.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import aioimaplib
from aioimaplib.aioimaplib import AUTH, SELECTED, Cmd, Command, Commands, Exec, quoted

_LINES_AT_ONCE = 100
_AFTER_CANCEL = 1.0  # seconds
_CODE = re.compile(rb"\[([^ \]]+)")
_LASTING = (b"", b"NONEXISTENT", b"TRYCREATE")  # RFC 5530: codes of a NO; others tell of trouble or permissions
#: Octets that an answer may have beside the contents asked for.
ROOM = 4 << 20

for _logger in ("aioimaplib", "aioimaplib.aioimaplib"):
    logging.getLogger(_logger).setLevel(logging.CRITICAL + 1)  # it logs what is sent and received

# RFC 5465, which it does not know
Commands.setdefault("NOTIFY", Cmd("NOTIFY", (AUTH, SELECTED), Exec.is_sync))

Line = bytes | bytearray


class UpstreamError(Exception):
    """The other server cannot be reached, is lost, or does not do what it should. The text may be logged."""


class Refused(UpstreamError):  # noqa: N818 - an answer
    """The server answered NO or BAD; ``is_lasting``: because of what was asked for, not of trouble it has just now."""

    def __init__(self, text: str, *, is_lasting: bool = False) -> None:
        super().__init__(text)
        self.is_lasting = is_lasting


class _Protocol(aioimaplib.IMAP4ClientProtocol):  # type: ignore[misc, unused-ignore]
    room = ROOM
    trouble = ""

    def data_received(self, d: bytes) -> None:
        self.room -= len(d)
        if self.room < 0:
            self.give_up("it sends more than it was asked for")
        for piece in _pieces(d):
            if self.trouble:
                return
            try:
                super().data_received(piece)
            except Exception as error:
                self.give_up(f"its answer is not understood ({type(error).__name__})")

    async def welcome(self, command: bytes) -> None:
        try:
            await super().welcome(command)
        except Exception:
            self.give_up("it does not greet as IMAP servers do")

    def give_up(self, trouble: str) -> None:
        self.trouble = self.trouble or trouble
        if self.transport is not None:
            self.transport.abort()


def _pieces(data: bytes) -> Iterator[bytes]:
    """Cut behind every so many lines."""
    if data.count(b"\n") <= _LINES_AT_ONCE:
        yield data
        return
    lines = data.splitlines(keepends=True)
    for first in range(0, len(lines), _LINES_AT_ONCE):
        yield b"".join(lines[first : first + _LINES_AT_ONCE])


class _Connection(aioimaplib.IMAP4):  # type: ignore[misc, unused-ignore]
    def create_client(
        self, host: str, port: int, loop: Any, conn_lost_cb: Any = None, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        self.protocol = _Protocol(loop, conn_lost_cb)
        self._client_task = loop.create_task(loop.create_connection(lambda: self.protocol, host, port, ssl=ssl_context))


class Client:
    """One connection. Every method raises :class:`UpstreamError`; after one that is no :class:`Refused` it is over."""

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
        """End the connection, at once."""
        connecting: asyncio.Task[Any] = self._imap._client_task
        if not connecting.done():
            connecting.cancel()
        elif not connecting.cancelled():
            connecting.exception()  # seen
        if self._protocol.transport is not None:
            self._protocol.transport.abort()
        for task in (*self._protocol.tasks, *self._imap.tasks):
            task.cancel()  # one of them may hold a lock that calls wait for even when they are cancelled
        self._on_lost(None)

    # --- calls -------------------------------------------------------------------------------------------------------

    async def greeting(self) -> None:
        try:
            await self._call(self._imap._wait_connection_and_hello())
        except UpstreamError as error:
            raise UpstreamError(f"{self._host}:{self._port}: {error}") from None

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """RFC 3501 6.2.1: what was said before counts for nothing after it."""
        await self.run("STARTTLS")
        protocol = self._protocol
        if protocol.incomplete_line:
            self.close()
            raise UpstreamError("it sends something between STARTTLS and TLS")
        loop = asyncio.get_running_loop()

        async def encrypt() -> None:
            protocol.transport = await loop.start_tls(protocol.transport, protocol, context, server_hostname=self._host)
            await protocol.capability()

        await self._call(encrypt())

    async def login(self, user: str, password: str) -> None:
        if self._protocol.state == "AUTH":
            return  # RFC 3501 7.1.4: PREAUTH
        if self.offers("LOGINDISABLED"):
            raise UpstreamError("it does not take passwords over this connection; set tls")
        answer = await self._call(self._protocol.login(quoted(user), password))
        if answer.result != "OK":
            raise Refused("it refuses the user or the password")
        await self._call(self._protocol.capability())

    def offers(self, capability: str) -> bool:
        return capability in {str(each).upper() for each in self._protocol.capabilities}

    async def run(self, name: str, *arguments: str, room: int = ROOM) -> list[Line]:
        """A command and the lines of its answer; the last one is the text of its result."""
        protocol = self._protocol
        return await self._lines(name, lambda: protocol.execute(Command(name, protocol.new_tag(), *arguments)), room)

    async def examine(self, spelling: str, *parameters: str) -> list[Line]:
        """Open a mailbox for reading only (RFC 3501 6.3.2)."""
        lines = await self.run("EXAMINE", quoted(spelling), *parameters)
        self._protocol.state = "SELECTED"  # aioimaplib does so for SELECT alone
        return lines

    async def fetch(self, numbers: str, items: str, *, uid: bool, room: int = ROOM) -> list[Line]:
        return await self._lines("FETCH", lambda: self._protocol.fetch(numbers, items, by_uid=uid), room)

    async def search(self, *criteria: str, room: int) -> list[Line]:
        """UIDs of the open mailbox."""
        return await self._lines("SEARCH", lambda: self._protocol.search(*criteria, charset=None, by_uid=True), room)

    async def idle(self, seconds: float, is_news: Callable[[Sequence[Line]], bool]) -> list[Line]:
        """Wait until the server tells something that ``is_news`` (RFC 2177); all that it told."""
        protocol, imap = self._protocol, self._imap
        protocol.room = ROOM
        while not protocol.idle_queue.empty():
            protocol.idle_queue.get_nowait()
        idling = await self._call(imap.idle_start(seconds + 2 * self._timeout))
        deadline = asyncio.get_running_loop().time() + seconds
        heard: list[Line] = []
        happened = False
        while not happened and (left := deadline - asyncio.get_running_loop().time()) > 0:
            push = asyncio.ensure_future(protocol.idle_queue.get())
            try:
                await asyncio.wait({push, self._lost}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if self._lost.done():
                    raise self._over()
                told = push.result() if push.done() else []
                heard += told
                happened = is_news(told)
            finally:
                push.cancel()
        imap.idle_done()
        await self._call(idling)
        while not protocol.idle_queue.empty():
            heard += protocol.idle_queue.get_nowait()
        return heard

    async def _lines(self, name: str, start: Any, room: int) -> list[Line]:
        self._protocol.room = room
        try:
            work = start()
        except ValueError:
            raise Refused(f"{name}: a name that cannot be said in IMAP") from None
        answer = await self._call(work)
        if answer.result != "OK":
            raise Refused(f"{name} was refused: {answer.result}", is_lasting=_is_lasting(answer))
        lines: list[Line] = answer.lines
        return lines

    async def _call(self, work: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> Any:
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._lost}, timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled() and task.exception() is None:
                return task.result()
            if not task.done() and not self._lost.done():
                self._protocol.give_up(f"no answer for {self._timeout:g} seconds")
            raise self._over(task)
        except BaseException:
            self.close()
            task.cancel()
            await asyncio.wait({task}, timeout=_AFTER_CANCEL)
            if task.done() and not task.cancelled():
                task.exception()  # seen
            raise

    def _over(self, task: asyncio.Future[Any] | None = None) -> UpstreamError:
        """Why it is over. Texts of aioimaplib are not shown: they may hold a command."""
        error = task.exception() if task is not None and task.done() and not task.cancelled() else None
        if self._protocol.trouble:
            return UpstreamError(self._protocol.trouble)
        if isinstance(error, ConnectionError) and error.errno:
            return UpstreamError(os.strerror(error.errno))
        if isinstance(error, OSError):
            return UpstreamError(error.strerror or str(error) or type(error).__name__)
        return UpstreamError(f"{type(error).__name__}" if error is not None else "the connection was lost")


def _is_lasting(answer: Any) -> bool:
    code = _CODE.match(bytes(answer.lines[-1])) if answer.lines else None
    return answer.result == "NO" and (code[1].upper() if code else b"") in _LASTING
