"""A running IMAP server in the test's own event loop, and a client that reads line by line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from adapter.config.schema import Settings
from adapter.imap.session import Session
from adapter.net import endpoints
from adapter.net.endpoints import Endpoint
from adapter.net.tls import Certificates
from adapter.server.listeners import Acceptor, ConnectionFactory
from adapter.server.store_lifecycle import StoreLifecycle
from adapter.sessions.admission import Admission
from adapter.sessions.context import ServerContext
from adapter.store.disk import Directories
from adapter.transport import operations as op
from adapter.transport.transport import Transport, create_store
from tests.support.passwords import set_passwords
from tests.support.stores import ADA, BOB
from tests.support.waiting import PATIENCE

PASSWORD = "secret"
_LITERAL = re.compile(rb"\{(\d+)\}\r\n\Z")


@dataclass
class Running:
    """A server on loopback."""

    services: ServerContext
    keeper: StoreLifecycle
    port: int
    tls_port: int

    @property
    def session(self) -> Session:
        """The server's side of the only connection."""
        (session,) = self.services.connections
        assert isinstance(session, Session)
        return session

    @property
    def transport(self) -> Transport:
        assert self.services.store is not None
        return self.services.store.transport

    async def connect(self, *, implicit_tls: bool = False) -> ImapClient:
        if implicit_tls:
            return await ImapClient.connect(self.tls_port, _trusting())
        return await ImapClient.connect(self.port)

    async def login(self, user: str = "ada@example.test") -> ImapClient:
        client = await self.connect()
        await client.line()
        await client.ok(f"LOGIN {user} {PASSWORD}")
        return client


Start: TypeAlias = Callable[..., contextlib.AbstractAsyncContextManager[Running]]


def make_store(root: str | os.PathLike[str], *accounts: str) -> None:
    """A store with these accounts, all with the same password."""
    create_store(os.fspath(root))
    with Transport.open(root) as transport:
        for address in accounts:
            transport.run(op.Register(address))
    set_passwords(root, PASSWORD, *accounts)


@contextlib.asynccontextmanager
async def serving(root: str | os.PathLike[str], settings: Settings | None = None) -> AsyncIterator[Running]:
    settings = settings or Settings()
    services = ServerContext(
        settings=settings,
        hostname="mail.example.test",
        certificates=Certificates(settings.tls),
        admission=Admission(settings.limits),
    )
    with contextlib.closing(Directories(os.fspath(root))) as directories:
        keeper = StoreLifecycle(os.fspath(root), services, directories)
        await keeper.open()
        connections = ConnectionFactory(services)
        servers, ports = [], []
        for kind in ("imap", "imaps"):
            listener = endpoints.listen(Endpoint(kind, "127.0.0.1", 0), backlog=200)
            servers.append(Acceptor(listener, connections.for_listener(kind)))
            ports.append(listener.endpoint.port)
        stop = asyncio.Event()
        watching = asyncio.create_task(keeper.watch(stop))
        try:
            yield Running(services, keeper, *ports)
        finally:
            services.ending = True
            stop.set()
            await asyncio.wait([watching])
            for server in servers:
                server.close()
            await keeper.close()


def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class ImapClient:
    """Sends any octets; of replies it parses lines, literals and tags."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0
        self._inflate: zlib._Decompress | None = None
        self._deflate: zlib._Compress | None = None
        self._plain = b""

    @classmethod
    async def connect(cls, port: int, context: ssl.SSLContext | None = None) -> ImapClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 26, ssl=context))

    def send(self, data: bytes) -> None:
        if self._deflate is not None:
            data = self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        self._writer.write(data)

    async def line(self, patience: float = PATIENCE) -> bytes:
        """The next line with its end; empty at the end of the connection."""
        async with asyncio.timeout(patience):
            return await self._read_line()

    async def _read_line(self) -> bytes:
        if self._inflate is None:
            try:
                return await self._reader.readline()
            except ConnectionResetError:
                return b""
        while b"\n" not in self._plain:
            data = await self._reader.read(1 << 16)
            if not data:
                break
            self._plain += self._inflate.decompress(data)
        line, newline, self._plain = self._plain.partition(b"\n")
        return line + newline

    async def exactly(self, size: int) -> bytes:
        async with asyncio.timeout(PATIENCE):
            while self._inflate is not None and len(self._plain) < size:
                self._plain += self._inflate.decompress(await self._reader.read(1 << 16))
            if self._inflate is None:
                return await self._reader.readexactly(size)
        data, self._plain = self._plain[:size], self._plain[size:]
        return data

    async def response(self) -> bytes:
        """The next whole response, literals included."""
        whole = b""
        while True:
            line = await self.line()
            whole += line
            literal = _LITERAL.search(line)
            if literal is None:
                return whole
            whole += await self.exactly(int(literal[1]))

    def start(self, command: str | bytes) -> bytes:
        """Send a command under a fresh tag."""
        self._number += 1
        tag = b"t%d" % self._number
        self.send(tag + b" " + (command.encode() if isinstance(command, str) else command) + b"\r\n")
        return tag

    async def finish(self, tag: bytes) -> tuple[list[bytes], bytes]:
        """Untagged responses, and the tagged one without its tag."""
        untagged: list[bytes] = []
        while True:
            response = await self.response()
            if response.startswith(tag + b" "):
                return untagged, response[len(tag) + 1 :].rstrip(b"\r\n")
            assert response, (untagged, "connection closed")
            untagged.append(response.rstrip(b"\r\n") if not _LITERAL.search(response) else response)

    async def run(self, command: str | bytes) -> tuple[list[bytes], bytes]:
        return await self.finish(self.start(command))

    async def ok(self, command: str | bytes) -> list[bytes]:
        untagged, status = await self.run(command)
        assert status.startswith(b"OK"), (command, untagged, status)
        return untagged

    async def append(self, mailbox: str, message: bytes, options: str = "") -> bytes:
        """The tagged answer to an APPEND with a literal that does not wait."""
        tag = self.start(
            f"APPEND {mailbox} {options}{' ' if options else ''}{{{len(message)}+}}\r\n".encode() + message
        )
        return (await self.finish(tag))[1]

    async def start_tls(self) -> None:
        await self._writer.start_tls(_trusting())

    def start_compression(self) -> None:
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)

    def end_compression(self) -> None:
        assert not self._plain
        self._inflate = self._deflate = None

    @property
    def leftover(self) -> bytes:
        """Octets received and not read yet."""
        return self._plain + bytes(self._reader._buffer)  # type: ignore[attr-defined]

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await self._writer.wait_closed()


@pytest.fixture
def start(tmp_path: Path) -> Start:
    @asynccontextmanager
    async def run(**sections: dict[str, Any]) -> AsyncIterator[Running]:
        settings = Settings()
        for section, values in sections.items():
            changed: dict[str, Any] = {section: replace(getattr(settings, section), **values)}
            settings = replace(settings, **changed)
        root = tmp_path / "store"
        await asyncio.to_thread(make_store, root, ADA, BOB)
        async with serving(root, settings) as running:
            yield running

    return run
