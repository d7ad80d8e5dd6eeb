"""Header blocks (RFC 5322 section 2.2): fields with exact offsets, raw and decoded values.

A block is kept as text (Latin-1, so one character is one octet) and read with one regular expression; the lookup table
and the list of fields are built on first use. Lines that are not a field (an mbox "From " line, garbage) are skipped:
only a blank line ends a block, and the parser has already located it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from protocol.mime.charsets import decode_charset, decode_octets
from protocol.mime.encoding import decode_words

if TYPE_CHECKING:
    from protocol.mime.parser import Buffer

__all__ = ["HeaderBlock", "HeaderField", "decode_words", "parse_headers", "parse_parameters"]

# A name, and a value that continues while the next line starts with white space. Possessive: no backtracking.
_FIELD = re.compile(r"^([!-9;-~\x80-\xff]++)[ \t]*+:[ \t]*+([^\n]*+(?>(?:\n[ \t][^\n]*+)*))", re.MULTILINE)
_BLANK = " \t\r\n"


class HeaderField(NamedTuple):
    """The position of one field in the buffer; ``end`` excludes the line end."""

    name: str
    lower: str
    start: int
    value_start: int
    end: int


class HeaderBlock:
    """The fields of one header block, in order; independent of the buffer."""

    __slots__ = ("_fields", "_index", "_start", "_text")

    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self._start = start
        self._index: dict[str, str] | None = None
        self._fields: list[HeaderField] | None = None

    @property
    def fields(self) -> list[HeaderField]:
        fields = self._fields
        if fields is None:
            fields = self._fields = []
            text, origin = self._text, self._start
            for match in _FIELD.finditer(text):
                name, value = match.groups()
                start, end = match.span()
                value_start = origin + end - len(value)
                if text[end - 1] == "\r":
                    end -= 1
                fields.append(HeaderField(name, name.lower(), origin + start, value_start, origin + end))
        return fields

    def first(self, name: str) -> bytes | None:
        """The first value of a field, unfolded and trimmed."""
        index = self._index
        if index is None:
            index = self._index = {key.lower(): value for key, value in reversed(_FIELD.findall(self._text))}
        value = index.get(name.lower())
        return None if value is None else _unfold(value)

    def all(self, name: str) -> list[bytes]:
        """Every value of a field, in order, unfolded and trimmed."""
        if self.first(name) is None:
            return []
        lower = name.lower()
        return [_unfold(value) for key, value in _FIELD.findall(self._text) if key.lower() == lower]

    def text(self, name: str) -> str | None:
        """The first value of a field, decoded for people."""
        raw = self.first(name)
        return None if raw is None else decode_words(raw)


def _unfold(value: str) -> bytes:
    """RFC 5322 section 2.2.3: remove line ends, keep white space."""
    if "\n" in value:
        value = value.replace("\r\n", "").replace("\n", "")
    return value.strip(_BLANK).encode("latin-1")


def parse_headers(buffer: Buffer, start: int, end: int) -> HeaderBlock:
    """The header block at ``buffer[start:end]``; ``start`` is the start of a line."""
    return HeaderBlock(str(buffer[start:end], "latin-1"), start)


_VALUE = re.compile(rb"[\s;]*+([^\s;(]*+)")
_SEPARATOR = re.compile(rb"[;\s]*+")
_PARAMETER = re.compile(
    rb"""([^=;\s"]++)\s*+=\s*+(?:"((?>(?:[^"\\]++|\\.)*))"?+|([^;"]*+))""",
    re.DOTALL,
)
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_COMMENT = re.compile(rb"(?<!\s)\s+\([^()]*+\)\s*+\Z")
_EXTENDED_NAME = re.compile(rb"([^*]++)(?:\*(\d{1,4}))?(\*)?\Z")
_PERCENT = re.compile(rb"%([0-9A-Fa-f]{2})")


def parse_parameters(raw: bytes) -> tuple[str, dict[str, str]]:
    """``value; name=value; …`` as in Content-Type and Content-Disposition (RFC 2045 section 5.1, RFC 2231).

    The value and the parameter names are lower-cased. The first of equal names wins; an extended form (``name*``) wins
    over a plain one.
    """
    match = _VALUE.match(raw)
    assert match is not None  # noqa: S101 - the expression matches the empty string
    value = match[1]
    position = match.end()
    plain: dict[str, str] = {}
    extended: dict[str, dict[int, tuple[bool, bytes]]] = {}
    size = len(raw)
    while position < size:
        position = _SEPARATOR.match(raw, position).end()  # type: ignore[union-attr]
        match = _PARAMETER.match(raw, position)
        if match is None:
            position = raw.find(b";", position)
            if position < 0:
                break
            continue
        position = match.end()
        name, quoted, token = match.groups()
        if quoted is not None:
            content = _ESCAPE.sub(rb"\1", quoted) if b"\\" in quoted else quoted
        else:
            content = token.strip()
            if content.endswith(b")"):
                content = _COMMENT.sub(b"", content)
        if b"*" in name:
            form = _EXTENDED_NAME.match(name)
            if form is not None:
                sections = extended.setdefault(_token(form[1]), {})
                sections.setdefault(int(form[2] or 0), (form[3] is not None, content))
                continue
        plain.setdefault(_token(name), decode_octets(content))
    for key, sections in extended.items():
        joined = _join_sections(sections)
        if joined is not None:
            plain[key] = joined
    return value.decode("latin-1").lower(), plain


def _token(raw: bytes) -> str:
    return raw.decode("latin-1").lower()


def _join_sections(sections: dict[int, tuple[bool, bytes]]) -> str | None:
    """RFC 2231 sections 3 and 4: join sections 0, 1, … up to the first gap."""
    if 0 not in sections:
        return None
    charset: bytes | None = None
    pieces: list[bytes] = []
    number = 0
    while number in sections:
        encoded, content = sections[number]
        if encoded:
            if number == 0 and content.count(b"'") >= 2:
                charset, _, content = content.split(b"'", 2)
            content = _PERCENT.sub(lambda hit: bytes.fromhex(hit[1].decode("ascii")), content)
        pieces.append(content)
        number += 1
    return decode_charset(b"".join(pieces), None if charset is None else charset.decode("latin-1"))
