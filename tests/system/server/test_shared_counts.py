"""Shared by workers: listening sockets, which may fail to accept, and counts."""

from __future__ import annotations

import asyncio
import os
import socket
import time
import typing

import pytest

from adapter.net import endpoints
from adapter.net.endpoints import Endpoint, Listener
from adapter.net.shared_counts import SharedCounts
from adapter.server.listeners import Acceptor
from tests.support.waiting import PATIENCE


async def test_acceptor_pauses_after_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapter.server.listeners._ERROR_PAUSE_SECONDS", 0.2)
    listener = endpoints.listen(Endpoint("smtp", "127.0.0.1", 0))
    tries = 0

    class Exhausted:
        """A listening socket that first fails for lack of descriptors."""

        def __init__(self, real: socket.socket) -> None:
            self._real = real
            self.fileno, self.close = real.fileno, real.close

        def accept(self) -> tuple[socket.socket, object]:
            nonlocal tries
            tries += 1
            if tries <= 2:
                raise OSError(24, "Too many open files")
            return self._real.accept()

    sockets = [typing.cast("socket.socket", Exhausted(listener.sockets[0]))]
    arrived = asyncio.Event()

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            arrived.set()
            transport.close()

    acceptor = Acceptor(Listener(listener.endpoint, sockets), Connection)
    began = time.monotonic()
    _, writer = await asyncio.open_connection("127.0.0.1", listener.endpoint.port)
    async with asyncio.timeout(PATIENCE):
        await arrived.wait()
    assert time.monotonic() - began >= 0.4
    assert tries <= 5
    writer.close()
    acceptor.close()


def test_counts_include_all_live_workers() -> None:
    counts = SharedCounts(3)
    assert counts.add(counts.key("peer a"))
    counts.column = 2
    assert all(counts.add(counts.key("peer a")) for _ in range(2))
    assert counts.of_workers(counts.key("peer a")) == [1, 0, 2]
    counts.drop_worker(2)
    assert counts.of_workers(counts.key("peer a")) == [1, 0, 0]
    counts.take(counts.key("peer a"))  # not counted by this worker
    assert counts.of_workers(counts.key("peer a")) == [1, 0, 0]
    counts.column = 0
    counts.take(counts.key("peer a"))
    assert counts.keys() == 0
    process = os.fork()
    if process == 0:
        counts.column = 1
        with counts.exclusive():
            counts.add(counts.key("peer b"))
            counts.set_common(counts.key("user c"), 4)
        os._exit(0)
    os.waitpid(process, 0)
    assert counts.of_workers(counts.key("peer b")) == [0, 1, 0]
    assert counts.common(counts.key("user c"), 100.0) == 4


def test_counts_have_bounded_memory() -> None:
    now = 0.0
    counts = SharedCounts(clock=lambda: now)
    assert all(counts.add(counts.key(f"peer {number}")) for number in range(500))
    for number in range(40_000):
        now += 0.001
        counts.set_common(counts.key(f"guess {number}"), 1)
    assert counts.keys() <= (1 << 14) + 16
    assert all(
        counts.of_workers(counts.key(f"peer {number}")) == [1] for number in range(500)
    )  # counts of live workers are not displaced
    assert counts.common(counts.key("guess 39999"), 100.0) == 1
    assert sum(counts.common(counts.key(f"guess {number}"), 100.0) for number in range(20_000)) < 3000
