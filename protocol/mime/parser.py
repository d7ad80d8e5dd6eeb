"""The part tree of a message (RFC 2045, 2046, 5322) with exact octet offsets, for any input.

Invariants:
- ``scan`` never raises and never recurses; it reads the buffer once, whatever the boundaries are.
- ``start <= body <= end`` for every part; children lie within the body of their parent, in order, apart.
- The line end before a delimiter line belongs to the delimiter, unless it ends the header block.
- Only a blank line or a delimiter ends a header block. If several open multiparts share a boundary, the innermost one
  owns the line. All text after a closing delimiter is epilogue, up to a delimiter of an outer multipart; so is all text
  after the last part that the limits allow.
- A multipart or message beyond the limits, a multipart without a usable boundary and a message under a
  transfer encoding are leaves (no children).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from protocol.mime.headers import HeaderBlock, parse_headers, parse_parameters

if TYPE_CHECKING:
    import mmap

Buffer: TypeAlias = "bytes | bytearray | memoryview | mmap.mmap"

_BLANK_LINE = re.compile(rb"\n\r?\n")
_BLANK_FIRST_LINE = re.compile(rb"\r?\n")
# Only lines that start with "--" can be delimiters (RFC 2046 section 5.1.1); longer boundaries are ignored.
_MAX_BOUNDARY_BYTES = 900
_DASHES = re.compile(rb"\n--([^\n]{1,1000}+)")
_BLANK_LINE_OR_DASHES = re.compile(rb"\n(?:\r?\n|--([^\n]{1,1000}+))")
_MAX_MATCH_BYTES = 1010
_FIRST_WINDOW_BYTES, _LAST_WINDOW_BYTES = 32 << 10, 256 << 10
_LINE_END = re.compile(rb"\n")
_PADDING = b" \t\r"
_CR = 13
_ENCODING = re.compile(rb"[\s\"]*+([^\s\";(]++)")
_IDENTITY = frozenset({"7bit", "8bit", "binary"})
# All header blocks together are parsed up to this multiple of the limit of one, which bounds the memory.
_HEADER_BUDGET = 2


@dataclass(frozen=True, slots=True)
class ParserLimits:
    """Bounds on the tree of one message; ``header_bytes`` is the parsed part of one header block."""

    depth: int = 32
    parts: int = 1000
    header_bytes: int = 1 << 20


_DEFAULT_LIMITS = ParserLimits()


@dataclass(slots=True)
class Part:
    """One part: header block ``[start, body)``, body ``[body, end)``.

    ``number`` is how IMAP names the part (RFC 3501 section 6.4.5): "" for the root; the message inside "2" is
    "2" if it is a multipart (its parts are "2.1", …), else "2.1".
    """

    start: int
    body: int
    end: int
    type: str
    subtype: str
    params: dict[str, str]
    encoding: str
    children: list[Part]
    number: str
    headers: HeaderBlock

    @property
    def is_message(self) -> bool:
        """RFC 2046 section 5.2.1 and RFC 6532 section 3.7: the body is a message."""
        return self.type == "message" and self.subtype in ("rfc822", "global")


class _Delimiter(NamedTuple):
    """A delimiter line from ``start`` (the line end before it) to ``stop``, of the multipart at ``place``."""

    start: int
    stop: int
    place: int
    closing: bool


class _Open(NamedTuple):
    """A multipart without its closing delimiter yet, at ``level`` in the list of unfinished parts."""

    boundary: bytes
    level: int


def scan(buffer: Buffer, limits: ParserLimits = _DEFAULT_LIMITS) -> Part:
    """The part tree of a whole message."""
    size = len(buffer)
    blank = _BLANK_FIRST_LINE.match(buffer) or _BLANK_LINE.search(buffer)
    body = size if blank is None else blank.end()
    root = _read_part(buffer, 0, body, size, limits.header_bytes, in_digest=False)
    if root.type == "multipart" or root.is_message:
        _Scan(buffer, size, limits, root).run()
        if root.children:
            _assign_numbers(root)
    return root


def walk(part: Part) -> Iterator[Part]:
    """The part and all parts below it, each before its children, in the order of the buffer."""
    waiting = [part]
    while waiting:
        part = waiting.pop()
        yield part
        if part.children:
            waiting.extend(reversed(part.children))


class _Scan:
    """One pass over everything below a root that is a multipart or a message."""

    def __init__(self, buffer: Buffer, size: int, limits: ParserLimits, root: Part) -> None:
        self.buffer = buffer
        self.size = size
        self.limits = limits
        self.parts = 1
        self.header_budget = _HEADER_BUDGET * limits.header_bytes - min(root.body, limits.header_bytes)
        self.unfinished = [root]  # from the root down to the part being read; delimiters end them
        self.open: list[_Open] = []
        self.places: dict[bytes, list[int]] = {}  # boundary -> places in ``open``, the innermost last

    def run(self) -> None:
        part = self.unfinished[0]
        position = part.body - 1
        child = self.enter(part)
        while True:
            if child is not None:
                part = self.read_part(child)
                position = part.body - 1
                child = self.enter(part)
                continue
            delimiter = self.find_delimiter(_DASHES, position)
            if delimiter is None:
                return
            position = delimiter.stop
            child = self.pass_delimiter(delimiter)

    def enter(self, part: Part) -> int | None:
        """Open a part after its header block; return the start of its only child, if it is a message."""
        if len(self.unfinished) > self.limits.depth or self.parts >= self.limits.parts:
            return None
        if part.type == "multipart":
            boundary = _boundary(part)
            if boundary:
                self.places.setdefault(boundary, []).append(len(self.open))
                self.open.append(_Open(boundary, len(self.unfinished) - 1))
        elif part.is_message and part.encoding in _IDENTITY:
            return part.body
        return None

    def read_part(self, start: int) -> Part:
        """Read the part at ``start``; a blank line, a delimiter or the end of input ends its header block."""
        if self.open:
            event = self.find_delimiter(_BLANK_LINE_OR_DASHES, start - 1)
            if event is None:
                body = self.size
            elif event.place < 0:
                body = event.stop
            else:
                body = event.start + 1
        else:
            blank = _BLANK_LINE.search(self.buffer, start - 1)
            body = self.size if blank is None else blank.end()
        parent = self.unfinished[-1]
        in_digest = parent.subtype == "digest" and parent.type == "multipart"
        budget = min(self.limits.header_bytes, self.header_budget)
        part = _read_part(self.buffer, start, body, self.size, budget, in_digest=in_digest)
        self.header_budget -= min(body - start, budget)
        self.parts += 1
        parent.children.append(part)
        self.unfinished.append(part)
        return part

    def find_delimiter(self, pattern: re.Pattern[bytes], position: int) -> _Delimiter | None:
        """The next line that is a delimiter of an open multipart (or, at place -1, a blank line)."""
        if not self.open:
            return None
        places = self.places
        for base, match in self.matches(pattern, position):
            line = match[1]
            start, stop = base + match.start(), base + match.end()
            if line is None:
                return _Delimiter(start, stop, -1, False)
            line = line.rstrip(_PADDING)
            if line in places:
                return _Delimiter(start, stop, places[line][-1], False)
            if line.endswith(b"--") and line[:-2] in places:
                return _Delimiter(start, stop, places[line[:-2]][-1], True)
        return None

    def matches(self, pattern: re.Pattern[bytes], position: int) -> Iterator[tuple[int, re.Match[bytes]]]:
        """Matches from ``position`` on, with the base of their offsets.

        A buffer that is not in memory is copied in windows, small ones first: a search over a mapped file would load
        all of it into memory.
        """
        if isinstance(self.buffer, bytes | bytearray):
            for match in pattern.finditer(self.buffer, position):
                yield 0, match
            return
        window = _FIRST_WINDOW_BYTES
        passed = position
        while position < self.size:
            piece = bytes(self.buffer[position : position + window + _MAX_MATCH_BYTES])
            for match in pattern.finditer(piece, passed - position):
                if match.start() >= window:
                    break
                yield position, match
                passed = position + match.end()
            position += window
            passed = max(passed, position)
            window = min(2 * window, _LAST_WINDOW_BYTES)

    def pass_delimiter(self, delimiter: _Delimiter) -> int | None:
        """End the parts inside the multipart of the delimiter; return the start of its next child, if any."""
        end = delimiter.start
        if end > 0 and self.buffer[end - 1] == _CR:
            end -= 1
        level = self.open[delimiter.place].level
        while len(self.unfinished) > level + 1:
            part = self.unfinished.pop()
            part.end = end = max(end, part.body)
        last = delimiter.closing or self.parts >= self.limits.parts
        keep = delimiter.place if last else delimiter.place + 1
        while len(self.open) > keep:
            boundary = self.open.pop().boundary
            places = self.places[boundary]
            places.pop()
            if not places:
                del self.places[boundary]
        if last:
            return None
        line_end = _LINE_END.search(self.buffer, delimiter.stop)
        return None if line_end is None else line_end.end()


def _read_part(buffer: Buffer, start: int, body: int, end: int, header_bytes: int, *, in_digest: bool) -> Part:
    block = body
    if body - start > header_bytes:
        # Of a block that is too long, only whole lines.
        block = start + bytes(buffer[start : start + header_bytes]).rfind(b"\n") + 1
    headers = parse_headers(buffer, start, block)
    kind, subtype = "text", "plain"
    params: dict[str, str] = {}
    raw = headers.first("content-type")
    if raw is not None:
        value, params = parse_parameters(raw)
        first, slash, second = value.partition("/")
        if slash and first and second and "/" not in second:
            kind, subtype = first, second
    elif in_digest:
        # RFC 2046 section 5.1.5
        kind, subtype = "message", "rfc822"
    encoding = "7bit"
    raw = headers.first("content-transfer-encoding")
    if raw is not None:
        match = _ENCODING.match(raw)
        if match is not None:
            encoding = match[1].decode("latin-1").lower()
    return Part(start, body, end, kind, subtype, params, encoding, [], "", headers)


def _boundary(part: Part) -> bytes:
    """The boundary of a multipart as it appears in delimiter lines; empty if unusable."""
    text = part.params.get("boundary", "")
    if text.isascii():
        boundary = text.encode("ascii")
    else:
        raw = part.headers.first("content-type") or b""
        boundary = text.encode("utf-8", "replace")
        if boundary not in raw:
            boundary = text.encode("cp1252", "replace")
    boundary = boundary.rstrip(_PADDING)
    return boundary if len(boundary) <= _MAX_BOUNDARY_BYTES else b""


def _assign_numbers(root: Part) -> None:
    """RFC 3501 section 6.4.5: parts of a multipart are numbered; the message in a part has that part's number."""
    for part in walk(root):
        if part.type == "multipart":
            prefix = part.number + "." if part.number else ""
            for count, child in enumerate(part.children, 1):
                child.number = prefix + str(count)
        elif part.children:
            number = part.number or "1"
            inner = part.children[0]
            inner.number = number if inner.type == "multipart" and inner.children else number + ".1"
