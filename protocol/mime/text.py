"""The text of a part: transfer encoding, charset and format=flowed decoded. For reading and searching."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.mime.charsets import codec_of, decode_charset
from protocol.mime.encoding import decode_transfer

if TYPE_CHECKING:
    from protocol.mime.parser import Buffer, Part

__all__ = ["decode_body", "decode_charset", "decode_text"]

_BYTE_ORDER_MARK = "\ufeff"
_REPLACEMENT = "\ufffd"
_SIGNATURE = "-- "


def decode_body(buffer: Buffer, part: Part, limit: int | None = None) -> bytes:
    """The transfer-decoded octets of a body, at most ``limit`` of them."""
    return decode_transfer(buffer, part.encoding, part.body, part.end, limit)


def decode_text(buffer: Buffer, part: Part, limit: int | None = None) -> str:
    """A body as text with LF line ends, from at most ``limit`` decoded octets."""
    params = part.params
    charset = params.get("charset")
    raw = decode_body(buffer, part, limit)
    is_truncated = limit is not None and len(raw) == limit
    text = _decode_truncated(raw, charset) if is_truncated else decode_charset(raw, charset)
    text = text.removeprefix(_BYTE_ORDER_MARK).replace("\r\n", "\n")
    if params.get("format", "").lower() == "flowed" and part.type == "text" and part.subtype == "plain":
        text = unflow(text, delete_space=params.get("delsp", "").lower() == "yes")
    return text


def _decode_truncated(raw: bytes, charset: str | None) -> str:
    """Decode text that may be truncated within its last character, which is then dropped."""
    if codec_of(charset) in (None, "utf_8"):
        return decode_charset(raw[: len(raw) - _incomplete_utf8(raw[-3:])], charset)
    return decode_charset(raw, charset).removesuffix(_REPLACEMENT)


def _incomplete_utf8(tail: bytes) -> int:
    """Number of octets at the end that start an incomplete UTF-8 sequence (RFC 3629 section 3)."""
    for back in range(1, len(tail) + 1):
        octet = tail[-back]
        if octet & 0xC0 == 0x80:
            continue
        needed = 2 if octet & 0xE0 == 0xC0 else 3 if octet & 0xF0 == 0xE0 else 4 if octet & 0xF8 == 0xF0 else 1
        return back if needed > back else 0
    return 0


def unflow(text: str, *, delete_space: bool) -> str:
    """Join format=flowed lines of the same quote depth (RFC 3676); ``delete_space`` is DelSp=yes (section 4.1)."""
    lines: list[str] = []
    paragraph: list[str] = []  # the flowed lines read so far
    paragraph_depth = 0
    for line in text.split("\n"):
        content = line.lstrip(">")
        depth = len(line) - len(content)
        # Section 4.4: one space was stuffed in front.
        content = content.removeprefix(" ")
        is_signature = content == _SIGNATURE
        # Section 4.5 for the depth. An empty line ends a paragraph even if the line before it was flowed.
        if paragraph and (is_signature or not content or depth != paragraph_depth):
            lines.append(_quoted("".join(paragraph), paragraph_depth))
            paragraph.clear()
        paragraph_depth = depth
        if content.endswith(" ") and not is_signature:
            paragraph.append(content[:-1] if delete_space else content)
            continue
        paragraph.append(content)
        lines.append(_quoted("".join(paragraph), depth))
        paragraph.clear()
    if paragraph:
        lines.append(_quoted("".join(paragraph), paragraph_depth))
    return "\n".join(lines)


def _quoted(content: str, depth: int) -> str:
    return ">" * depth + " " + content if depth else content
