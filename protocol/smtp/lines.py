"""Split a byte stream into command lines.

Invariants: a line longer than its limit is dropped up to its end and refused once, and the session stays in step;
memory is bounded by the limit plus one read; time is linear however the stream is cut.
"""

from __future__ import annotations

import re

from protocol.sasl import mechanisms
from protocol.smtp import replies

#: RFC 5321 4.5.3.1.4 requires 512 octets, and every extension adds some (DSN alone 600).
MAX_COMMAND_LINE = 4096
#: RFC 4954 section 4: an initial response is as long as any other.
MAX_AUTH_LINE = mechanisms.MAX_LINE_BYTES + 64

_VERB = re.compile(rb"[A-Za-z]{1,16}")


class LineBuffer:
    """Octets that were received but not used yet."""

    __slots__ = ("_buffer", "_searched", "_skipping")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._skipping = False

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def line(self, limit: int = MAX_COMMAND_LINE) -> bytes | None:
        """The next line without its end, or None if more octets are needed.

        Raises SmtpError (line too long) at the end of an over-long line. A line may end with LF alone, for people who
        type commands; only the end of DATA must be exact.
        """
        buffer = self._buffer
        if buffer[:5].upper() == b"AUTH ":
            limit = MAX_AUTH_LINE
        end = buffer.find(b"\n", self._searched)
        if end < 0:
            if self._skipping or len(buffer) > limit:
                self._skipping = True
                buffer.clear()
            self._searched = len(buffer)
            return None
        self._searched = 0
        line = bytes(buffer[:end])
        del buffer[: end + 1]
        if self._skipping or end > limit:
            self._skipping = False
            raise replies.SmtpError(replies.LINE_TOO_LONG)
        return line.removesuffix(b"\r")

    def take(self) -> bytes:
        """Take all octets: the beginning of a message, or input to be dropped before a TLS handshake."""
        data = bytes(self._buffer)
        self._buffer.clear()
        self._searched = 0
        return data


def split_command(line: bytes) -> tuple[str, bytes]:
    """The command in upper case (empty if it cannot be one) and its argument, trimmed."""
    match = _VERB.match(line)
    if match is None or line[match.end() : match.end() + 1] not in (b"", b" ", b"\t"):
        return "", b""
    return match[0].decode("ascii").upper(), line[match.end() :].strip(b" \t")
