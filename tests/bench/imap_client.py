"""A client that does next to nothing: it writes octets and counts what comes back, so that it is not what is slow."""

from __future__ import annotations

import re
import socket
import time

_BUFFER = 1 << 20


class RawClient:
    def __init__(self, port: int, user: str, password: str, *, login: bool = True) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._view = memoryview(bytearray(_BUFFER))
        self._number = 0
        self.received = 0
        self.line()
        if login:
            self.run(f"LOGIN {user} {password}")

    def line(self) -> bytes:
        received = b""
        while not received.endswith(b"\n"):
            piece = self._socket.recv(65536)
            if not piece:
                raise ConnectionError("closed")
            received += piece
        return received

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def until(self, tag: bytes) -> bytes:
        """Read until the tagged answer; the end of what was read, that answer included."""
        end = re.compile(rb"(?:\A|\r\n)" + tag + rb" (OK|NO|BAD)[^\r\n]*\r\n\Z")
        tail = b""
        while True:
            size = self._socket.recv_into(self._view)
            if not size:
                raise ConnectionError("closed")
            self.received += size
            tail = (tail + bytes(self._view[max(0, size - 4096) : size]))[-4096:]
            match = end.search(tail)
            if match is not None:
                if match[1] != b"OK":
                    raise RuntimeError(tail[-200:])
                return tail

    def start(self, command: str | bytes) -> bytes:
        self._number += 1
        tag = b"q%d" % self._number
        self.send(tag + b" " + (command.encode() if isinstance(command, str) else command) + b"\r\n")
        return tag

    def run(self, command: str | bytes) -> bytes:
        return self.until(self.start(command))

    def timed(self, command: str | bytes) -> float:
        """Seconds the command took."""
        started = time.perf_counter()
        self.run(command)
        return time.perf_counter() - started

    def idle(self) -> bytes:
        """Go into IDLE; the tag it will end with."""
        tag = self.start("IDLE")
        while b"+ " not in self.line():
            pass
        return tag

    def wait_for(self, what: bytes, patience: float = 10.0) -> float:
        """When something was said."""
        self._socket.settimeout(patience)
        seen = b""
        while what not in seen:
            seen = seen[-200:] + self._socket.recv(65536)
        self._socket.settimeout(None)
        return time.perf_counter()

    def close(self) -> None:
        self._socket.close()


def count_messages(port: int, user: str, password: str) -> int:
    """Number of messages in the inbox, by STATUS."""
    client = RawClient(port, user, password)
    try:
        answer = client.run("STATUS INBOX (MESSAGES)")
    finally:
        client.close()
    match = re.search(rb"\(MESSAGES (\d+)\)", answer)
    if match is None:
        raise RuntimeError(answer)
    return int(match[1])


def lmtp_deliver(port: int, address: str, message: bytes) -> float:
    """Hand over one message; when it was acknowledged."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        file = connection.makefile("rwb")

        def say(line: bytes, *codes: bytes) -> None:
            if line:
                file.write(line + b"\r\n")
                file.flush()
            while True:
                answer = file.readline()
                if answer[3:4] != b"-":
                    break
            if answer[:3] not in codes:
                raise RuntimeError(answer)

        say(b"", b"220")
        say(b"LHLO bench", b"250")
        say(b"MAIL FROM:<bob@example.test>", b"250")
        say(b"RCPT TO:<" + address.encode() + b">", b"250")
        say(b"DATA", b"354")
        say(message.replace(b"\r\n.", b"\r\n..") + b".", b"250")
        acknowledged = time.perf_counter()
        say(b"QUIT", b"221")
        return acknowledged
