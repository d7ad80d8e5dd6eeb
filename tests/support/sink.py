"""A scripted mail server: it keeps the mail it accepts, and hangs up where the script says."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from tests.support.waiting import PATIENCE

#: From the verb and the whole command (for the message itself: ``.``) to a reply, or None for the usual one.
Script = Callable[[str, str], str | None]

EVERYTHING = ("SIZE 60000000", "8BITMIME", "SMTPUTF8", "DSN", "ENHANCEDSTATUSCODES")


class HangUp(Exception):  # noqa: N818 - what a script raises
    """The connection breaks here, without an answer."""


@dataclass
class Taken:
    mail: str  # the whole MAIL command
    recipients: list[str] = field(default_factory=list)  # whole RCPT commands, accepted ones
    octets: bytes = b""

    @property
    def addresses(self) -> list[str]:
        return [command.partition("<")[2].partition(">")[0] for command in self.recipients]


class Sink:
    """``async with Sink() as sink``: listens on ``sink.port`` of the loopback interface."""

    def __init__(
        self,
        script: Script = lambda verb, command: None,
        extensions: Sequence[str] = EVERYTHING,
        *,
        starttls: ssl.SSLContext | None = None,
        implicit: ssl.SSLContext | None = None,
    ) -> None:
        self.script = script
        self.extensions = extensions
        self._starttls = starttls
        self._implicit = implicit
        self.taken: list[Taken] = []
        self.connections = 0
        self.open_now = 0
        self.open_most = 0
        self.commands: list[str] = []
        self.port = 0
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=self._implicit, limit=1 << 22)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def __aenter__(self) -> Sink:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def wait_for(self, messages: int) -> list[Taken]:
        """When so many messages were taken."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: len(self.taken) >= messages)
        return self.taken

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        try:
            with contextlib.suppress(HangUp, ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                await self._session(reader, writer)
        finally:
            self.open_now -= 1
            writer.close()

    async def _session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(reply: str) -> None:
            writer.write(reply.encode("utf-8", "surrogateescape") + b"\r\n")

        def answer(verb: str, command: str, usual: str) -> str:
            reply = self.script(verb, command)
            reply = usual if reply is None else reply
            say(reply)
            return reply

        encrypted = self._implicit is not None
        if not answer("connect", "", "220 sink ready").startswith("220"):
            return
        envelope: Taken | None = None
        async for command in self._commands(reader, writer):
            verb = command.split(" ")[0].upper()
            if verb == "EHLO":
                offered = list(self.extensions) + (["STARTTLS"] if self._starttls and not encrypted else [])
                lines = ["sink", *offered]
                usual = "\r\n".join([f"250-{line}" for line in lines[:-1]] + [f"250 {lines[-1]}"])
                answer(verb, command, usual)
            elif verb == "STARTTLS" and self._starttls is not None:
                say("220 go ahead")
                await writer.drain()
                await writer.start_tls(self._starttls)
                encrypted = True
            elif verb == "MAIL":
                if answer(verb, command, "250 2.1.0 ok").startswith("2"):
                    envelope = Taken(command)
            elif verb == "RCPT" and envelope is not None:
                if answer(verb, command, "250 2.1.5 ok").startswith("2"):
                    envelope.recipients.append(command)
            elif verb == "DATA" and envelope is not None:
                if answer(verb, command, "354 go").startswith("354"):
                    envelope.octets = await self._message(reader)
                    await self._judge(envelope, answer)
                    envelope = None
            elif verb == "BDAT" and envelope is not None:
                envelope.octets += await reader.readexactly(int(command.split(" ")[1]))
                if command.upper().endswith("LAST"):
                    await self._judge(envelope, answer)
                    envelope = None
                else:
                    answer(verb, command, "250 2.0.0 chunk")
            elif verb == "QUIT":
                say("221 bye")
                return
            else:
                envelope = None if verb == "RSET" else envelope
                answer(verb, command, "250 2.0.0 ok")

    async def _judge(self, envelope: Taken, answer: Callable[[str, str, str], str]) -> None:
        if answer(".", ".", "250 2.0.0 taken").startswith("2"):
            async with self._changed:
                self.taken.append(envelope)
                self._changed.notify_all()

    async def _commands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[str]:
        while line := await reader.readline():
            command = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
            self.commands.append(command)
            yield command
            await writer.drain()

    async def _message(self, reader: asyncio.StreamReader) -> bytes:
        """RFC 5321 4.5.2, written once more and differently: whole lines, as they come."""
        lines = []
        while (line := await reader.readuntil(b"\r\n")) != b".\r\n":
            lines.append(line[1:] if line.startswith(b".") else line)
        return b"".join(lines)
