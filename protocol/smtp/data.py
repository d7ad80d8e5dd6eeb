"""DATA and BDAT as sans-IO machines: chunks from the network in, message octets out.

Invariants: only <CRLF>.<CRLF> ends DATA, so no variant with a bare CR or LF can smuggle a second message; at
most four octets are held between two calls; the result does not depend on how the stream was cut into chunks;
time is linear.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from protocol.smtp import replies
from protocol.smtp.intake import Intake

_END = b"\r\n.\r\n"
_STUFFED = b"\r\n."
_BDAT = re.compile(rb"([0-9]{1,20})(?:[ \t]+(LAST))?[ \t]*", re.IGNORECASE)


class DataReader:
    """The message after 354 (RFC 5321 4.1.1.4, transparency 4.5.2). Feed until ``done``."""

    __slots__ = ("_at_start", "_held", "_intake", "done", "leftover", "received")

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        # The data starts at the beginning of a line: a CRLF that is not part of the message stands before it.
        self._held = b"\r\n"
        self._at_start = True
        self.done = False
        #: What came after the end: pipelined commands.
        self.leftover = b""
        #: Octets from the network, for the minimum data rate.
        self.received = 0

    def feed(self, chunk: bytes) -> bytes:
        """Body octets to keep. The header block is in ``intake.header``. Not to be called once done."""
        self.received += len(chunk)
        text = self._held + chunk if self._held else chunk
        # memchr for the dot alone is nearly free, and most large parts (base64) have none.
        stuffed = text.find(_STUFFED) if b"." in text else -1
        end = text.find(_END, stuffed) if stuffed >= 0 else -1
        if end >= 0:
            self.done = True
            self.leftover = text[end + len(_END) :]
            text = text[: end + 2]
        else:
            kept = len(text) - _undecided(text)
            self._held = text[kept:]
            text = text[:kept]
        if stuffed != end:
            text = text.replace(_STUFFED, b"\r\n")
        if self._at_start and text:
            self._at_start = False
            text = text[2:]
        body = self._intake.take(text)
        return body + self._intake.finish() if self.done else body


def _undecided(text: bytes) -> int:
    """The length of the longest end of ``text`` that could be the beginning of the end mark."""
    for length in (4, 3, 2, 1):
        if text.endswith(_END[:length]):
            return length
    return 0


class Chunk(NamedTuple):
    size: int
    last: bool


def parse_bdat(argument: bytes) -> Chunk:
    """RFC 3030 section 2. Where the size is unknown the stream cannot be followed: the refusal closes it."""
    match = _BDAT.fullmatch(argument)
    if match is None:
        raise replies.SmtpError(replies.BAD_CHUNK)
    return Chunk(int(match[1]), match[2] is not None)


class ChunkReader:
    """The octets of one BDAT command; one intake serves all chunks of a transaction.

    Without an intake the octets are skipped: a refused BDAT is answered when they have come (RFC 3030 2).
    """

    __slots__ = ("_intake", "_last", "_remaining", "done", "leftover")

    def __init__(self, chunk: Chunk, intake: Intake | None) -> None:
        self._intake = intake
        self._last = chunk.last
        self._remaining = chunk.size
        self.done = False
        self.leftover = b""

    def feed(self, data: bytes) -> bytes:
        """Body octets to keep. Call it at least once, even for an empty chunk; not once done."""
        taken = data[: self._remaining]
        self._remaining -= len(taken)
        body = b"" if self._intake is None else self._intake.take(taken)
        if self._remaining == 0:
            self.done = True
            self.leftover = data[len(taken) :]
            if self._last and self._intake is not None:
                body += self._intake.finish()
        return body
