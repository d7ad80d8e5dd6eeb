"""``HEADER.FIELDS`` of a header block with one regular expression: clients ask it of whole folders.

The result is that of ``protocol.mime.sections``, which reads every field of the block.
"""

from __future__ import annotations

import re
from functools import lru_cache

from protocol.mime.headers import parse_headers
from protocol.mime.parser import Part
from protocol.mime.sections import Section, section_bytes

# Names that a field can have (RFC 5322 3.6.8); others match nothing.
_NAME = re.compile(r"[!-9;-~]+").fullmatch
_LONGEST_PATTERN = 2048  # octets of names: patterns are remembered, and longer ones would take much memory


def header_fields(header: bytes, section: Section) -> bytes:
    """The wanted (or unwanted) fields of a block, with the blank line that ends it (RFC 3501 6.4.5)."""
    if section.what == "HEADER.FIELDS" and header.endswith(b"\n") and sum(map(len, section.fields)) <= _LONGEST_PATTERN:
        pattern = _pattern(section.fields)
        if pattern is not None:
            # Each with the line end before it: a literal first octet makes the search several times faster.
            found = pattern.findall(b"\n" + header)
            end = _blank_line(header)
            return b"".join([*found, b"\n", end])[1:] if found else end
    size = len(header)
    part = Part(0, size, size, "text", "plain", {}, "7bit", [], "", parse_headers(header, 0, size))
    return section_bytes(header, part, Section((), section.what, section.fields)) or b""


@lru_cache(256)
def _pattern(names: tuple[str, ...]) -> re.Pattern[bytes] | None:
    """None if letters beyond ASCII are to be compared."""
    if not all(name.isascii() for name in names):
        return None
    known = "|".join(re.escape(name) for name in names if _NAME(name)) or "(?!)"
    field = rf"\n(?:{known})[ \t]*+:[^\n]*+(?>(?:\n[ \t][^\n]*+)*)(?=\n)"
    return re.compile(field.encode("ascii"), re.IGNORECASE)


def _blank_line(header: bytes) -> bytes:
    end = b"\r\n" if header.endswith(b"\r\n") else b"\n"
    before = header[: -len(end)]
    return end if not before or before.endswith(b"\n") else b""
