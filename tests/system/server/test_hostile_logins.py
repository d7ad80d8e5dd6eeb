"""Clients that open logins and disconnect, over real sockets: they count as failures, and other users can log in.

Clients come from addresses of their own in 127.0.0.0/8, none of which is exempt from throttling.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import resource
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from adapter.accounts.login import Authenticator
from adapter.config.loader import Seconds
from adapter.config.schema import ImapSettings, Login, Settings, Submission
from tests.support.imapd import PASSWORD as IMAP_PASSWORD
from tests.support.imapd import make_store
from tests.support.smtpd import Running, serving
from tests.support.stores import ADA
from tests.support.waiting import PATIENCE, until

USERS = [f"user{number}@example.test" for number in range(16)]
HOSTILE = "127.0.0.2"
FLOOD = 300
HOUR = Seconds(3600.0)


class Client:
    def __init__(self, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.kind = kind
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, running: Running, kind: str, address: str) -> Client:
        """Connect and read the greeting."""
        opened = await asyncio.open_connection("127.0.0.1", running.ports[kind], local_addr=(address, 0))
        client = cls(kind, *opened)
        await client.line()
        return client

    async def line(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.readline()

    def begin_login(self, user: str, password: str) -> None:
        if self.kind == "imap":
            self.writer.write(f'a LOGIN {user} "{password}"\r\n'.encode())
        else:
            response = base64.b64encode(f"\0{user}\0{password}".encode()).decode()
            self.writer.write(f"EHLO c.test\r\nAUTH PLAIN {response}\r\n".encode())

    def begin_scram(self, user: str) -> None:
        response = base64.b64encode(f"n,,n={user},r=abc".encode()).decode()
        hello, command = ("", "a AUTHENTICATE") if self.kind == "imap" else ("EHLO c.test\r\n", "AUTH")
        self.writer.write(f"{hello}{command} SCRAM-SHA-256 {response}\r\n".encode())

    async def outcome(self) -> bytes:
        """Return the response to the login in progress."""
        while (line := await self.line()).startswith(b"250"):  # to EHLO
            pass
        return line

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hostile") / "store"
    make_store(made, ADA, *USERS)
    return made


@pytest_asyncio.fixture
async def running(root: Path, request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    settings = getattr(request, "param", None)
    async with serving(root, settings, ["imap", "submission"]) as served:
        yield served


def authenticator(running: Running) -> Authenticator:
    assert running.services.store is not None
    return running.services.store.authenticator


def failures(running: Running, name: str) -> int:
    return authenticator(running)._throttle._failures(name)


DELAYED = Settings(login=Login(free_failures=0, delay=HOUR, longest_delay=HOUR))


@pytest.mark.parametrize("kind", ["imap", "submission"])
@pytest.mark.parametrize("running", [DELAYED], indirect=True)
async def test_client_that_disconnects_during_a_login_counts_as_failure(running: Running, kind: str) -> None:
    client = await Client.open(running, kind, HOSTILE)
    client.begin_login(ADA, "guess")
    await until(lambda: len(authenticator(running)._delayed))
    await client.close()
    await until(lambda: not len(authenticator(running)._delayed))
    await until(lambda: failures(running, f"user {ADA} at {HOSTILE}") == 1)
    assert failures(running, f"peer {HOSTILE}") == 1
    assert failures(running, f"user {ADA}") == 0
    await until(lambda: not len(running.services.connections))


@pytest.mark.parametrize("kind", ["imap", "submission"])
@pytest.mark.parametrize("cancels", [True, False])
async def test_scram_abandoned_after_the_challenge_counts_as_failure(
    running: Running, kind: str, cancels: bool
) -> None:
    client = await Client.open(running, kind, HOSTILE)
    client.begin_scram(ADA)
    assert (await client.outcome()).startswith((b"+ ", b"334 "))
    if cancels:
        client.writer.write(b"*\r\n")
        assert (await client.line()).startswith((b"a BAD", b"501"))
    await client.close()
    await until(lambda: failures(running, f"user {ADA} at {HOSTILE}") == 1)
    assert failures(running, f"user {ADA}") == failures(running, f"peer {HOSTILE}") == 1


_PROXY = b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 587\r\n"
_LOOPBACK = ("127.0.0.0/8",)
_SAID_BEFORE = {
    "ID": ("imap", b"", b'i ID ("x-originating-ip" "192.0.2.7")\r\n'),
    "XCLIENT": ("submission", b"", b"EHLO proxy\r\nXCLIENT ADDR=192.0.2.7\r\n"),
    "PROXY": ("submission", _PROXY, b""),
}


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("way", _SAID_BEFORE)
async def test_client_of_a_trusted_proxy_is_throttled_instead_of_the_proxy(root: Path, way: str, trusted: bool) -> None:
    kind, header, commands = _SAID_BEFORE[way]
    proxies = _LOOPBACK if trusted else ()
    settings = Settings(
        login=Login(allow_plaintext=True),
        imap=ImapSettings(id_from=proxies),
        submission=Submission(xclient_from=proxies, proxy_from=proxies if header else ()),
    )
    async with serving(root, settings, ["imap", "submission"]) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.ports[kind])
        client = Client(kind, reader, writer)
        writer.write(header if trusted else b"")  # an untrusting server would take it for a command
        await client.line()
        writer.write(commands)
        client.begin_login(ADA, "wrong")
        async with asyncio.timeout(PATIENCE):
            while not (await client.line()).startswith((b"a NO", b"535")):
                pass
        await client.close()
        counted, other = ("192.0.2.7", "127.0.0.1") if trusted else ("127.0.0.1", "192.0.2.7")
        assert failures(running, f"user {ADA} at {counted}") == failures(running, f"peer {counted}") == 1
        assert failures(running, f"user {ADA} at {other}") == failures(running, f"peer {other}") == 0


async def log_in(running: Running, kind: str, address: str, user: str) -> tuple[bytes, float]:
    """Return the response, and the seconds from the connection to it."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    client = await Client.open(running, kind, address)
    client.begin_login(user, IMAP_PASSWORD)
    answer = await client.outcome()
    seconds = loop.time() - began
    await client.close()
    return answer, seconds


@contextlib.contextmanager
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_other_users_log_in_while_one_address_abandons_hundreds_of_logins(running: Running) -> None:
    """The hostile address tries these users and others, on both ports."""
    answer, alone = await log_in(running, "imap", "127.0.1.1", ADA)
    assert answer.startswith(b"a OK")
    kinds = ["imap", "submission"]
    victims = [*USERS, *(f"unknown{number}@example.test" for number in range(FLOOD))]
    with many_descriptors():
        flood = [await Client.open(running, kinds[number % 2], HOSTILE) for number in range(FLOOD)]
        for number, client in enumerate(flood):
            client.begin_login(victims[number // 2 % len(victims)], f"guess {number}")
        await until(lambda: len(authenticator(running)._hashing) > 10)
        for client in flood[::2]:
            client.writer.transport.abort()
        outcomes = await asyncio.gather(
            *(log_in(running, kinds[n % 2], f"127.0.2.{n + 1}", user) for n, user in enumerate(USERS))
        )
        for client in flood[1::2]:
            client.writer.transport.abort()
    assert [answer for answer, _ in outcomes if not answer.startswith((b"a OK", b"235"))] == []
    # Sixteen logins share two threads with one check of the flood for each of theirs.
    slowest = max(seconds for _, seconds in outcomes)
    assert slowest < 64 * alone + 10, (slowest, alone)
    # The hostile address is delayed now, and none of its logins is left.
    await until(lambda: not len(authenticator(running)._delayed))
    assert failures(running, f"peer {HOSTILE}") > Login().free_users
