"""Searchable text of a message, decoded and folded.

The header has one line per field, ``name: value``, each preceded by a line feed. The body has, part by part, the fields
of the part's own header and the content of text parts (RFC 3501 6.4.4: the body of the message, in the charset of the
search). Attachments of other types contribute their header only. Text beyond ``MAX_TEXT_CHARACTERS`` is ignored, except
headers of parts, so that no message costs more than one pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from protocol.imap.search.collation import fold
from protocol.mime.headers import HeaderBlock, decode_words, parse_headers, parse_parameters
from protocol.mime.parser import Part, walk
from protocol.mime.text import decode_text

#: Of decoded text in one message.
MAX_TEXT_CHARACTERS = 8 << 20
# Encoded octets of that text: base64 and soft line breaks need more, quoted octets three times as many.
_MAX_RAW_BYTES = 3 * MAX_TEXT_CHARACTERS
_MAX_HEADER_BYTES = 1 << 20
_NO_HEADERS = parse_headers(b"", 0, 0)
_BLANK = b" \t\r\n"
_NOT_PLAIN = re.compile(rb"[^\t\n -~]")
_PLAIN_FIELD = re.compile(r"^([!-9;-~]++) *+:([^\n]*+(?>(?:\n [^\n]*+)*))", re.MULTILINE)
_LF = "\n"

#: Reads the message from one offset to another.
Read = Callable[[int, int], bytes]


class SearchText(NamedTuple):
    header: str
    body: str
    references: str  # the field as received, for threads
    is_whole: bool = True  # False: longer than the caller's limit, and not read to the end


def search_text(root: Part, read: Read, longest: int | None = None) -> SearchText:
    """Extract the text of a message, with the offsets of its parts from ``root``.

    One pass: ``read`` is called for ascending ranges. It stops early after more characters than ``longest``.
    """
    header, references = "", ""
    pieces: list[str] = []
    room = MAX_TEXT_CHARACTERS
    length = 0
    for part in walk(root):
        if longest is not None and length > longest:
            return SearchText(header, "", references, is_whole=False)
        block = read(part.start, min(part.body, part.start + _MAX_HEADER_BYTES))
        headers = parse_headers(block, 0, len(block))
        lines = _lines(block)
        length += len(lines)
        if part is root:
            header = _folded(lines)
            references = decode_words(headers.first("references") or b"")
        else:
            pieces.append(lines)
            pieces += _parameters(headers)
        if not part.children and part.type in ("text", "message", "multipart") and room > 0:
            text = _text(part, headers, read, room)
            room -= len(text)
            length += len(text)
            pieces.append(text)
    return SearchText(header, _folded("\n".join(pieces)), references)


def field_of(header: str, name: str) -> str | None:
    """Return a field (its name in lower case) of a folded header; repeated fields are joined by line feeds."""
    lead = f"\n{name}: "
    if ":" in name or "\n" in name:
        return None
    values = [rest.partition("\n")[0] for rest in header.split(lead)[1:]]
    return "\n".join(values) if values else None


def _folded(text: str) -> str:
    """Fold text for the index: without NUL, and with lone surrogates replaced."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    return fold(text.replace("\0", ""))


def _lines(block: bytes) -> str:
    """Decode the fields of a header block."""
    text = block.replace(b"\r\n", b"\n")
    if b"=?" not in text and not _NOT_PLAIN.search(text):
        fields = _PLAIN_FIELD.findall(text.decode("ascii").replace("\t", " "))
        return "".join(
            [f"\n{name}: {(value.replace(_LF, '') if _LF in value else value).strip(' ')}" for name, value in fields]
        )
    lines = []
    for field in parse_headers(text, 0, len(text)).fields:
        value = text[field.value_start : field.end].replace(b"\n", b"").strip(_BLANK)
        lines.append(f"\n{field.lower}: {decode_words(value)}")
    return "".join(lines)


def _parameters(headers: HeaderBlock) -> list[str]:
    """Decode parameters in the extended form (RFC 2231 4), such as names of attachments."""
    values: list[str] = []
    for name in ("content-type", "content-disposition"):
        raw = headers.first(name)
        if raw is not None and b"*" in raw:
            values += parse_parameters(raw)[1].values()
    return values


def _text(part: Part, headers: HeaderBlock, read: Read, limit: int) -> str:
    raw = read(part.body, min(part.end, part.body + _MAX_RAW_BYTES))
    declared = headers.first("content-type")
    params = parse_parameters(declared)[1] if declared is not None else {}
    leaf = Part(0, 0, len(raw), part.type, part.subtype, params, part.encoding, [], "", _NO_HEADERS)
    return decode_text(raw, leaf, limit)
