"""Placeholders: octets of the right size for content that is lost, so that RFC822.SIZE and every offset hold.

The filler begins with a sentence for people and goes on with dots. It is the same for every part, so a placeholder
needs nothing but size and coding of the part it replaces. A part kept as it came (``identity``) gets plain text.
"""

from __future__ import annotations

from collections.abc import Iterator

from adapter.content.encodings import base64_lines
from adapter.content.encodings.codings import CHUNK, LINE_ENDS, Coding

SENTENCE = (
    b"This part of the message was lost from the mail store.\r\n"
    b"The other parts are as they arrived. Dots fill the place of the lost octets.\r\n\r\n"
)
_LINE = b"." * 70 + b"\r\n"


def read(offset: int, length: int) -> bytes:
    """A range of the filler, which has no end."""
    head = SENTENCE[offset : offset + length]
    at = (max(offset, len(SENTENCE)) - len(SENTENCE)) % len(_LINE)
    rest = length - len(head)
    return head + (_LINE * ((at + rest) // len(_LINE) + 1))[at : at + rest]


def encoded_range(coding: Coding, size: int, start: int, stop: int) -> Iterator[bytes]:
    """Octets [start, stop) of the ``size`` octets that replace an encoded part, in chunks."""
    if coding.encoding == "base64":
        yield from base64_lines.encoded_range(read, coding.line, LINE_ENDS[coding.eol], size, start, stop)
        return
    for at in range(start, stop, CHUNK):  # without "=", so it is quoted-printable as well
        yield read(at, min(CHUNK, stop - at))
