"""The text of a part: transfer encoding and charset undone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.mime import transfer
from protocol.mime.charsets import decode_charset

if TYPE_CHECKING:
    from protocol.mime.scanner import Buffer, Part

__all__ = ["decode_body", "decode_charset", "decode_text"]


def decode_body(buffer: Buffer, part: Part, limit: int | None = None) -> bytes:
    """The transfer-decoded octets of a body, at most ``limit`` of them."""
    return transfer.decode(buffer, part.encoding, part.body, part.end, limit)


def decode_text(buffer: Buffer, part: Part, limit: int | None = None) -> str:
    """A body as text with LF line ends, from at most ``limit`` decoded octets."""
    text = decode_charset(decode_body(buffer, part, limit), part.params.get("charset"))
    return text.replace("\r\n", "\n")
