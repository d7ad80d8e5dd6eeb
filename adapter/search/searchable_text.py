"""What a search looks through: the text of a message, decoded and folded.

The header is its fields, one to a line, ``name: value``, each line after a line feed. The body is, part by part, the
fields of the part's own header and, of texts, their content (RFC 3501 6.4.4: what is in the body of the message, in
the charset of the search). Of attachments that are no text their header alone counts. Of a message with more text than
``LIMIT`` the rest does not count (headers of parts always do), so that no message costs more than one pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from protocol.imap.search.collation import fold
from protocol.mime.headers import HeaderBlock, decode_words, parse_headers, parse_parameters
from protocol.mime.parser import Part, walk
from protocol.mime.text import decode_text

#: Octets of decoded text in one message.
LIMIT = 8 << 20
# Encoded octets that hold so much text at most: base64 and soft line breaks take room, quoted octets triple.
_RAW_LIMIT = 3 * LIMIT
_HEADER_LIMIT = 1 << 20
_NO_HEADERS = parse_headers(b"", 0, 0)
_BLANK = b" \t\r\n"
_NOT_PLAIN = re.compile(rb"[^\t\n -~]")
_PLAIN_FIELD = re.compile(r"^([!-9;-~]++) *+:([^\n]*+(?>(?:\n [^\n]*+)*))", re.MULTILINE)
_LF = "\n"

#: Octets of the message from one offset to another.
Read = Callable[[int, int], bytes]


class SearchText(NamedTuple):
    header: str
    body: str
    references: str  # the field as it came, for threads
    is_whole: bool = True  # False: more than the caller wanted, and the rest was not read


def search_text(root: Part, read: Read, longest: int | None = None) -> SearchText:
    """The text of a message whose parts lie as ``root`` says (headers and parameters are not taken from there).

    One pass: ``read`` is asked for ascending ranges. Once there are more characters than ``longest`` it ends early.
    """
    header, references = "", ""
    pieces: list[str] = []
    room = LIMIT
    length = 0
    for part in walk(root):
        if longest is not None and length > longest:
            return SearchText(header, "", references, is_whole=False)
        block = read(part.start, min(part.body, part.start + _HEADER_LIMIT))
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
    """The value of a field (its name in lower case) of a folded header; several are joined with a line feed."""
    lead = f"\n{name}: "
    if ":" in name or "\n" in name:
        return None
    found = [rest.partition("\n")[0] for rest in header.split(lead)[1:]]
    return "\n".join(found) if found else None


def _folded(text: str) -> str:
    """NUL is no text to the index; what is no character at all is replaced, as in any UTF-8."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    return fold(text.replace("\0", ""))


def _lines(block: bytes) -> str:
    """The fields of a header block, decoded."""
    text = block.replace(b"\r\n", b"\n")
    if b"=?" not in text and not _NOT_PLAIN.search(text):
        # Nothing to decode.
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
    """Values in the extended form (RFC 2231 4), such as names of attachments, which are not readable as they are."""
    found: list[str] = []
    for name in ("content-type", "content-disposition"):
        raw = headers.first(name)
        if raw is not None and b"*" in raw:
            found += parse_parameters(raw)[1].values()
    return found


def _text(part: Part, headers: HeaderBlock, read: Read, limit: int) -> str:
    raw = read(part.body, min(part.end, part.body + _RAW_LIMIT))
    declared = headers.first("content-type")
    params = parse_parameters(declared)[1] if declared is not None else {}
    leaf = Part(0, 0, len(raw), part.type, part.subtype, params, part.encoding, [], "", _NO_HEADERS)
    return decode_text(raw, leaf, limit)
