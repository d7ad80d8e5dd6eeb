"""Sixteen clients send while the server is killed again and again: what was acknowledged is there exactly once.

Each client sends its messages one after the other and repeats a message until it is acknowledged. A message whose
acknowledgement was lost may be there once more for every time it was sent; none may be missing, half there, or there
more often than it was sent.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import os
import random
import re
import socket
import threading
import time
from pathlib import Path

from adapter.transport.transport import Transport
from tests.support.layers import assert_layers_agree
from tests.support.serve import Served
from tests.support.smtpd import make_store
from tests.support.stores import rows

CLIENTS = 16
SECONDS = 9.0
ADDRESSES = [f"user{number}@example.test" for number in range(4)]


def _letter(client: int, number: int) -> bytes:
    """Distinct, of many sizes: some travel in the journal, some through staging."""
    source = random.Random(f"{client} {number}")
    size = source.choice([10, 2000, 2000, 30_000, 400_000 if number % 7 == 0 else 500])
    body = source.randbytes(size // 2).hex().encode()
    lines = b"\r\n".join(body[start : start + 76] for start in range(0, len(body), 76))
    digest = hashlib.sha256(lines).hexdigest()
    return (
        f"From: x@y.test\r\nSubject: {client}-{number}\r\nMessage-ID: <{client}.{number}@y.test>\r\n"
        f"X-Digest: {digest}\r\n\r\n".encode()
        + lines
        + b"\r\n"
    )


class _Client(threading.Thread):
    """Delivers letters until told to stop; keeps how often each was sent and which are acknowledged."""

    def __init__(self, number: int, port: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.port = port
        self.stop = stop
        self.sent: collections.Counter[int] = collections.Counter()
        self.acknowledged: set[int] = set()
        self.finished = False

    def run(self) -> None:
        number = 0
        while not self.stop.is_set() or self.sent[number]:  # the letter begun is retried to completion
            try:
                with socket.create_connection(("127.0.0.1", self.port), 10) as connection:
                    connection.settimeout(20)
                    number = self._converse(connection, number)
            except (OSError, _Refused):
                time.sleep(0.05)
        self.finished = True

    def _converse(self, connection: socket.socket, number: int) -> int:
        reader = connection.makefile("rb")
        _expect(reader.readline(), b"220")
        connection.sendall(b"HELO client.test\r\n")
        _expect(reader.readline(), b"250")
        while not self.stop.is_set() or self.sent[number]:
            recipient = ADDRESSES[(self.number + number) % len(ADDRESSES)]
            connection.sendall(f"MAIL FROM:<x@y.test>\r\nRCPT TO:<{recipient}>\r\nDATA\r\n".encode())
            for code in (b"250", b"250", b"354"):
                _expect(reader.readline(), code)
            self.sent[number] += 1
            connection.sendall(_letter(self.number, number) + b".\r\n")
            _expect(reader.readline(), b"250")
            self.acknowledged.add(number)
            number += 1
        return number


class _Refused(Exception):  # noqa: N818 - a signal inside this module
    pass


def _expect(line: bytes, code: bytes) -> None:
    if not line.startswith(code):
        assert not line.startswith(b"5"), line  # trouble is temporary, always
        raise _Refused


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_every_acknowledged_message_survives(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make_store(root, *ADDRESSES)
    port = _free_port()
    arguments = ("--smtp", f"127.0.0.1:{port}")
    server = Served(root, arguments, tmp_path / "log")
    stop = threading.Event()
    clients = [_Client(number, port, stop) for number in range(CLIENTS)]
    try:
        for client in clients:
            client.start()
        source = random.Random(os.urandom(8))
        kills = 0
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            time.sleep(source.uniform(0.2, 1.2))
            server.kill()
            kills += 1
            server = Served(root, arguments, tmp_path / "log")
        stop.set()
        for client in clients:
            client.join(60)
        assert all(client.finished for client in clients)
        assert server.stop() == 0
    finally:
        stop.set()
        with contextlib.suppress(OSError):
            server.process.kill()
            server.process.wait()
    assert kills >= 2
    _check(root, clients, tmp_path / "scratch")
    assert "Traceback" not in (tmp_path / "log").read_text()


def _check(root: Path, clients: list[_Client], scratch: Path) -> None:
    found: collections.Counter[tuple[int, int]] = collections.Counter()
    with Transport.open(root) as transport:
        for address in ADDRESSES:
            for row in rows(transport, address=address):
                octets = transport.content.octets(row.message_id)
                sender, number = map(int, re.findall(rb"Subject: (\d+)-(\d+)\r\n", octets)[0])
                assert octets.endswith(_letter(sender, number)), (sender, number)
                assert ADDRESSES[(sender + number) % len(ADDRESSES)] == address
                found[sender, number] += 1
    assert_layers_agree(root, scratch)
    acknowledged = 0
    for client in clients:
        acknowledged += len(client.acknowledged)
        for number, times in client.sent.items():
            if not times:
                continue
            assert number in client.acknowledged
            assert 1 <= found.pop((client.number, number), 0) <= times, (client.number, number)
    assert not found  # nothing that nobody sent
    assert acknowledged >= CLIENTS
