"""Clients that send while servers are killed: each repeats a message until it is acknowledged.

A message may be there once more for each time its acknowledgement was lost; none may be missing, half
there, or there more often than it was sent.
"""

from __future__ import annotations

import collections
import re
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from adapter.transport.transport import Transport
from tests.support.layers import assert_layers_agree
from tests.support.mail.real_mail import RealMail
from tests.support.stores import rows

_MAIL = RealMail(1)


def letter(client: int, number: int) -> bytes:
    """Distinct real-looking mail of many sizes: some of it travels in the journal, some through staging."""
    size = 400_000 if number % 7 == 0 else None
    return b"X-Letter: %d-%d\r\n%b" % (client, number, _MAIL.octets(client * 100_000 + number, size))


class Sender(threading.Thread):
    """Delivers letters until stopped; counts how often each was sent, and keeps the acknowledged ones."""

    def __init__(self, number: int, port: int, addresses: Sequence[str], stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.addresses = addresses
        self.number = number
        self.port = port
        self.stop = stop
        self.next = 0  # the letter that is not acknowledged yet
        self.sent: collections.Counter[int] = collections.Counter()
        self.acknowledged: set[int] = set()
        self.finished = False

    def run(self) -> None:
        while self._has_more():
            try:
                with socket.create_connection(("127.0.0.1", self.port), 10) as connection:
                    connection.settimeout(20)
                    self._converse(connection)
            except (OSError, Refused):
                time.sleep(0.05)
        self.finished = True

    def _has_more(self) -> bool:
        """The letter begun is retried to completion."""
        return not self.stop.is_set() or self.sent[self.next] > 0

    def _converse(self, connection: socket.socket) -> None:
        reader = connection.makefile("rb")
        expect(reader.readline(), b"220")
        connection.sendall(b"HELO client.test\r\n")
        expect(reader.readline(), b"250")
        while self._has_more():
            number = self.next
            recipient = self.addresses[(self.number + number) % len(self.addresses)]
            connection.sendall(f"MAIL FROM:<x@y.test>\r\nRCPT TO:<{recipient}>\r\nDATA\r\n".encode())
            for code in (b"250", b"250", b"354"):
                expect(reader.readline(), code)
            self.sent[number] += 1
            connection.sendall(letter(self.number, number).replace(b"\r\n.", b"\r\n..") + b".\r\n")
            expect(reader.readline(), b"250")
            # Never sent again: a copy of it would hide that it was lost.
            self.acknowledged.add(number)
            self.next += 1


class Refused(Exception):  # noqa: N818 - a signal inside this module
    pass


def expect(line: bytes, code: bytes) -> None:
    if not line.startswith(code):
        assert not line.startswith(b"5"), line  # failures are temporary
        raise Refused


def check_delivered(root: Path, senders: list[Sender], addresses: Sequence[str], scratch: Path) -> None:
    """Check that acknowledged letters are there, none more often than it was sent, and no other mail."""
    received: collections.Counter[tuple[int, int]] = collections.Counter()
    with Transport.open(root) as transport:
        for address in addresses:
            for row in rows(transport, address=address):
                octets = transport.content.octets(row.message_id)
                sender, number = map(int, re.findall(rb"X-Letter: (\d+)-(\d+)\r\n", octets)[0])
                assert octets.endswith(letter(sender, number)), (sender, number)
                assert addresses[(sender + number) % len(addresses)] == address
                received[sender, number] += 1
    assert_layers_agree(root, scratch)
    acknowledged = 0
    for client in senders:
        acknowledged += len(client.acknowledged)
        for number, times in client.sent.items():
            if not times:
                continue
            assert number in client.acknowledged
            assert 1 <= received.pop((client.number, number), 0) <= times, (client.number, number)
    assert not received  # mail without a sender
    assert acknowledged >= len(senders)
