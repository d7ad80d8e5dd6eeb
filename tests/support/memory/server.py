"""IMAP sessions without sockets: real connections and sessions over a backend of the test's choice."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from adapter.config.schema import Settings
from adapter.imap.server import ImapServer, OpenedBackend
from adapter.net.tls import Certificates
from adapter.read_model.mailboxes import CacheLimits
from adapter.sessions.admission import Admission
from adapter.sessions.context import OpenStore, ServerContext
from adapter.store.quotas import Quotas
from protocol.sasl.mechanisms import Success
from tests.support.memory.reader import MemoryReader
from tests.support.memory.store import MemoryStore
from tests.support.memory.writer import MemoryWriter

if TYPE_CHECKING:
    from adapter.accounts.login import Authenticator
    from adapter.imap.connection import Connection
    from adapter.observability.peer import Peer

_LITERAL = re.compile(rb"~?\{(\d+)\}\r\n\Z")


class AnyPassword:
    """An authenticator that accepts every password."""

    mechanisms = ("PLAIN",)

    async def check_password(self, user: str, password: str, peer: Peer) -> Success:
        return Success(user)


class MemoryBackend:
    """The backend of an IMAP server over a memory store."""

    def __init__(self, store: MemoryStore, quotas: Quotas | None = None) -> None:
        self._store = store
        self.reader = MemoryReader(store, quotas)

    @property
    def authenticator(self) -> Authenticator:
        return cast("Authenticator", AnyPassword())

    def writer(self, address: str) -> MemoryWriter:
        return MemoryWriter(self._store, self.reader, address)

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def configure(self, limits: CacheLimits, quotas: Quotas) -> None:
        self.reader.quotas = quotas


class _Pipe(asyncio.Transport):
    """The server's end of a connection that has no socket."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._client.received += bytes(data)
        self._client.arrived.set()

    def is_closing(self) -> bool:
        return self._client.closed

    def close(self) -> None:
        self._client.closed = True
        self._client.arrived.set()

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Client:
    """One connection, with its octets in both directions."""

    def __init__(self, connection: Connection) -> None:
        self.received = b""
        self.arrived = asyncio.Event()
        self.closed = False
        self._connection = connection
        self._number = 0
        connection.connection_made(_Pipe(self))

    def send(self, data: bytes) -> None:
        self._connection.data_received(data)

    async def response(self) -> bytes:
        """The next response with its literals; empty at the end of the connection."""
        end = 0
        while True:
            line_end = self.received.find(b"\n", end)
            if line_end < 0:
                if self.closed:
                    return b""
                self.arrived.clear()
                await asyncio.wait_for(self.arrived.wait(), 20)
                continue
            end = line_end + 1
            literal = _LITERAL.search(self.received[:end])
            if literal is None:
                break
            end += int(literal[1])
        whole, self.received = self.received[:end], self.received[end:]
        return whole

    async def run(self, command: str | bytes) -> list[bytes]:
        """Run a command; the responses, the last of which is the tagged one without its tag."""
        self._number += 1
        tag = b"t%d " % self._number
        self.send(tag + (command.encode() if isinstance(command, str) else command) + b"\r\n")
        responses: list[bytes] = []
        while True:
            response = (await self.response()).removesuffix(b"\r\n")
            if response.startswith(tag):
                return [*responses, response.removeprefix(tag)]
            assert response or not self.closed, "the connection is closed"
            responses.append(response)

    async def ok(self, command: str | bytes) -> list[bytes]:
        """Run a command that succeeds; its untagged responses."""
        *untagged, tagged = await self.run(command)
        assert tagged.startswith(b"OK"), (command, tagged)
        return untagged

    async def append(self, mailbox: str, message: bytes, options: str = "") -> bytes:
        arguments = f"APPEND {mailbox} {options}{' ' if options else ''}{{{len(message)}+}}\r\n"
        return (await self.run(arguments.encode() + message))[-1]


class SocketlessServer:
    """An IMAP server that hands out connections; call it inside a running event loop."""

    def __init__(
        self, make_backend: Callable[[OpenStore, CacheLimits, Quotas], OpenedBackend], settings: Settings | None = None
    ) -> None:
        settings = settings or Settings()
        self.context = ServerContext(
            settings=settings,
            hostname="mail.example.test",
            certificates=Certificates(settings.tls),
            admission=Admission(settings.limits),
            store=cast("OpenStore", object()),  # used by the backend alone
        )
        self._server = ImapServer(self.context, make_backend)

    async def connect(self) -> Client:
        client = Client(self._server.connection(implicit_tls=False))
        assert (await client.response()).startswith(b"* OK")
        return client

    async def login(self, user: str = "ada@example.test") -> Client:
        client = await self.connect()
        await client.ok(f"LOGIN {user} secret")
        return client

    async def close(self) -> None:
        for close in self.context.before_close:
            await close()


def memory_server(store: MemoryStore, settings: Settings | None = None, **imap: Any) -> SocketlessServer:
    """A server over a memory store; ``imap`` changes settings of its section."""
    settings = settings or Settings()
    settings = replace(settings, imap=replace(settings.imap, **imap))
    return SocketlessServer(lambda _, limits, quotas: MemoryBackend(store, quotas), settings)
