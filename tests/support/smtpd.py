"""A running SMTP, LMTP and submission server in the test's own event loop, and a client that reads replies."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import os
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from adapter.config.loader import Seconds
from adapter.config.schema import Settings
from adapter.net import endpoints
from adapter.net.tls import Certificates
from adapter.server.listeners import Acceptor, ConnectionFactory
from adapter.server.store_lifecycle import StoreLifecycle
from adapter.sessions.admission import Admission
from adapter.sessions.context import ServerContext
from adapter.store.disk import Directories
from adapter.transport import operations as op
from adapter.transport.transport import Transport, create_store
from tests.support.passwords import set_passwords
from tests.support.stores import ADA, BOB, rows
from tests.support.waiting import PATIENCE

PASSWORD = "correct horse"
HOST = "mx.example.test"


class Reply(NamedTuple):
    code: int
    lines: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def enhanced(self) -> str:
        return self.lines[-1].partition(" ")[0]


class ConnectionEnded(Exception):  # noqa: N818 - not an error of the tests
    """The server closed the connection."""


@dataclass
class Running:
    services: ServerContext
    keeper: StoreLifecycle
    ports: dict[str, int]

    @property
    def transport(self) -> Transport:
        assert self.services.store is not None
        return self.services.store.transport

    async def connect(self, kind: str = "smtp", **options: object) -> SmtpClient:
        return await SmtpClient.open(self.ports[kind], **options)  # type: ignore[arg-type]

    async def hello(self, kind: str = "smtp") -> SmtpClient:
        """Connected and greeted."""
        client = await self.connect(kind)
        assert (await client.reply()).code == 220
        assert (await client.ask(f"{'LHLO' if kind == 'lmtp' else 'EHLO'} client.test")).code == 250
        return client

    def inbox(self, address: str = ADA, folder: str = "INBOX") -> list[bytes]:
        """The octets of every message, oldest first."""
        return [self.transport.content.octets(row.message_id) for row in rows(self.transport, folder, address)]


def from_ada(subject: str = "Hello", extra: str = "", body: str = "Hello Bob\r\n") -> bytes:
    """Submissions by ada."""
    return f"From: Ada <{ADA}>\r\nTo: {BOB}\r\nSubject: {subject}\r\n{extra}\r\n{body}".encode()


def make_store(root: str | os.PathLike[str], *accounts: str) -> None:
    create_store(os.fspath(root))
    accounts = accounts or (ADA, BOB)
    with Transport.open(root) as transport:
        for address in accounts:
            transport.run(op.Register(address))
    set_passwords(root, PASSWORD, accounts[0])


@contextlib.asynccontextmanager
async def serving(
    root: str | os.PathLike[str],
    settings: Settings | None = None,
    kinds: Sequence[str] = ("smtp", "submission", "lmtp"),
) -> AsyncIterator[Running]:
    settings = settings or Settings()
    settings = dataclasses.replace(settings, server=dataclasses.replace(settings.server, drain=Seconds(0.5)))
    services = ServerContext(
        settings=settings,
        hostname=HOST,
        certificates=Certificates(settings.tls),
        admission=Admission(settings.limits),
    )
    with contextlib.closing(Directories(os.fspath(root))) as directories:
        keeper = StoreLifecycle(os.fspath(root), services, directories)
        await keeper.open()
        servers, ports = [], {}
        for kind in kinds:
            endpoint = endpoints.parse(kind, "127.0.0.1:0")
            listener = endpoints.listen(endpoint, backlog=600)
            servers.append(Acceptor(listener, ConnectionFactory(services).for_listener(kind)))
            ports[kind] = listener.endpoint.port
        stop = asyncio.Event()
        watching = asyncio.create_task(keeper.watch(stop))
        try:
            yield Running(services, keeper, ports)
        finally:
            services.ending = True
            stop.set()
            await asyncio.wait([watching])
            for server in servers:
                server.close()
            await keeper.close()


def trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class SmtpClient:
    """Sends any octets, and reads replies."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, context: ssl.SSLContext | None = None, first: bytes = b"") -> SmtpClient:
        """``first`` is sent before TLS begins, as a proxy does."""
        if not first:
            return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context, limit=1 << 20))
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        writer.write(first)
        await writer.drain()
        if context is not None:
            await writer.start_tls(context)
        return cls(reader, writer)

    def send(self, data: bytes | str) -> None:
        self.writer.write(data.encode() if isinstance(data, str) else data)

    async def reply(self) -> Reply:
        lines = []
        while True:
            async with asyncio.timeout(PATIENCE):
                try:
                    line = await self.reader.readline()
                except ConnectionError:
                    line = b""
            if not line:
                raise ConnectionEnded
            assert line.endswith(b"\r\n"), line
            assert line[:3].isdigit(), line
            assert line[3:4] in (b" ", b"-"), line
            lines.append(line[4:-2].decode("ascii"))
            if line[3:4] == b" ":
                return Reply(int(line[:3]), lines)

    async def ask(self, command: str | bytes) -> Reply:
        self.send(command.encode() + b"\r\n" if isinstance(command, str) else command + b"\r\n")
        return await self.reply()

    async def codes(self, *commands: str) -> list[int]:
        """The codes of the replies to commands sent one after the other."""
        return [(await self.ask(command)).code for command in commands]

    async def start_tls(self) -> None:
        assert (await self.ask("STARTTLS")).code == 220
        await self.writer.start_tls(trusting())

    async def login(self, user: str = ADA, password: str = PASSWORD) -> Reply:
        response = base64.b64encode(f"\0{user}\0{password}".encode()).decode()
        return await self.ask(f"AUTH PLAIN {response}")

    async def mail(self, octets: bytes, *recipients: str, sender: str = "bob@other.test") -> Reply:
        """One transaction; the reply to the message (with LMTP the first)."""
        assert (await self.ask(f"MAIL FROM:<{sender}>")).code == 250
        for recipient in recipients or (ADA,):
            given = await self.ask(f"RCPT TO:<{recipient}>")
            assert given.code == 250, given
        assert (await self.ask("DATA")).code == 354
        self.send(octets + b".\r\n")
        return await self.reply()

    async def ended(self) -> bool:
        """True if the server closed the connection without another reply."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.close()
