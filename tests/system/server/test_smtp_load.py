"""Many slow clients and large messages: fast clients are served, and memory stays bounded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import smtplib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.transport.transport import Transport
from tests.support.messages import message
from tests.support.processes.serve import Served, served
from tests.support.smtpd import make_store
from tests.support.stores import ADA, rows
from tests.support.waiting import PATIENCE

SLOW = 500
MIB = 1 << 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    make_store(tmp_path / "store")
    (tmp_path / "conf.toml").write_text('[limits]\nmessage_size = "120 MiB"\n')
    arguments = ("--config", str(tmp_path / "conf.toml"), "--smtp", "127.0.0.1:0", "--lmtp", "127.0.0.1:0")
    with served(tmp_path / "store", *arguments, log=tmp_path / "log") as running:
        yield running


async def _drip(port: int, prefix: bytes, ready: asyncio.Semaphore) -> None:
    """Send one octet a second without end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.readline()
    if prefix:
        writer.write(prefix)
        while not (await reader.readline()).startswith(b"354"):
            pass
    ready.release()
    while True:
        writer.write(b"x")
        await asyncio.sleep(1)


def test_slow_clients_do_not_delay_a_fast_one(server: Served) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    port = server.ports["smtp"]
    before = server.memory()
    data = b"EHLO slow\r\nMAIL FROM:<x@y.test>\r\nRCPT TO:<ada@example.test>\r\nDATA\r\n"

    async def main() -> None:
        ready = asyncio.Semaphore(0)
        slow = [asyncio.create_task(_drip(port, data if number % 2 else b"", ready)) for number in range(SLOW)]
        for _ in range(SLOW):
            await ready.acquire()
        async with asyncio.timeout(PATIENCE):
            await asyncio.to_thread(_deliver, port, 30)
        assert not any(task.done() for task in slow)
        grown = server.memory() - before
        for task in slow:
            task.cancel()
        await asyncio.wait(slow)
        assert grown < SLOW * 100 * 1024, grown

    try:
        asyncio.run(main())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _deliver(port: int, count: int) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=PATIENCE) as client:
        for number in range(count):
            client.sendmail("x@y.test", [ADA], message(f"Fast {number}"))


def test_large_messages_in_transit_use_little_memory(server: Served) -> None:
    connections, sent = 20, 8 * MIB
    port = server.ports["smtp"]
    _send_large(port, message(body="warm\r\n"))
    before = server.memory()
    piece = b"0123456789" * 100 + b"\r\n"
    with contextlib.ExitStack() as scope:
        for _ in range(connections):
            client = scope.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
            client.sendall(b"HELO c\r\nMAIL FROM:<x@y.test>\r\nRCPT TO:<ada@example.test>\r\nDATA\r\n")
            client.sendall(b"Subject: large\r\n\r\n" + piece * (sent // len(piece)))
        grown = server.memory() - before
    assert grown <= connections * 2 * MIB, f"{grown / MIB:.1f} MiB"


class _Watch(threading.Thread):
    """Return the highest memory use so far."""

    def __init__(self, server: Served) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._stop_it = threading.Event()
        self.highest = 0

    def run(self) -> None:
        while not self._stop_it.wait(0.005):
            self.highest = max(self.highest, self._server.memory())

    def end(self) -> int:
        self._stop_it.set()
        self.join()
        return self.highest


def _send_large(port: int, octets: bytes, by_bdat: bool = False) -> None:
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
        reader = client.makefile("rb")
        reader.readline()
        client.sendall(b"HELO c\r\nMAIL FROM:<x@y.test>\r\nRCPT TO:<ada@example.test>\r\n")
        if by_bdat:
            client.sendall(b"BDAT %d LAST\r\n" % len(octets) + octets)
        else:
            client.sendall(b"DATA\r\n")
        for _ in range(3 if by_bdat else 4):
            reader.readline()
        if not by_bdat:
            client.sendall(octets + b".\r\n")
        reply = reader.readline()
        assert reply.startswith(b"250 "), reply


@pytest.mark.parametrize("kind", ["text", "attachment", "bdat"])
def test_a_large_message_adds_little_memory(server: Served, tmp_path: Path, kind: str) -> None:
    port = server.ports["smtp"]
    for number in range(3):  # the first message also loads modules
        _send_large(port, message(f"Warm {number}", attachments=[os.urandom(600_000)]))
    if kind == "attachment":
        octets = message("Large", attachments=[os.urandom(50 * MIB * 3 // 4)])
    else:
        octets = message(
            "Large", "The engine weaves algebraic patterns, just as the loom weaves.\r\n" * (50 * MIB // 64)
        )
    time.sleep(0.3)
    before = server.memory()
    watch = _Watch(server)
    watch.start()
    _send_large(port, octets, by_bdat=kind == "bdat")
    grown = watch.end() - before
    assert grown <= 10 * MIB, f"{grown / MIB:.1f} MiB"
    assert server.stop() == 0
    with Transport.open(tmp_path / "store") as transport:
        stored = transport.content.octets(rows(transport)[-1].message_id)
    assert stored.endswith(octets)
