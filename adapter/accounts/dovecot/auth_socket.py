"""The auth sockets of a running Dovecot: verify passwords (auth client) and look up users (auth-userdb).

One connection carries all requests at a time, each with a number of its own; it is opened with the first request, and
again after Dovecot was restarted.

Invariants: every request ends within the time limit; an error of Dovecot is never reported as an unknown user; no
password is logged. Runs on the event loop only, except :meth:`Channel.close`.
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

_MAX_LINE_BYTES = 64 << 10
_MAX_HANDSHAKE_LINES = 200
_MAX_NAME = 512
_MAX_PASSWORD = 1024


#: Formats a request with its number.
_Format = Callable[[int], bytes]


class UnavailableError(Exception):
    """The database is unavailable; the text says why."""


class Channel:
    """A connection that is reopened when needed."""

    def __init__(self, where: str, seconds: float, *, is_userdb: bool) -> None:
        self.where = where
        self._seconds = seconds
        self._is_userdb = is_userdb
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Line]] = {}
        self._opening = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def close(self) -> None:
        """Close the connection; thread-safe."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._disconnect)

    async def ask(self, format_request: _Format) -> Line:
        """Send a request and return its reply. Raises UnavailableError, and ValueError for an invalid request."""
        number = next(self._numbers)
        request = format_request(number)
        try:
            async with asyncio.timeout(self._seconds):
                for attempt in (1, 2):
                    try:
                        return await self._send(number, request)
                    except (OSError, asyncio.IncompleteReadError):
                        # Dovecot was restarted since the last request: retry on a new connection.
                        if attempt == 2:
                            raise
        except TimeoutError:
            raise UnavailableError(f"{self.where}: no reply in time") from None
        except (OSError, asyncio.IncompleteReadError) as error:
            raise UnavailableError(f"{self.where}: {getattr(error, 'strerror', None) or error}") from None
        finally:
            self._pending.pop(number, None)
        raise AssertionError  # the loop returned or raised

    async def _send(self, number: int, request: bytes) -> Line:
        async with self._opening:
            if self._writer is None:
                await self._open()
        assert self._writer is not None  # noqa: S101 - just opened
        reply: asyncio.Future[Line] = asyncio.get_running_loop().create_future()
        self._pending[number] = reply
        self._writer.write(request)
        return await reply

    async def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self.where.startswith("/"):
            reader, writer = await asyncio.open_unix_connection(self.where, limit=_MAX_LINE_BYTES)
        else:
            host, _, port = self.where.rpartition(":")
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), limit=_MAX_LINE_BYTES)
        try:
            # A random number in place of the process id, which is not unique across containers.
            hello = dovecot.userdb_hello() if self._is_userdb else dovecot.client_hello(_random_client_number())
            writer.write(hello)
            await self._read_hello(reader)
        except BaseException:
            writer.close()
            raise
        self._writer = writer
        self._reading = asyncio.create_task(self._read(reader, writer))

    async def _read_hello(self, reader: asyncio.StreamReader) -> None:
        mechanisms = set()
        for _ in range(_MAX_HANDSHAKE_LINES):
            line = dovecot.parse_line(await _read_line(reader))
            if line.command == "VERSION" and line.words[:1] != (str(dovecot.MAJOR),):
                raise UnavailableError(f"{self.where}: unsupported protocol version {line.words[:1]}")
            if line.command == "MECH" and line.words:
                mechanisms.add(line.words[0].upper())
            if line.command == ("SPID" if self._is_userdb else "DONE"):
                if not self._is_userdb and "PLAIN" not in mechanisms:
                    raise UnavailableError(f"{self.where}: does not offer PLAIN (auth_mechanisms)")
                return
        raise UnavailableError(f"{self.where}: handshake too long")

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                line = dovecot.parse_line(await _read_line(reader))
                reply = self._pending.pop(line.number, None)
                if reply is not None and not reply.done():
                    reply.set_result(line)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            if self._writer is writer:
                self._disconnect()

    def _disconnect(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        pending, self._pending = self._pending, {}
        for reply in pending.values():
            if not reply.done():
                reply.set_exception(ConnectionResetError("connection lost"))


class AuthSocket:
    """Dovecot's auth client socket."""

    def __init__(self, where: str, seconds: float) -> None:
        self._channel = Channel(where, seconds, is_userdb=False)

    def close(self) -> None:
        self._channel.close()

    async def login(self, user: str, password: str, peer: str) -> str | None:
        """Log in, and return Dovecot's spelling of the user, or None. Raises UnavailableError."""
        if len(user) > _MAX_NAME or len(password) > _MAX_PASSWORD:
            return None
        address = "" if peer == networks.UNIX else peer
        try:
            reply = await self._channel.ask(lambda number: dovecot.auth_request(number, user, password, address))
        except ValueError:
            return None
        if reply.command == "OK":
            return reply.named.get("user") or user
        if reply.command == "FAIL" and not reply.temporary:
            return None
        reason = reply.named.get("reason") or reply.command
        raise UnavailableError(f"{self._channel.where}: temporary failure ({reason[:200]!r})")


class UserdbSocket:
    """Dovecot's auth-userdb socket."""

    def __init__(self, where: str, seconds: float) -> None:
        self._channel = Channel(where, seconds, is_userdb=True)

    def close(self) -> None:
        self._channel.close()

    async def has_user(self, name: str) -> bool:
        """Look up a user. Raises UnavailableError."""
        if len(name) > _MAX_NAME or not name.isprintable():
            return False
        reply = await self._channel.ask(lambda number: dovecot.user_request(number, name))
        if reply.command in ("USER", "NOTFOUND"):
            return reply.command == "USER"
        reason = reply.named.get("reason") or reply.command
        raise UnavailableError(f"{self._channel.where}: temporary failure ({reason[:200]!r})")


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        raise ConnectionResetError("line too long") from None


def _random_client_number() -> int:
    return secrets.randbelow((1 << 31) - 2) + 1
