"""What all connections of a process share, and how they are told to end.

The store can go away while the listeners stay: in maintenance ``store`` is None and new connections are turned away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from adapter.accounts.credentials import Credentials
from adapter.accounts.login import Authenticator
from adapter.accounts.login_records import LoginRecords
from adapter.accounts.provisioning import Provisioner
from adapter.accounts.recipients import Recipients
from adapter.config.schema import Settings
from adapter.hooks import runner as hooks
from adapter.net.shared_counts import SharedCounts
from adapter.net.tls import Certificates
from adapter.sessions.admission import Admission
from adapter.transport.commit_queue import CommitQueue
from adapter.transport.sent_copy import SentCopies
from adapter.transport.transport import Transport

if TYPE_CHECKING:
    from adapter.imap.server import ImapServer


class ServedConnection(Protocol):
    """A connection that can be asked to end."""

    def finish(self) -> None:
        """End as soon as nothing is in flight, with a word to the client."""

    def cut_off(self) -> None:
        """End now, with a word to a client that is waited for."""


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

    async def drain(self, seconds: float) -> bool:
        """Ask all to finish; whether they did in time."""
        for connection in list(self._open):
            connection.finish()
        return await self._gone_within(seconds)

    async def cut_off(self, seconds: float) -> bool:
        """End all; whether they were gone in time."""
        for connection in list(self._open):
            connection.cut_off()
        return await self._gone_within(seconds)

    async def _gone_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._none.wait()
        except TimeoutError:
            return False
        return True


@dataclass(slots=True)
class OpenStore:
    """An open store and everything that lives and ends with it."""

    settings: Settings  # replaced when they are read again
    transport: Transport
    recipients: Recipients
    newcomers: Provisioner
    credentials: Credentials
    authenticator: Authenticator
    records: LoginRecords
    pool: ThreadPoolExecutor  # for work that blocks and is rare: queries, large writes
    commits: CommitQueue
    sent_copies: SentCopies


@dataclass(slots=True)
class ServerContext:
    settings: Settings
    hostname: str
    certificates: Certificates
    admission: Admission
    store: OpenStore | None = None
    #: No new connection is served: the process is about to end.
    ending: bool = False
    connections: Connections = field(default_factory=Connections)
    #: What lives on the store: called when its sessions are gone and before it goes itself.
    before_close: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    #: Called when the settings have been read again.
    after_reload: list[Callable[[], None]] = field(default_factory=list)
    #: Of all IMAP listeners; made by the first of them.
    imap: ImapServer | None = None


def open_store(root: str, settings: Settings, counts: SharedCounts | None = None) -> OpenStore:
    """Blocks. Raises MailError, and ConfigError for settings that contradict themselves."""
    transport = Transport.open(root)
    try:
        recipients = Recipients(settings, transport)
        newcomers = Provisioner(settings, transport, recipients)
        credentials = Credentials.open(transport)
        counts = counts or SharedCounts()
        records = LoginRecords(transport.root, counts.secret)
        authenticator = Authenticator(settings, credentials, recipients.is_active, counts, newcomers, records)
        hooks.begin(transport, settings.hook)  # they miss nothing that is accepted from now on
    except BaseException:
        transport.close()
        raise
    pool = ThreadPoolExecutor(settings.server.threads, thread_name_prefix="markpost-pool")
    commits = CommitQueue(transport, settings.server.threads)
    sent_copies = SentCopies(transport)
    return OpenStore(
        settings, transport, recipients, newcomers, credentials, authenticator, records, pool, commits, sent_copies
    )


def close_store(store: OpenStore) -> None:
    """Finish what was begun, then let go of the store. Blocks."""
    store.commits.close()
    store.pool.shutdown(wait=True)
    store.authenticator.close()
    store.records.close()
    store.newcomers.close()
    store.transport.close()
    store.credentials.close()
