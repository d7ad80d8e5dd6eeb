"""The sockets of a running Dovecot's auth process: whose password is this, and does this user exist?

One connection serves all questions at once, each with a number of its own; it is opened when there is something to ask
and again when Dovecot was started anew.

Invariants: every question ends within the time limit; trouble with Dovecot is never an answer about a user; a password
is in no log. Everything here happens on the event loop, but for :meth:`Channel.close`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable

from adapter.net import networks
from protocol.sasl import dovecot
from protocol.sasl.dovecot import Line

_log = logging.getLogger(__name__)

_MAX_LINE = 64 << 10
_MAX_HANDSHAKE = 200  # lines
_MAX_NAME = 512
_MAX_PASSWORD = 1024


#: Makes a question of its number.
_Make = Callable[[int], bytes]


class UnavailableError(Exception):
    """Nobody can tell now; the text says why."""


class Channel:
    """A connection that comes again."""

    def __init__(self, where: str, seconds: float, *, is_userdb: bool) -> None:
        self.where = where
        self._seconds = seconds
        self._is_userdb = is_userdb
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Line]] = {}
        self._opening = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def close(self) -> None:
        """May be called from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._hang_up)

    async def ask(self, make: _Make) -> Line:
        """The answer to a question. Raises UnavailableError, and ValueError for what cannot be asked."""
        number = next(self._numbers)
        question = make(number)
        try:
            async with asyncio.timeout(self._seconds):
                for attempt in (1, 2):
                    try:
                        return await self._ask(number, question)
                    except (OSError, asyncio.IncompleteReadError):
                        # Dovecot was started anew since the last question: ask the new one.
                        if attempt == 2:
                            raise
        except TimeoutError:
            raise UnavailableError(f"{self.where}: no answer in time") from None
        except (OSError, asyncio.IncompleteReadError) as error:
            raise UnavailableError(f"{self.where}: {getattr(error, 'strerror', None) or error}") from None
        finally:
            self._waiting.pop(number, None)
        raise AssertionError  # the loop returned or raised

    async def _ask(self, number: int, question: bytes) -> Line:
        async with self._opening:
            if self._writer is None:
                await self._open()
        assert self._writer is not None  # noqa: S101 - just opened
        answer: asyncio.Future[Line] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._writer.write(question)
        return await answer

    async def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self.where.startswith("/"):
            reader, writer = await asyncio.open_unix_connection(self.where, limit=_MAX_LINE)
        else:
            host, _, port = self.where.rpartition(":")
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), limit=_MAX_LINE)
        try:
            # A number that no other client has, in whatever container it runs.
            hello = dovecot.userdb_hello() if self._is_userdb else dovecot.client_hello(_random_number())
            writer.write(hello)
            await self._read_hello(reader)
        except BaseException:
            writer.close()
            raise
        self._writer = writer
        self._reading = asyncio.create_task(self._read(reader, writer))

    async def _read_hello(self, reader: asyncio.StreamReader) -> None:
        mechanisms = set()
        for _ in range(_MAX_HANDSHAKE):
            line = dovecot.parse(await _read_line(reader))
            if line.command == "VERSION" and line.words[:1] != (str(dovecot.MAJOR),):
                raise UnavailableError(f"{self.where}: speaks version {line.words[:1]} of the protocol")
            if line.command == "MECH" and line.words:
                mechanisms.add(line.words[0].upper())
            if line.command == ("SPID" if self._is_userdb else "DONE"):
                if not self._is_userdb and "PLAIN" not in mechanisms:
                    raise UnavailableError(f"{self.where}: does not offer PLAIN (auth_mechanisms)")
                return
        raise UnavailableError(f"{self.where}: its greeting does not end")

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                line = dovecot.parse(await _read_line(reader))
                answer = self._waiting.pop(line.number, None)
                if answer is not None and not answer.done():
                    answer.set_result(line)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            if self._writer is writer:
                self._hang_up()

    def _hang_up(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError("the connection broke"))


class AuthSocket:
    """Dovecot's auth client socket."""

    def __init__(self, where: str, seconds: float) -> None:
        self._channel = Channel(where, seconds, is_userdb=False)

    def close(self) -> None:
        self._channel.close()

    async def login(self, user: str, password: str, peer: str) -> str | None:
        """The name of the user who logged in, as Dovecot spells it, or None. Raises UnavailableError."""
        if len(user) > _MAX_NAME or len(password) > _MAX_PASSWORD:
            return None
        address = "" if peer == networks.UNIX else peer
        try:
            answer = await self._channel.ask(lambda number: dovecot.auth(number, user, password, address))
        except ValueError:
            return None
        if answer.command == "OK":
            return answer.named.get("user") or user
        if answer.command == "FAIL" and not answer.temporary:
            return None
        reason = answer.named.get("reason") or answer.command
        raise UnavailableError(f"{self._channel.where}: cannot tell ({reason[:200]!r})")


class UserdbSocket:
    """Dovecot's auth-userdb socket."""

    def __init__(self, where: str, seconds: float) -> None:
        self._channel = Channel(where, seconds, is_userdb=True)

    def close(self) -> None:
        self._channel.close()

    async def knows(self, name: str) -> bool:
        """Raises UnavailableError."""
        if len(name) > _MAX_NAME or not name.isprintable():
            return False
        answer = await self._channel.ask(lambda number: dovecot.user(number, name))
        if answer.command in ("USER", "NOTFOUND"):
            return answer.command == "USER"
        reason = answer.named.get("reason") or answer.command
        raise UnavailableError(f"{self._channel.where}: cannot tell ({reason[:200]!r})")


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        raise ConnectionResetError("a line that does not end") from None


def _random_number() -> int:
    return secrets.randbelow((1 << 31) - 2) + 1
