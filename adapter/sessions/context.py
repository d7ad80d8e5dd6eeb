"""Server context: what all sessions of a process share, and how they are asked to end.

The store can be closed while the listeners stay: in maintenance there is no ``store``, and new connections are turned
away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from adapter.accounts.credentials import Credentials
from adapter.accounts.login import Authenticator
from adapter.accounts.login_records import LoginRecords
from adapter.accounts.provisioning import Provisioner
from adapter.accounts.recipients import Recipients
from adapter.config.schema import Settings
from adapter.net.shared_counts import SharedCounts
from adapter.net.tls import Certificates
from adapter.sessions.admission import Admission
from adapter.store.effects import Actor
from adapter.transport.commit_queue import CommitQueue
from adapter.transport.sent_copy import SentCopies
from adapter.transport.transport import Transport


class ServedConnection(Protocol):
    """A connection that can be asked to end."""

    def finish(self) -> None:
        """Notify the client and end as soon as nothing is in flight."""

    def cut_off(self) -> None:
        """End now; notify the client if the session is waiting for it."""


class Connections:
    """The open connections of all listeners."""

    def __init__(self) -> None:
        self._open: set[ServedConnection] = set()
        self._none = asyncio.Event()
        self._none.set()

    def add(self, connection: ServedConnection) -> None:
        self._open.add(connection)
        self._none.clear()

    def discard(self, connection: ServedConnection) -> None:
        self._open.discard(connection)
        if not self._open:
            self._none.set()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[ServedConnection]:
        return iter(list(self._open))

    async def drain(self, seconds: float) -> bool:
        """Ask all to finish; return whether they did in time."""
        for connection in self:
            connection.finish()
        return await self.are_gone_within(seconds)

    async def cut_off(self, seconds: float) -> bool:
        """End all; return whether they were gone in time."""
        for connection in self:
            connection.cut_off()
        return await self.are_gone_within(seconds)

    async def are_gone_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._none.wait()
        except TimeoutError:
            return False
        return True


@dataclass(slots=True)
class OpenStore:
    """An open store, and everything that is opened and closed with it."""

    settings: Settings  # replaced by a reload
    transport: Transport
    recipients: Recipients
    provisioner: Provisioner
    credentials: Credentials
    authenticator: Authenticator
    records: LoginRecords
    pool: ThreadPoolExecutor  # for rare blocking work: queries, large writes
    commits: CommitQueue
    sent_copies: SentCopies


@dataclass(slots=True)
class ServerContext:
    """The state that all sessions of a process share."""

    settings: Settings
    hostname: str
    certificates: Certificates
    admission: Admission
    store: OpenStore | None = None
    #: The process is about to end; new connections are turned away.
    ending: bool = False
    connections: Connections = field(default_factory=Connections)
    #: Users of the store register here: called when its sessions are gone, before it is closed.
    before_close: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    #: Called when the settings have been reloaded.
    after_reload: list[Callable[[], None]] = field(default_factory=list)


def open_store(root: str, settings: Settings, counts: SharedCounts | None = None) -> OpenStore:
    """Open a store with its accounts. Blocking. Raises MailError, and ConfigError for contradictory settings."""
    transport = Transport.open(root, actor=Actor("", "server"))
    try:
        recipients = Recipients(settings, transport)
        provisioner = Provisioner(settings, transport, recipients)
        credentials = Credentials.open(transport)
        counts = counts or SharedCounts()
        records = LoginRecords(transport.root, counts.secret)
        authenticator = Authenticator(settings, credentials, recipients.is_active, counts, provisioner, records)
    except BaseException:
        transport.close()
        raise
    pool = ThreadPoolExecutor(settings.server.threads, thread_name_prefix="markpost-pool")
    commits = CommitQueue(transport, settings.server.threads)
    sent_copies = SentCopies(transport)
    return OpenStore(
        settings, transport, recipients, provisioner, credentials, authenticator, records, pool, commits, sent_copies
    )


def close_store(store: OpenStore) -> None:
    """Finish pending commits, then close the store. Blocking."""
    store.commits.close()
    store.pool.shutdown(wait=True)
    store.authenticator.close()
    store.records.close()
    store.provisioner.close()
    store.transport.close()
    store.credentials.close()
