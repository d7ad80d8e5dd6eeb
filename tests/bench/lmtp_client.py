"""A client that is not the bottleneck: raw sockets, and messages that exist before the clock starts.

The envelope is pipelined as Postfix does it; each connection waits for the reply to a message before it sends the next.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Sequence


class Connection:
    """Sends one message at a time: envelope, message, reply."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self.socket.makefile("rb")
        self._expect(b"220")
        self.socket.sendall(b"LHLO bench.test\r\n")
        self._expect(b"250")
        self.socket.setblocking(False)
        self.pending = b""
        self.replies = 0
        self.body = b""

    def _expect(self, code: bytes) -> None:
        while True:
            line = self._reader.readline()
            if not line.startswith(code):
                raise RuntimeError(f"unexpected reply: {line!r}")
            if line[3:4] == b" ":
                return

    def begin(self, address: str, octets: bytes) -> None:
        """Send the envelope; the message follows when it is accepted."""
        self.body = octets.replace(b"\r\n.", b"\r\n..") + b".\r\n"
        self.replies = 0
        self.socket.sendall(b"MAIL FROM:<bob@other.test>\r\nRCPT TO:<%b>\r\nDATA\r\n" % address.encode())

    def readable(self) -> bool:
        """Read replies; True once the message is acknowledged."""
        received = self.socket.recv(65536)
        if not received:
            raise ConnectionError("closed")
        self.pending += received
        while (end := self.pending.find(b"\n")) >= 0:
            line, self.pending = self.pending[: end + 1], self.pending[end + 1 :]
            self.replies += 1
            if line[:1] not in (b"2", b"3"):
                raise RuntimeError(f"refused: {line!r}")
            if self.replies == 3:
                self.socket.setblocking(True)
                self.socket.sendall(self.body)
                self.socket.setblocking(False)
            elif self.replies == 4:
                return True
        return False

    def close(self) -> None:
        self._reader.close()
        self.socket.close()


class Connections:
    """Open connections, over which ``deliver`` hands over messages to addresses in turn."""

    def __init__(self, port: int, count: int) -> None:
        self._open = [Connection(port) for _ in range(count)]

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.close()

    def deliver(self, addresses: Sequence[str], messages: Sequence[bytes]) -> None:
        """Return when all are acknowledged; raise if one is refused."""
        work = [(addresses[number % len(addresses)], octets) for number, octets in enumerate(messages)][::-1]
        acknowledged = 0
        with selectors.DefaultSelector() as selector:
            for connection in self._open[: len(work)]:
                selector.register(connection.socket, selectors.EVENT_READ, connection)
                connection.begin(*work.pop())
            while acknowledged < len(messages):
                for key, _ in selector.select():
                    connection = key.data
                    if connection.readable():
                        acknowledged += 1
                        if work:
                            connection.begin(*work.pop())
