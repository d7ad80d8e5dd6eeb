"""Content-transfer-encodings (RFC 2045 section 6), decoded with tolerance: garbage is skipped, none raises.

Invariant: a limit gives the same octets as no limit, cut; at a cost that follows the limit, not the size.
"""

from __future__ import annotations

import re
from binascii import Error, a2b_base64, a2b_qp
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocol.mime.parser import Buffer

_BASE64_OCTETS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_NOT_BASE64 = bytes(octet for octet in range(256) if octet not in _BASE64_OCTETS)
_PADDING = re.compile(rb"=+")
# RFC 2045 section 6.7 rule 3: white space at the end of a line was added in transport. Anchored at the start
# of the run, so that a long run is looked at once.
_LINE_PADDING = re.compile(rb"(?<![ \t])[ \t]++(?=\r?\n|\Z)")


def decode_base64(raw: bytes) -> bytes:
    """RFC 2045 section 6.8; other characters are skipped, padding may occur anywhere or be missing."""
    padding = raw.find(b"=")
    if padding < 0 or (len(raw) - padding < 8 and not raw[padding:].strip(b"=\r\n \t")):
        try:
            return a2b_base64(raw)
        except Error:
            pass
    clean = raw.translate(None, _NOT_BASE64)
    return b"".join(map(_decode_run, _PADDING.split(clean)))


def _decode_run(run: bytes) -> bytes:
    """One run of alphabet characters without padding; a single character left over carries no octet."""
    loose = len(run) % 4
    if loose == 1:
        run = run[:-1]
    elif loose:
        run += b"=="[loose - 2 :]
    return a2b_base64(run)


def decode_quoted_printable(raw: bytes) -> bytes:
    """RFC 2045 section 6.7; an escape that is none stays as it is written."""
    return a2b_qp(_LINE_PADDING.sub(b"", raw))


def decode(raw: Buffer, encoding: str, start: int, end: int, limit: int | None = None) -> bytes:
    """The decoded octets of ``raw[start:end]``, at most ``limit``; unknown encodings stay as they are."""
    if encoding == "base64":
        decoder = decode_base64
    elif encoding == "quoted-printable":
        decoder = decode_quoted_printable
    else:
        return bytes(raw[start : end if limit is None else min(end, start + limit)])
    if limit is None:
        return decoder(bytes(raw[start:end]))
    window = limit * 3 // 2 + 256
    while start + window < end:
        head = bytes(raw[start : start + window])
        if encoding == "quoted-printable":
            head = head[: head.rfind(b"\n") + 1]  # what follows the last whole line may decode otherwise
        decoded = decoder(head)
        if len(decoded) >= limit:
            return decoded[:limit]
        window *= 2
    return decoder(bytes(raw[start:end]))[:limit]
