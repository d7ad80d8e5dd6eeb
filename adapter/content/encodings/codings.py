"""Coding: the exact encoding of one segment, from UTF-8 text or decoded octets to the octets on the wire.

A canonical file stores a :class:`Coding` for each ``text``, ``body`` or ``blob`` segment: the parameters that differ
from the defaults below, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from adapter.content.encodings import base64_lines, charsets, quoted_printable
from adapter.content.encodings.quoted_printable import Quoting
from protocol.errors import MailError, Reason

LINE_ENDS = {"crlf": b"\r\n", "lf": b"\n"}
#: Encodings that leave octets unchanged; ``identity`` marks octets that could not be decoded reversibly.
PLAIN = frozenset({"7bit", "8bit", "binary", "identity"})
CHUNK_BYTES = 256 * 1024


class Coding(NamedTuple):
    """``charset``: "" is UTF-8. ``newline``: line endings of the text. ``line``, ``eol``: base64 line format.

    ``marks``: for long quoted-printable blobs, the (decoded, encoded) offsets of chunks that can be encoded separately.
    """

    encoding: str
    charset: str = ""
    newline: str = "crlf"
    line: int = 0
    eol: str = "crlf"
    escape: tuple[int, ...] = ()
    blanks: bool = True
    extra: tuple[int, ...] = ()
    width: int = 0
    final: int = 0
    breaks: tuple[int, ...] = ()
    marks: tuple[int, ...] = ()

    @property
    def quoting(self) -> Quoting:
        return Quoting(self.escape, self.blanks, self.extra, self.width, self.final, self.breaks)


SEVEN_BIT, EIGHT_BIT = Coding("7bit"), Coding("8bit")


def quoted_coding(quoting: Quoting, charset: str = "", newline: str = "crlf") -> Coding:
    return Coding("quoted-printable", charset, newline, 0, "crlf", *quoting)


def _quote(text: bytes, coding: Coding) -> bytes:
    try:
        encoded = quoted_printable.encode(text, coding.quoting)
    except IndexError as error:
        raise MailError(Reason.BAD_CONTENT, "quoted-printable parameters do not fit the text") from error
    return encoded.replace(b"\n", b"\r\n") if coding.newline == "crlf" else encoded


def encode_text(text: bytes, coding: Coding) -> bytes:
    """Encode UTF-8 text with ``\\n`` line endings to the octets of the message."""
    if coding.charset:
        try:
            text = charsets.encode(text.decode(), coding.charset)
        except UnicodeDecodeError as error:
            raise MailError(Reason.BAD_CONTENT, "text is not UTF-8") from error
    if coding.encoding == "quoted-printable":
        return _quote(text, coding)
    if coding.newline == "crlf":
        text = text.replace(b"\n", b"\r\n")
    if coding.encoding == "base64":
        return base64_lines.encode(text, coding.line, LINE_ENDS[coding.eol])
    return text


def encode_blob(data: bytes, coding: Coding) -> bytes:
    """Encode the octets of a decoded part to the octets of the message."""
    if coding.encoding == "base64":
        return base64_lines.encode(data, coding.line, LINE_ENDS[coding.eol])
    if coding.encoding == "quoted-printable":
        return _quote(data.replace(b"\r\n", b"\n") if coding.newline == "crlf" else data, coding)
    return data


def blob_range(read: Callable[[int, int], bytes], coding: Coding, size: int, start: int, stop: int) -> Iterator[bytes]:
    """Octets [start, stop) of the ``size`` octets of an encoded blob, in chunks; ``read(offset, length)``: the blob."""
    if coding.encoding == "base64":
        yield from base64_lines.encoded_range(read, coding.line, LINE_ENDS[coding.eol], size, start, stop)
    elif coding.encoding == "quoted-printable":
        marks = [(0, 0), *zip(coding.marks[::2], coding.marks[1::2])]
        for number, (decoded, encoded) in enumerate(marks):
            last = number + 1 == len(marks)
            end = size if last else marks[number + 1][1]
            if encoded < stop and end > start:
                data = read(decoded, -1 if last else marks[number + 1][0] - decoded)
                yield encode_blob(data, coding)[max(start - encoded, 0) : stop - encoded]
    else:
        for at in range(start, stop, CHUNK_BYTES):
            yield read(at, min(CHUNK_BYTES, stop - at))


# -- placeholders for lost content, so that RFC822.SIZE and every offset stay the same ------------------------------

PLACEHOLDER_SENTENCE = (
    b"This part of the message was lost from the mail store.\r\n"
    b"The other parts are as they arrived. Dots fill the place of the lost octets.\r\n\r\n"
)
_FILLER_LINE = b"." * 70 + b"\r\n"


def filler(offset: int, length: int) -> bytes:
    """Octets [offset, offset + length) of the endless filler."""
    head = PLACEHOLDER_SENTENCE[offset : offset + length]
    at = (max(offset, len(PLACEHOLDER_SENTENCE)) - len(PLACEHOLDER_SENTENCE)) % len(_FILLER_LINE)
    rest = length - len(head)
    return head + (_FILLER_LINE * ((at + rest) // len(_FILLER_LINE) + 1))[at : at + rest]


def placeholder_range(coding: Coding, size: int, start: int, stop: int) -> Iterator[bytes]:
    """Octets [start, stop) of the ``size`` octets that replace a lost encoded part, in chunks.

    The filler depends on nothing but the size and the coding of the part; an ``identity`` part gets plain text.
    """
    if coding.encoding == "base64":
        yield from base64_lines.encoded_range(filler, coding.line, LINE_ENDS[coding.eol], size, start, stop)
        return
    for at in range(start, stop, CHUNK_BYTES):  # the filler has no "=", so it is valid quoted-printable too
        yield filler(at, min(CHUNK_BYTES, stop - at))
