"""RFC 2047 encoded words in header values, and the raw octets around them."""

from __future__ import annotations

import re

from protocol.mime.charsets import decode_charset, decode_octets
from protocol.mime.transfer import decode_base64

# RFC 2047 section 2, with the language of RFC 2231 section 5. White space in the text is wrong but common.
_WORD = re.compile(rb"=\?([^?*\s]++)(?>(?:\*[^?\s]*+)?)\?([BbQq])\?([^?]*+)\?=")
_HEX = re.compile(rb"=([0-9A-Fa-f]{2})")
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SPACES = "\t\n\r"


def _drop_control(match: re.Match[str]) -> str:
    return " " if match[0] in _SPACES else ""


def clean(text: str) -> str:
    """One line without control characters: tabs and line ends become spaces, the rest goes."""
    if text.isprintable():
        return text
    return _CONTROLS.sub(_drop_control, text)


def decode_words(raw: bytes) -> str:
    """The text of a header value: encoded words decoded, raw 8-bit octets read as UTF-8 or Windows-1252."""
    if b"=?" not in raw:
        return clean(decode_octets(raw))
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
        octets.append(_decode_text(match[2], match[3]))
        position = match.end()
    if octets:
        pieces.append(decode_charset(b"".join(octets), charset))
    if position < len(raw):
        pieces.append(decode_octets(raw[position:]))
    return clean("".join(pieces))


def _decode_text(encoding: bytes, text: bytes) -> bytes:
    if encoding in b"Bb":
        return decode_base64(text)
    return _HEX.sub(lambda hit: bytes.fromhex(hit[1].decode("ascii")), text.replace(b"_", b" "))
