"""Sections of a message (RFC 3501 section 6.4.5: ``BODY[section]<partial>``) as octet ranges of its buffer.

Ranges are in order, disjoint and not empty, so a section of a large message is served without loading the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from protocol.errors import ProtocolError
from protocol.mime.headers import parse_headers
from protocol.mime.parser import Part

if TYPE_CHECKING:
    from protocol.mime.parser import Buffer

Range = tuple[int, int]

_SECTION = re.compile(
    rb"(?>(?:([1-9][0-9]{0,8}(?>(?:\.[1-9][0-9]{0,8})*))(?:\.(?=[A-Za-z])|\Z))?)"
    rb"(?>(HEADER\.FIELDS(?>(?:\.NOT)?)(?= )|HEADER|TEXT|MIME)?)",
    re.IGNORECASE,
)
# astring: an atom (or "]"), a quoted string, or the head of a literal
_FIELD_NAME = re.compile(rb'([^\x00-\x20\x7f-\xff(){%*"\\]++)|"((?>(?:[^"\\\r\n]++|\\["\\])*))"|\{(\d{1,6})\+?\}\r\n')
_ESCAPE = re.compile(rb"\\(.)")
_LINE_END = re.compile(rb"\r?+\n?+")
_CR, _LF = 13, 10
# Valid field names (RFC 5322 3.6.8); others match nothing.
_NAME = re.compile(r"[!-9;-~]+").fullmatch
_MAX_PATTERN_BYTES = 2048  # of names: compiled patterns are cached, and longer ones would take much memory


@dataclass(frozen=True, slots=True)
class Section:
    """A part number and ``what`` of it: "", HEADER, HEADER.FIELDS, HEADER.FIELDS.NOT, TEXT or MIME."""

    path: tuple[int, ...] = ()
    what: str = ""
    fields: tuple[str, ...] = ()


def parse_section(spec: bytes) -> Section:
    """Parse the text between the brackets; raises ProtocolError."""
    match = _SECTION.match(spec)
    assert match is not None  # noqa: S101 - the expression matches the empty string
    numbers, what = match.groups()
    path = () if numbers is None else tuple(map(int, numbers.split(b".")))
    name = "" if what is None else what.decode("ascii").upper()
    if name.startswith("HEADER.FIELDS"):
        return Section(path, name, _parse_field_names(spec, match.end()))
    if match.end() != len(spec) or (name == "MIME" and not path):
        raise ProtocolError("Invalid section")
    return Section(path, name)


def _parse_field_names(spec: bytes, position: int) -> tuple[str, ...]:
    """RFC 3501 section 9: header-list."""
    names: list[str] = []
    opening = b" ("
    while spec.startswith(opening, position):
        match = _FIELD_NAME.match(spec, position + len(opening))
        if match is None:
            break
        atom, quoted, size = match.groups()
        position = match.end()
        if size is not None:
            name = spec[position : position + int(size)]
            position += int(size)
        else:
            name = atom if quoted is None else _ESCAPE.sub(rb"\1", quoted)
        names.append(name.decode("latin-1"))
        opening = b" "
    if not names or spec[position:] != b")":
        raise ProtocolError("Invalid header list")
    return tuple(names)


def find_part(root: Part, path: tuple[int, ...]) -> Part | None:
    """The part with a number; part 1 of a message that is not a multipart is the message's own body."""
    part = root
    is_whole_message = True
    for number in path:
        if not is_whole_message and part.is_message and part.children:
            part = part.children[0]
            is_whole_message = True
        if part.type == "multipart" and part.children:
            if number > len(part.children):
                return None
            part = part.children[number - 1]
        elif number != 1 or not is_whole_message:
            return None
        is_whole_message = False
    return part


def section_ranges(buffer: Buffer, root: Part, section: Section) -> list[Range] | None:
    """The ranges of a section; None if the message has no such part."""
    part = find_part(root, section.path)
    if part is None:
        return None
    what = section.what
    if section.path:
        if what == "":
            return _ranges((part.body, part.end))
        if what == "MIME":
            return _ranges((part.start, part.body))
        # HEADER and TEXT are those of the message in the part.
        if not part.is_message or not part.children:
            return None
        part = part.children[0]
    if what == "":
        return _ranges((part.start, part.end))
    if what == "HEADER":
        return _ranges((part.start, part.body))
    if what == "TEXT":
        return _ranges((part.body, part.end))
    fields = _field_ranges(buffer, part, section.fields)
    if what == "HEADER.FIELDS":
        return _ranges(*fields, (_blank_line(buffer, part), part.body))
    edges = [part.start, *(edge for pair in fields for edge in pair), part.body]
    return _ranges(*zip(edges[::2], edges[1::2], strict=True))


def section_bytes(buffer: Buffer, root: Part, section: Section) -> bytes | None:
    """The octets of a section; None if the message has no such part."""
    ranges = section_ranges(buffer, root, section)
    if ranges is None:
        return None
    return b"".join([bytes(buffer[start:end]) for start, end in ranges])


def partial(ranges: list[Range], origin: int, length: int) -> list[Range]:
    """RFC 3501 section 6.4.5: ``<origin.length>`` of the concatenated ranges."""
    taken: list[Range] = []
    for start, end in ranges:
        if length <= 0:
            break
        size = end - start
        if origin >= size:
            origin -= size
            continue
        stop = min(end, start + origin + length)
        taken.append((start + origin, stop))
        length -= stop - start - origin
        origin = 0
    return taken


def _ranges(*pairs: Range) -> list[Range]:
    """Drop empty ranges and join adjacent ones."""
    joined: list[Range] = []
    for start, end in pairs:
        if start >= end:
            continue
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _field_ranges(buffer: Buffer, part: Part, names: tuple[str, ...]) -> list[Range]:
    """The fields of those names, with their line ends."""
    lower = {name.lower() for name in names}
    ranges: list[Range] = []
    for one in part.headers.fields:
        if one.lower in lower:
            line_end = _LINE_END.match(buffer, one.end, part.body)
            ranges.append((one.start, part.body if line_end is None else line_end.end()))
    return ranges


def _blank_line(buffer: Buffer, part: Part) -> int:
    """Start of the blank line that ends the header block; the end of the block if there is none."""
    start = part.body
    if start > part.start and buffer[start - 1] == _LF:
        start -= 1
        if start > part.start and buffer[start - 1] == _CR:
            start -= 1
        if start == part.start or buffer[start - 1] == _LF:
            return start
    return part.body


def header_fields(header: bytes, section: Section) -> bytes:
    """HEADER.FIELDS (or .NOT) of a header block, with the blank line that ends it (RFC 3501 6.4.5).

    The result is that of :func:`section_bytes`. Clients request it for whole folders, so one regular expression finds
    the fields instead of a parse of the whole block.
    """
    if (
        section.what == "HEADER.FIELDS"
        and header.endswith(b"\n")
        and sum(map(len, section.fields)) <= _MAX_PATTERN_BYTES
    ):
        pattern = _pattern(section.fields)
        if pattern is not None:
            # Match each field with the line end before it: a literal first octet makes the search several times faster.
            fields = pattern.findall(b"\n" + header)
            end = _final_blank_line(header)
            return b"".join([*fields, b"\n", end])[1:] if fields else end
    size = len(header)
    part = Part(0, size, size, "text", "plain", {}, "7bit", [], "", parse_headers(header, 0, size))
    return section_bytes(header, part, Section((), section.what, section.fields)) or b""


@lru_cache(256)
def _pattern(names: tuple[str, ...]) -> re.Pattern[bytes] | None:
    """The pattern for fields of these names; None if a name is not ASCII."""
    if not all(name.isascii() for name in names):
        return None
    alternatives = "|".join(re.escape(name) for name in names if _NAME(name)) or "(?!)"
    field = rf"\n(?:{alternatives})[ \t]*+:[^\n]*+(?>(?:\n[ \t][^\n]*+)*)(?=\n)"
    return re.compile(field.encode("ascii"), re.IGNORECASE)


def _final_blank_line(header: bytes) -> bytes:
    end = b"\r\n" if header.endswith(b"\r\n") else b"\n"
    before = header[: -len(end)]
    return end if not before or before.endswith(b"\n") else b""
