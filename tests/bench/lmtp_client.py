"""A client that is not the bottleneck: raw sockets, one process, messages made before the clock starts.

Run as ``python -m tests.bench.lmtp_client HOST PORT CONNECTIONS MESSAGES SIZE MAILBOXES``; prints one JSON object.
The envelope is pipelined as Postfix does it; each connection waits for the reply to a message before the next.
"""

from __future__ import annotations

import base64
import json
import random
import selectors
import socket
import sys
import time

_LINE = b"The engine weaves algebraic patterns just as the loom weaves flowers and leaves.\r\n"


def message(number: int, size: int) -> bytes:
    """Plain text when small; with an attachment of its own when large, as large mail is."""
    head = (
        f"Received: from mail.example.test (mail.example.test [192.0.2.1])\r\n"
        f"\tby mx.example.test with ESMTPS id {number:08x};\r\n\tMon, 16 Nov 2026 08:00:00 +0000\r\n"
        f"Date: Mon, 16 Nov 2026 08:00:00 +0000\r\nFrom: Bob Builder <bob@other.test>\r\n"
        f"To: Ada Lovelace <ada@example.test>\r\nSubject: Figures of run {number}\r\n"
        f"Message-ID: <{number}.{size}.bench@other.test>\r\nMIME-Version: 1.0\r\n"
    ).encode()
    if size < 10_000:
        head += b"Content-Type: text/plain; charset=utf-8\r\n\r\n"
        return head + _LINE * max(1, (size - len(head)) // len(_LINE))
    data = random.Random(number).randbytes((size - len(head) - 600) * 57 // 78)
    return (
        head
        + b'Content-Type: multipart/mixed; boundary="edge"\r\n\r\n--edge\r\nContent-Type: text/plain\r\n\r\n'
        + b"See the attachment.\r\n\r\n--edge\r\nContent-Type: application/pdf; name=plan.pdf\r\n"
        + b"Content-Disposition: attachment; filename=plan.pdf\r\nContent-Transfer-Encoding: base64\r\n\r\n"
        + base64.encodebytes(data).replace(b"\n", b"\r\n")
        + b"\r\n--edge--\r\n"
    )


class Connection:
    """Envelope, message, reply; then the next."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self.socket.makefile("rb")
        self._expect(b"220")
        self.socket.sendall(b"LHLO bench.test\r\n")
        self._expect(b"250")
        self.socket.setblocking(False)
        self.pending = b""
        self.replies = 0
        self.body = b""
        self.started = 0.0

    def _expect(self, code: bytes) -> None:
        while True:
            line = self._reader.readline()
            if not line.startswith(code):
                raise RuntimeError(f"unexpected reply: {line!r}")
            if line[3:4] == b" ":
                return

    def begin(self, mailbox: int, body: bytes) -> None:
        self.body = body
        self.replies = 0
        self.started = time.perf_counter()
        self.socket.sendall(b"MAIL FROM:<bob@other.test>\r\nRCPT TO:<user%d@example.test>\r\nDATA\r\n" % mailbox)

    def readable(self) -> bool:
        """Take what has come; whether the message is answered."""
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
                self.socket.sendall(self.body + b".\r\n")
                self.socket.setblocking(False)
            elif self.replies == 4:
                return True
        return False


def main() -> None:
    host, port, connections, count, size, mailboxes = sys.argv[1], *map(int, sys.argv[2:7])
    bodies = [message(number, size) for number in range(count)]
    open_ = [Connection(host, port) for _ in range(connections)]
    selector = selectors.DefaultSelector()
    times: list[float] = []
    started = time.perf_counter()
    cpu = time.process_time()
    sent = 0
    for connection in open_:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.begin(sent % mailboxes, bodies[sent])
        sent += 1
    while len(times) < count:
        for key, _ in selector.select():
            connection = key.data
            if connection.readable():
                times.append(time.perf_counter() - connection.started)
                if sent < count:
                    connection.begin(sent % mailboxes, bodies[sent])
                    sent += 1
    elapsed = time.perf_counter() - started
    times.sort()
    print(
        json.dumps(
            {
                "rate": count / elapsed,
                "median_ms": times[count // 2] * 1e3,
                "p99_ms": times[count * 99 // 100] * 1e3,
                "client_cpu": (time.process_time() - cpu) / elapsed,
            }
        )
    )


if __name__ == "__main__":
    main()
