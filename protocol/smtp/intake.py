"""What happens to a message's octets however they arrive (DATA or BDAT): limits, line ends, header and body.

The header block is held (bounded by ``Limits.header_size``) so that the server can edit it; body octets
pass through as they come. Once a message is bound to be refused nothing more is kept, but counting goes on
until its end, where the refusal is answered.

Invariants: the result does not depend on how the octets were cut into pieces; time is linear; memory is the
header block plus the piece at hand.
"""

from __future__ import annotations

import io
from enum import Enum

from protocol.smtp import replies
from protocol.smtp.limits import Limits
from protocol.smtp.replies import Reply


class LineEnds(Enum):
    """What to do with a CR or LF that stands alone (RFC 5321 2.3.8 forbids both)."""

    REJECT = "reject"
    NORMALISE = "normalise"  # LF becomes CRLF, CR becomes a space
    KEEP = "keep"  # trusted peers, and BODY=BINARYMIME where lone CR and LF are data


# Which trouble is answered if there are several: the first one seen depends on how the pieces were cut.
_RANK = (replies.TOO_BIG, replies.BARE_LINE_END, replies.HEADER_TOO_BIG, replies.MAIL_LOOP)


def count_hops(header: bytes) -> int:
    """RFC 5321 6.3: the number of Received fields in a header block."""
    lower = header.lower()
    return lower.count(b"\nreceived:") + lower.startswith(b"received:")


class Intake:
    """One message on its way in: ``take`` its octets, then ``finish``; both return body octets to keep."""

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

    def __init__(self, limits: Limits, line_ends: LineEnds) -> None:
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
        #: Octets so far, header included, as they are to be stored.
        self.size = 0

    @property
    def refusal(self) -> Reply | None:
        """Why the message cannot be accepted; final after :meth:`finish`."""
        return self._refusal

    def take(self, piece: bytes) -> bytes:
        if self._line_ends is not LineEnds.KEEP:
            piece = self._check_line_ends(piece, final=False)
        return self._keep(piece)

    def finish(self) -> bytes:
        """The end of the message: what had to be held back. A message without empty line is all header."""
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
