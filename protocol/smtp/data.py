"""Receive DATA and BDAT without IO: octets from the network in, header block and body octets out.

:class:`DataReader` and :class:`ChunkReader` find the end of a message in the stream; both pass its octets through one
:class:`Intake`, which applies limits and line-end rules and holds the header block (bounded by
``MessageLimits.header_size``), so that the server can edit it. Body octets pass through as they come. Once a message
will be refused, nothing more is kept, but counting goes on until its end, where the refusal is sent.

Invariants: only <CRLF>.<CRLF> ends DATA, so no variant with a bare CR or LF can smuggle a second message; at most four
octets and the header block are held between two calls; the result does not depend on how the stream was cut into
chunks; time is linear.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from protocol.smtp import replies
from protocol.smtp.replies import Reply

_END = b"\r\n.\r\n"
_STUFFED = b"\r\n."
_BDAT = re.compile(rb"([0-9]{1,20})(?:[ \t]+(LAST))?[ \t]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Limits of one message. Connection limits (rates, timeouts) belong to the listeners."""

    message_size: int = 50 << 20  # octets after dot-unstuffing, as RFC 1870 section 5 counts them
    header_size: int = 256 << 10  # octets of the top header block, which is held in memory
    hops: int = 100  # RFC 5321 6.3: at least 100 Received fields
    recipients: int = 1000  # per transaction; RFC 5321 4.5.3.1.8: at least 100


class LineEnds(Enum):
    """How to handle a lone CR or LF (RFC 5321 2.3.8 forbids both)."""

    REJECT = "reject"
    NORMALISE = "normalise"  # LF becomes CRLF, CR becomes a space
    KEEP = "keep"  # trusted peers, and BODY=BINARYMIME where lone CR and LF are data


# The refusal that wins if several apply: which is detected first depends on how the pieces were cut.
_RANK = (replies.TOO_BIG, replies.BARE_LINE_END, replies.HEADER_TOO_BIG, replies.MAIL_LOOP)


def count_hops(header: bytes) -> int:
    """RFC 5321 6.3: the number of Received fields in a header block."""
    lower = header.lower()
    return lower.count(b"\nreceived:") + lower.startswith(b"received:")


class Intake:
    """The octets of one message: ``take`` them, then ``finish``; both return body octets to keep."""

    __slots__ = (
        "_bare",
        "_buffer",
        "_held",
        "_limits",
        "_line_ends",
        "_newlines",
        "_refusal",
        "header",
        "hops",
        "size",
    )

    def __init__(self, limits: MessageLimits, line_ends: LineEnds) -> None:
        self._limits = limits
        self._line_ends = line_ends
        # Classifies line ends in one C loop, several times faster than counting CR, LF and CRLF, and
        # remembers a CR at the end of a piece.
        self._newlines = io.IncrementalNewlineDecoder(None, translate=False)
        self._bare = False
        self._buffer = bytearray()
        self._held = b""
        self._refusal: Reply | None = None
        #: The header block with the empty line that ends it (if there is one); None until it is complete.
        self.header: bytes | None = None
        #: Received fields in the header block.
        self.hops = 0
        #: Octets so far, header included, as they will be stored.
        self.size = 0

    @property
    def refusal(self) -> Reply | None:
        """The reply that refuses the message, if any; final after :meth:`finish`."""
        return self._refusal

    def take(self, piece: bytes) -> bytes:
        if self._line_ends is not LineEnds.KEEP:
            piece = self._check_line_ends(piece, final=False)
        return self._keep(piece)

    def finish(self) -> bytes:
        """The end of the message: return the octets held back. A message without an empty line is all header."""
        body = b""
        if self._line_ends is not LineEnds.KEEP:
            body = self._keep(self._check_line_ends(b"", final=True))
        if self.header is None and self._refusal is None:
            self._complete_header(bytes(self._buffer))
        return body

    def _refuse(self, reply: Reply) -> None:
        if self._refusal is None or _RANK.index(reply) < _RANK.index(self._refusal):
            self._refusal = reply
            self._buffer = bytearray()

    def _check_line_ends(self, piece: bytes, *, final: bool) -> bytes:
        if not self._bare:
            self._newlines.decode(piece.decode("latin-1"), final)
            seen = self._newlines.newlines
            self._bare = seen is not None and seen != "\r\n"
        if self._line_ends is LineEnds.REJECT:
            if self._bare:
                self._refuse(replies.BARE_LINE_END)
            return piece
        piece = self._held + piece
        self._held = b""
        if not final and piece.endswith(b"\r"):
            piece, self._held = piece[:-1], b"\r"
        if self._bare:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b" ").replace(b"\n", b"\r\n")
        return piece

    def _keep(self, piece: bytes) -> bytes:
        self.size += len(piece)
        if self.size > self._limits.message_size:
            self._refuse(replies.TOO_BIG)
        if self._refusal is not None:
            return b""
        if self.header is not None:
            return piece
        return self._split_header(piece)

    def _split_header(self, piece: bytes) -> bytes:
        if not self._buffer:
            # Most header blocks come whole, with the beginning of the body: no copy of that.
            end = _header_end(piece, 0)
            if 0 <= end <= self._limits.header_size:
                self._complete_header(piece[:end])
                return b"" if self._refusal is not None else piece[end:]
        buffer = self._buffer
        start = max(0, len(buffer) - 2)
        buffer += piece
        end = _header_end(buffer, start)
        if (len(buffer) if end < 0 else end) > self._limits.header_size:
            self._refuse(replies.HEADER_TOO_BIG)
            return b""
        if end < 0:
            return b""
        self._buffer = bytearray()
        self._complete_header(bytes(buffer[:end]))
        return b"" if self._refusal is not None else bytes(buffer[end:])

    def _complete_header(self, header: bytes) -> None:
        self.header = header
        self.hops = count_hops(header)
        if self.hops > self._limits.hops:
            self._refuse(replies.MAIL_LOOP)


def _header_end(buffer: bytes | bytearray, start: int) -> int:
    """One past the empty line that ends a header block, or -1; none ends before ``start``."""
    if start == 0:
        if buffer.startswith(b"\r\n"):
            return 2
        if buffer.startswith(b"\n"):
            return 1
    with_cr = buffer.find(b"\n\r\n", start)
    without = buffer.find(b"\n\n", start, len(buffer) if with_cr < 0 else with_cr + 1)
    if without >= 0:
        return without + 2
    return with_cr + 3 if with_cr >= 0 else -1


class DataReader:
    """The message after 354 (RFC 5321 4.1.1.4, transparency 4.5.2). Feed until ``done``."""

    __slots__ = ("_at_start", "_held", "_intake", "done", "leftover", "received")

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        # The data starts at the beginning of a line: prepend a CRLF that is not part of the message.
        self._held = b"\r\n"
        self._at_start = True
        self.done = False
        #: Octets after the end: pipelined commands.
        self.leftover = b""
        #: Octets from the network, for the minimum data rate.
        self.received = 0

    def feed(self, chunk: bytes) -> bytes:
        """Body octets to keep. The header block is in ``intake.header``. Not to be called once done."""
        self.received += len(chunk)
        text = self._held + chunk if self._held else chunk
        # memchr for the dot alone costs almost nothing, and most large parts (base64) have none.
        stuffed = text.find(_STUFFED) if b"." in text else -1
        end = text.find(_END, stuffed) if stuffed >= 0 else -1
        if end >= 0:
            self.done = True
            self.leftover = text[end + len(_END) :]
            text = text[: end + 2]
        else:
            decided = len(text) - _undecided(text)
            self._held = text[decided:]
            text = text[:decided]
        if stuffed != end:
            text = text.replace(_STUFFED, b"\r\n")
        if self._at_start and text:
            self._at_start = False
            text = text[2:]
        body = self._intake.take(text)
        return body + self._intake.finish() if self.done else body


def _undecided(text: bytes) -> int:
    """Length of the longest suffix of ``text`` that could start the end marker."""
    for length in (4, 3, 2, 1):
        if text.endswith(_END[:length]):
            return length
    return 0


class Chunk(NamedTuple):
    size: int
    last: bool


def parse_bdat(argument: bytes) -> Chunk:
    """RFC 3030 section 2. Without a valid size the next command cannot be found: the refusal closes the connection."""
    match = _BDAT.fullmatch(argument)
    if match is None:
        raise replies.SmtpError(replies.BAD_CHUNK)
    return Chunk(int(match[1]), match[2] is not None)


class ChunkReader:
    """The octets of one BDAT command; one intake serves all chunks of a transaction.

    Without an intake the octets are skipped: the reply to a refused BDAT follows them (RFC 3030 2).
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
