"""Content-transfer-encodings (RFC 2045 section 6) and encoded words in header values (RFC 2047).

Decoding is tolerant: garbage is skipped, nothing raises.

Invariant: a limit gives the same octets as no limit, truncated, at a cost that depends on the limit, not the size.
"""

from __future__ import annotations

import re
from binascii import Error, a2b_base64, a2b_qp
from typing import TYPE_CHECKING

from protocol.mime.charsets import decode_charset, decode_octets

if TYPE_CHECKING:
    from protocol.mime.parser import Buffer

_BASE64_OCTETS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_NOT_BASE64 = bytes(octet for octet in range(256) if octet not in _BASE64_OCTETS)
_PADDING = re.compile(rb"=+")
# RFC 2045 section 6.7 rule 3: white space at the end of a line was added in transport. Anchored at the start
# of the run, so that a long run is scanned once.
_LINE_PADDING = re.compile(rb"(?<![ \t])[ \t]++(?=\r?\n|\Z)")
# RFC 2047 section 2, with the language of RFC 2231 section 5. White space in the text is wrong but common.
_WORD = re.compile(rb"=\?([^?*\s]++)(?>(?:\*[^?\s]*+)?)\?([BbQq])\?([^?]*+)\?=")
_HEX = re.compile(rb"=([0-9A-Fa-f]{2})")
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SPACES = "\t\n\r"


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
    """Decode one run of alphabet characters without padding; a single surplus character encodes no octet."""
    loose = len(run) % 4
    if loose == 1:
        run = run[:-1]
    elif loose:
        run += b"=="[loose - 2 :]
    return a2b_base64(run)


def decode_quoted_printable(raw: bytes) -> bytes:
    """RFC 2045 section 6.7; an invalid escape is kept unchanged."""
    return a2b_qp(_LINE_PADDING.sub(b"", raw))


def decode_transfer(raw: Buffer, encoding: str, start: int, end: int, limit: int | None = None) -> bytes:
    """The decoded octets of ``raw[start:end]``, at most ``limit``; unknown encodings are returned unchanged."""
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
            head = head[: head.rfind(b"\n") + 1]  # an incomplete line may decode differently
        decoded = decoder(head)
        if len(decoded) >= limit:
            return decoded[:limit]
        window *= 2
    return decoder(bytes(raw[start:end]))[:limit]


def _drop_control(match: re.Match[str]) -> str:
    return " " if match[0] in _SPACES else ""


def to_one_line(text: str) -> str:
    """One line without control characters: tabs and line ends become spaces, the others are dropped."""
    if text.isprintable():
        return text
    return _CONTROLS.sub(_drop_control, text)


def decode_words(raw: bytes) -> str:
    """The text of a header value: encoded words decoded, raw 8-bit octets read as UTF-8 or Windows-1252."""
    if b"=?" not in raw:
        return to_one_line(decode_octets(raw))
    pieces: list[str] = []
    charset = ""
    octets: list[bytes] = []  # decoded words of one charset: a character may be split between two of them
    position = 0
    for match in _WORD.finditer(raw):
        between = raw[position : match.start()]
        label = match[1].decode("latin-1").lower()
        # RFC 2047 section 6.2: white space between adjacent encoded words is not part of the text.
        adjacent = bool(octets) and not between.strip()
        if octets and (label != charset or not adjacent):
            pieces.append(decode_charset(b"".join(octets), charset))
            octets.clear()
        if not adjacent and between:
            pieces.append(decode_octets(between))
        charset = label
        octets.append(_decode_word(match[2], match[3]))
        position = match.end()
    if octets:
        pieces.append(decode_charset(b"".join(octets), charset))
    if position < len(raw):
        pieces.append(decode_octets(raw[position:]))
    return to_one_line("".join(pieces))


def _decode_word(encoding: bytes, text: bytes) -> bytes:
    if encoding in b"Bb":
        return decode_base64(text)
    return _HEX.sub(lambda hit: bytes.fromhex(hit[1].decode("ascii")), text.replace(b"_", b" "))
