"""Hostile clients that fill every port with idle connections do not stop logins and deliveries of others."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import resource
import smtplib
import socket
import threading
import time
from collections.abc import Iterator
from imaplib import IMAP4
from pathlib import Path

import pytest

from adapter.config.schema import Limits, Settings
from tests.support.certificates import make_certificate
from tests.support.messages import message
from tests.support.processes.serve import Served, served
from tests.support.smtpd import PASSWORD, from_ada, make_store, serving, trusting
from tests.support.stores import ADA, BOB
from tests.support.waiting import PATIENCE, until, wait_until

_ADDRESSES = 20  # fewer than the budget of any port in a worker, as with the default limits
_CONNECTIONS = 20  # of each address to each port, in one wave
_LONGEST_SECONDS = 30.0  # on a busy machine; refused connections stayed out for a minute
_CONFIG = """
[server]
workers = {workers}
drain = "1 s"
[limits]
connections = 800
exempt = []
[lmtp]
trusted = ["127.0.0.1/32"]
"""
_PORTS = ("imap", "submission", "smtp", "lmtp")


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class _Attack(threading.Thread):
    """Opens idle connections from many addresses and keeps them open."""

    def __init__(self, ports: list[int]) -> None:
        super().__init__(daemon=True)
        self._ports = ports
        self.sockets: list[socket.socket] = []

    def run(self) -> None:
        for number in range(_CONNECTIONS * _ADDRESSES):
            for port in self._ports:
                one = socket.socket()
                self.sockets.append(one)
                with contextlib.suppress(OSError):
                    one.bind((f"127.0.1.{1 + number % _ADDRESSES}", 0))
                    one.settimeout(PATIENCE)
                    one.connect(("127.0.0.1", port))

    def close(self) -> None:
        for each in self.sockets:
            each.close()


class _ImapFrom(IMAP4):
    """An IMAP client with a source address of its own."""

    def __init__(self, address: str, port: int) -> None:
        self._address = address
        super().__init__("127.0.0.1", port, timeout=PATIENCE)

    def _create_socket(self, timeout: float | None) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout, (self._address, 0))


def _log_in(server: Served, address: str) -> None:
    with _ImapFrom(address, server.ports["imap"]) as session:
        session.login(ADA, PASSWORD)
        assert session.select("INBOX")[0] == "OK"


def _submit(server: Served, address: str) -> None:
    port = server.ports["submission"]
    with smtplib.SMTP("127.0.0.1", port, timeout=PATIENCE, source_address=(address, 0)) as client:
        client.login(ADA, PASSWORD)
        client.sendmail(ADA, [BOB], from_ada())


def _receive(server: Served, address: str) -> None:
    port = server.ports["smtp"]
    with smtplib.SMTP("127.0.0.1", port, timeout=PATIENCE, source_address=(address, 0)) as client:
        client.sendmail("x@y.test", [ADA], message())


def _deliver(server: Served, _: str) -> None:
    with smtplib.LMTP("127.0.0.1", server.ports["lmtp"]) as client:
        client.sendmail("x@y.test", [ADA], message())


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("many_descriptors")
def test_flood_of_idle_connections_does_not_lock_out_other_clients(tmp_path: Path, workers: int) -> None:
    make_store(tmp_path / "store")
    (tmp_path / "conf.toml").write_text(_CONFIG.format(workers=workers))
    listeners = [option for kind in _PORTS for option in (f"--{kind}", "127.0.0.1:0")]
    arguments = ("--config", str(tmp_path / "conf.toml"), *listeners)
    took: dict[str, list[float]] = {}
    with served(tmp_path / "store", *arguments, log=tmp_path / "log") as server:
        resident = IMAP4("127.0.0.1", server.ports["imap"], timeout=PATIENCE)
        resident.login(ADA, PASSWORD)

        # A user without earlier logins follows.
        addresses = (f"127.0.{2 + number // 250}.{1 + number % 250}" for number in itertools.count())

        def use_every_port() -> None:
            for use in (_log_in, _submit, _receive, _deliver):
                began = time.monotonic()
                try:
                    use(server, next(addresses))
                except Exception as error:
                    raise AssertionError(f"{use.__name__}: {took}") from error
                took.setdefault(use.__name__, []).append(time.monotonic() - began)

        for _ in range(2):
            attack = _Attack([server.ports[kind] for kind in _PORTS])
            attack.start()
            try:
                while attack.is_alive():
                    use_every_port()
                use_every_port()  # accepted after all of them, so that
                use_every_port()  # every budget is full here
                assert resident.noop()[0] == "OK"
            finally:
                attack.close()
                attack.join()
        resident.logout()
        log = server.log.read_text()
        assert "evicting the oldest" in log
        assert "Traceback" not in log
        assert max(map(max, took.values())) < _LONGEST_SECONDS, took
        assert server.stop() == 0


def test_evicted_connection_gets_a_temporary_error(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    (tmp_path / "conf.toml").write_text("[limits]\nconnections = 4\nexempt = []\n")
    listeners = [option for kind in ("imap", "submission", "smtp") for option in (f"--{kind}", "127.0.0.1:0")]
    arguments = ("--config", str(tmp_path / "conf.toml"), *listeners)
    with served(tmp_path / "store", *arguments, log=tmp_path / "log") as server, contextlib.ExitStack() as clients:
        for kind, word in (("imap", b"* BYE [UNAVAILABLE] "), ("submission", b"421 4.7.0 "), ("smtp", b"421 4.7.0 ")):
            opened = []
            for _ in range(2):
                client = clients.enter_context(socket.create_connection(("127.0.0.1", server.ports[kind]), PATIENCE))
                opened.append(clients.enter_context(client.makefile("rb")))
                assert opened[-1].readline()[:1] in b"*2"  # greeted after the older one
            assert opened[0].readline().startswith(word)
            assert opened[0].readline() == b""
        wait_until(lambda: server.log.read_text().count("evicting the oldest") == 3)
        assert server.stop() == 0


async def test_connection_is_evicted_during_a_tls_handshake(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    limits = Limits(connections_imap=2, connections_submission=2, exempt=())
    settings = Settings(limits=limits, tls=make_certificate(tmp_path))
    async with serving(tmp_path / "store", settings, ["imaps", "submissions"]) as running:
        for kind, greeting in (("imaps", b"* OK"), ("submissions", b"220 ")):
            reader, silent = await asyncio.open_connection("127.0.0.1", running.ports[kind])
            await until(lambda: running.services.admission.total == 1)
            client = await running.connect(kind, context=trusting())
            assert (await client.reader.readline()).startswith(greeting)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), PATIENCE) == b""  # no plain text
            for writer in (silent, client.writer):
                writer.close()
            await until(lambda: running.services.admission.total == len(running.services.connections) == 0)


async def test_transaction_outlasts_idle_connections_of_its_peer(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    async with serving(tmp_path / "store", Settings(limits=Limits(connections_smtp=3, exempt=()))) as running:
        sending = await running.hello()
        assert await sending.codes("MAIL FROM:<x@y.test>", f"RCPT TO:<{ADA}>", "DATA") == [250, 250, 354]
        idle = [await running.hello() for _ in range(2)]
        await running.hello()
        assert (await idle[0].reply()).code == 421
        sending.send(message() + b".\r\n")
        assert (await sending.reply()).code == 250
        assert len(running.inbox()) == 1
