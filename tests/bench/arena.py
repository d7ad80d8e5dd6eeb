"""Peers with filled stores, and what the rows need of them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.bench.imap_client import RawClient
from tests.bench.peers import ADA, PASSWORD, Markpost, Peer
from tests.support.mail.real_mail import RealMail

TARGET = "Target"  # the folder that COPY, MOVE and APPEND fill


@dataclass(frozen=True)
class Effort:
    """Amount of work in a sample."""

    appends: int = 40
    deliveries: int = 60  # over one connection
    concurrent_deliveries: int = 160  # over sixteen
    latencies: int = 10
    logins: int = 20
    connections: int = 200
    singles: int = 200  # messages of BODY one by one
    sample_seconds: float = 0.25  # in which a fast command is repeated
    restarts: bool = True  # for first use
    settle_seconds: float | None = None  # instead of those of the peer


FULL = Effort()
#: Proves that every row works, in seconds.
SMOKE = Effort(2, 2, 4, 1, 1, 3, 3, sample_seconds=0, restarts=False, settle_seconds=0.01)


@dataclass
class Arena:
    """One peer with one store of ``size`` messages in the inbox of Ada."""

    peer: Peer
    size: int
    mail: RealMail
    effort: Effort = FULL
    _next: int = field(default=0, init=False)

    def new_messages(self, count: int, size: int | None = None) -> list[bytes]:
        """Return messages that this store does not have; those without ``size`` reply to stored ones."""
        first = self.size + self._next
        self._next += count
        return [self.mail.octets(number, size) for number in range(first, first + count)]

    def restart(self) -> None:
        if self.effort.restarts:
            self.peer.restart()

    @contextlib.contextmanager
    def cold(self, *, text: bool = False) -> Iterator[None]:
        """A server that was just started, without caches; with ``text`` also without an index of texts."""
        if self.effort.restarts:
            self.peer.restart_cold(text=text)
        yield
        if self.effort.restarts and text:
            self.peer.restore_caches()

    @contextlib.contextmanager
    def session(self, folder: str | None = "INBOX", address: str = ADA) -> Iterator[RawClient]:
        """A connection with a folder selected."""
        client = RawClient(self.peer.imap, address, PASSWORD)
        try:
            if folder is not None:
                client.run(f"SELECT {folder}")
            yield client
        finally:
            client.close()

    def empty_folder(self, folder: str = TARGET) -> None:
        """Make the folder, or remove all its messages."""
        with self.session(None) as client:
            with contextlib.suppress(RuntimeError):  # it exists
                client.run(f"CREATE {folder}")
            if count(client, folder):
                client.run(f"SELECT {folder}")
                client.run("STORE 1:* +FLAGS.SILENT (\\Deleted)")
                client.run("EXPUNGE")

    def truncate_inbox(self) -> None:
        """Remove the newest messages until ``size`` are left."""
        with self.session(None) as client:
            if count(client, "INBOX") > self.size:
                client.run("SELECT INBOX")
                client.run(f"STORE {self.size + 1}:* +FLAGS.SILENT (\\Deleted)")
                client.run("EXPUNGE")


def count(client: RawClient, folder: str) -> int:
    answer = client.run(f"STATUS {folder} (MESSAGES)")
    match = re.search(rb"\(MESSAGES (\d+)\)", answer)
    if match is None:
        raise RuntimeError(answer)
    return int(match[1])


def make_arenas(peers: list[Peer], size: int, mail: RealMail, effort: Effort) -> list[Arena]:
    """Create and fill the stores of all peers, and start them."""
    filled: Markpost | None = None
    for peer in peers:
        os.makedirs(peer.directory, exist_ok=True)
        if isinstance(peer, Markpost) and filled is not None:
            peer.fill_from(filled)
            continue
        peer.create()
        if size:
            peer.fill(mail.octets(number) for number in range(size))
        if isinstance(peer, Markpost):
            filled = peer
        if effort.settle_seconds is not None:
            peer.settle_seconds = effort.settle_seconds
    arenas = [Arena(peer, size, mail, effort) for peer in peers]
    for arena in arenas:
        arena.peer.start()
        arena.empty_folder()
        with arena.session() as client:
            if count(client, "INBOX") != size:
                raise RuntimeError(f"{arena.peer.name}: {size} messages were stored, IMAP does not show as many")
    return arenas
