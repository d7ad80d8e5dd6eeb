"""Write the ``wire`` entry of a canonical file, and parse it with exact offsets.

::

    wire:
      sha256: <of the octets>
      size: <number of octets>
      segments:
        - |2+                        text with CRLF line endings; "+": ends with a newline, "-": does not
          Subject: …
        - charset: iso-8859-1        text in another charset or with other line endings
          newline: lf
          text: |2-
            …
        - raw: <base64>              a few octets of binary data
        - body: quoted-printable     the text after the front matter, with its encoding and parameters
          width: 75
          final: 76
        - blob: <sha256>             a blob with its encoding
          encoding: base64
          line: 76
          octets: 66060              its size on the wire

Every line of a text is indented, including blank lines, so a single replacement converts octets to a scalar and back.
A text contains only characters that YAML allows in a block scalar: UTF-8 without controls (except tab), DEL, C1, NEL,
LS, PS and BOM. The parameters are the fields of :class:`~adapter.content.encodings.codings.Coding` that differ from
their defaults, in the order of declaration.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from adapter.content.encodings.charsets import name_of
from adapter.content.encodings.codings import LINE_ENDS, PLAIN, Coding, encode_text
from adapter.content.wire import BLOB, BODY, INDENT, INDENT_CODED, INLINE, RAW, TEXT, Recipe, Segment
from adapter.content.yaml import hex_scalar
from protocol.errors import MailError, Reason

_BREAK, _BREAK_CODED = b"\n" + b" " * INDENT, b"\n" + b" " * INDENT_CODED
_PARAMETERS = Coding._fields[1:]
_DEFAULTS = Coding._field_defaults
_DEFAULT_VALUES = Coding("")[1:]
_NUMBERS = frozenset({"line", "width", "final", "octets"})
_LISTS = frozenset({"escape", "extra", "breaks", "marks"})

_WIRE = re.compile(
    rb'\nwire:\n  sha256: ("?)([0-9a-f]{64})\1\n  size: (0|[1-9][0-9]{0,14})\n  segments:(?: (\[\])\n|\n)'
)
_TEXT = re.compile(rb"    - \|2([+-])\n      ([^\n]*+\n(?>(?:      [^\n]*+\n)*))")
_CODED_TEXT = re.compile(
    rb"    - ((?:[a-z]+: [^\n]*\n      )+)text: \|2([+-])\n        ([^\n]*+\n(?>(?:        [^\n]*+\n)*))"
)
_RAW = re.compile(rb"    - raw: ([A-Za-z0-9+/]+={0,2})\n")
_BODY = re.compile(rb"    - body: ([a-z0-9-]+)\n((?:      [a-z0-9]+: [^\n]*\n)*)")
_BLOB = re.compile(rb'    - blob: ("?)([0-9a-f]{64})\1\n      encoding: ([a-z0-9-]+)\n((?:      [a-z0-9]+: [^\n]*\n)*)')
_PARAMETER = re.compile(r"([a-z0-9]+): ([^\n]*)\n")


class SegmentDraft(NamedTuple):
    """A segment to be written. ``content``: octets of a TEXT or RAW segment (UTF-8 with LF if it has parameters)."""

    kind: int
    size: int
    content: bytes = b""
    coding: Coding | None = None
    ref: str = ""


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    return str(value).lower()


def _parameters(coding: Coding) -> list[str]:
    if coding[1:] == _DEFAULT_VALUES:
        return []
    return [f"{name}: {_value(value)}\n" for name, value in zip(_PARAMETERS, coding[1:]) if value != _DEFAULTS[name]]


def write_wire(
    at: int, before_body: int, sha256: str, size: int, drafts: Iterable[SegmentDraft]
) -> tuple[bytes, list[Segment]]:
    """Write the ``wire`` entry at offset ``at`` of a file; return the entry and its segments.

    ``before_body``: number of octets between the entry and the body.
    """
    head = f"wire:\n  sha256: {hex_scalar(sha256)}\n  size: {size}\n  segments:".encode()
    out: list[bytes] = [head]
    at += len(head)
    segments: list[Segment] = []
    start, body_at = 0, -1
    for draft in drafts:
        kind, octets, content, coding, ref = draft
        if not segments:
            out.append(b"\n")
            at += 1
        if kind == TEXT and coding is None:
            ended = content.endswith(b"\n")
            lead = b"    - |2+\n      " if ended else b"    - |2-\n      "
            text = (content[:-2] if ended else content).replace(b"\r\n", _BREAK)
        elif kind == TEXT and coding is not None:
            ended = content.endswith(b"\n")
            lead = f"    - {'      '.join(_parameters(coding))}      text: |2{'+' if ended else '-'}\n".encode()
            lead += b" " * INDENT_CODED
            text = (content[:-1] if ended else content).replace(b"\n", _BREAK_CODED)
        else:
            ended = False
            text = b2a_base64(content, newline=False) if kind == RAW else b""
            lead = b"    - raw: " if kind == RAW else _mapping(draft)[:-1]
        begin = at + len(lead)
        stop = begin + len(text)
        if kind in (TEXT, RAW):
            segments.append(Segment(kind, start, octets, begin, stop, int(ended), coding))
        else:
            if kind == BODY:
                body_at = len(segments)
            segments.append(Segment(kind, start, octets, 0, 0, 0, coding, ref))
        out += lead, text, b"\n"
        at = stop + 1
        start += octets
    if not segments:
        out.append(b" []\n")
        at += 4
    if body_at >= 0:
        segments[body_at] = Segment(BODY, *segments[body_at][1:3], at + before_body, -1, 0, segments[body_at].coding)
    return b"".join(out), segments


def _mapping(draft: SegmentDraft) -> bytes:
    coding = draft.coding or Coding("identity")
    if draft.kind == BODY:
        lines = [f"    - body: {coding.encoding}\n"]
    else:
        lines = [f"    - blob: {hex_scalar(draft.ref)}\n", f"encoding: {coding.encoding}\n"]
    lines += _parameters(coding)
    if draft.kind == BLOB:
        lines.append(f"octets: {draft.size}\n")
    return "      ".join(lines).encode()


def _coding(encoding: str, values: dict[str, Any]) -> Coding | None:
    """Build a coding from untrusted parameters; None if a parameter is unknown or out of range."""
    values.pop("octets", None)
    for name, value in values.items():
        if name not in _DEFAULTS or value == _DEFAULTS[name]:
            return None
        if name in _NUMBERS:
            good = type(value) is int and 0 < value <= 1 << 20
        elif name in _LISTS:
            good = isinstance(value, tuple) and all(type(item) is int and item >= 0 for item in value)
            good = good and (name != "escape" or max(value) < 0x80) and (name != "marks" or len(value) % 2 == 0)
        elif name == "charset":
            good = isinstance(value, str) and name_of(value) == value
        elif name == "blanks":
            good = value is False
        else:
            good = value in LINE_ENDS
        if not good:
            return None
    if encoding not in PLAIN and encoding not in ("base64", "quoted-printable"):
        return None
    return Coding(encoding, **values)


def _read_parameters(lines: bytes) -> dict[str, Any] | None:
    """Parse parameters in the writer's exact form; None for any other form of YAML."""
    values: dict[str, Any] = {}
    for name, text in _PARAMETER.findall(lines.decode("latin-1")):
        if name in values:
            return None
        if name in _NUMBERS:
            if not text.isdecimal() or (text[0] == "0" and text != "0") or len(text) > 15:
                return None
            values[name] = int(text)
        elif name in _LISTS:
            try:
                items = orjson.loads(text)
            except ValueError:
                return None
            if not isinstance(items, list) or text != _value(tuple(items)):
                return None
            values[name] = tuple(items)
        else:
            values[name] = False if text == "false" else text
    return values


def read_wire(file: bytes, head_end: int, body_start: int) -> tuple[Recipe, int] | None:
    """Parse a ``wire`` entry in the writer's exact form: the recipe and the end of the entry, or None.

    ``head_end``: end of the front matter.
    """
    match = _WIRE.search(file, 0, head_end)
    if match is None:
        return None
    wire_sha256, size = match[2].decode(), int(match[3])
    segments: list[Segment] = []
    at = match.end()
    start = 0
    body_at = -1
    while match[4] is None:
        item = _TEXT.match(file, at, head_end)
        if item is not None:
            begin, stop = item.start(2), item.end(2) - 1
            ended = int(item[1] == b"+")
            lines = item[2].count(b"\n") - 1
            octets = stop - begin + (2 - 1 - INDENT) * lines + 2 * ended
            segments.append(Segment(TEXT, start, octets, begin, stop, ended))
        elif (item := _RAW.match(file, at, head_end)) is not None:
            octets = len(a2b_base64(item[1])) if len(item[1]) % 4 == 0 else -1
            segments.append(Segment(RAW, start, octets, *item.span(1)))
        elif (item := _BODY.match(file, at, head_end)) is not None:
            coding = _our_coding(item[1], item[2])
            if coding is None or body_at >= 0:
                return None
            body_at, octets = len(segments), 0
            segments.append(Segment(BODY, start, 0, body_start, -1, 0, coding))
        elif (item := _BLOB.match(file, at, head_end)) is not None:
            values = _read_parameters(item[4])
            octets = -1 if values is None else values.get("octets", -1)
            coding = None if values is None else _coding(item[3].decode(), values)
            if coding is None:
                return None
            segments.append(Segment(BLOB, start, octets, 0, 0, 0, coding, item[2].decode()))
        elif (item := _CODED_TEXT.match(file, at, head_end)) is not None:
            coding = _our_coding(b"8bit", item[1])
            if coding is None:
                return None
            ended = int(item[2] == b"+")
            text = item[3].replace(_BREAK_CODED, b"\n")
            octets = len(encode_text(text if ended else text[:-1], coding))
            segments.append(Segment(TEXT, start, octets, item.start(3), item.end(3) - 1, ended, coding))
        else:
            break
        if octets < 0:
            return None
        at = item.end()
        start += octets
    if body_at >= 0:
        _place_body(segments, body_at, size - start)
    return Recipe(size, wire_sha256, segments), at


def _our_coding(encoding: bytes, lines: bytes) -> Coding | None:
    values = _read_parameters(lines)
    return None if values is None else _coding(encoding.decode(), values)


def _place_body(segments: list[Segment], body_at: int, octets: int) -> None:
    """Assign the remaining octets to the body and shift the segments after it."""
    segments[body_at] = segments[body_at]._replace(size=octets)
    for number in range(body_at + 1, len(segments)):
        segments[number] = segments[number]._replace(start=segments[number].start + octets)


def wire_from_yaml(wire: object, body_start: int) -> Recipe:
    """Build the recipe from a ``wire`` entry parsed by the YAML loader; raises MailError(BAD_CONTENT)."""
    if not isinstance(wire, dict) or not isinstance(wire.get("segments"), list):
        raise MailError(Reason.BAD_CONTENT, "front matter: no wire segments")
    size = wire.get("size")
    if type(size) is not int or size < 0:
        raise MailError(Reason.BAD_CONTENT, "front matter: bad wire size")
    segments: list[Segment] = []
    start, body_at = 0, -1
    for number, item in enumerate(wire["segments"]):
        segment = _yaml_segment(item, start, body_start)
        if segment.kind == BODY:
            if body_at >= 0:
                raise MailError(Reason.BAD_CONTENT, "front matter: two body segments")
            body_at = number
        segments.append(segment)
        start += segment.size
    if body_at >= 0:
        _place_body(segments, body_at, size - start)
    return Recipe(size, str(wire.get("sha256", "")), segments)


def _yaml_segment(item: object, start: int, body_start: int) -> Segment:
    if isinstance(item, str):
        return _inline(start, item.encode().replace(b"\n", b"\r\n"))
    if isinstance(item, dict):
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in item.items()
        }
        raw, text, body, blob = (values.pop(name, None) for name in ("raw", "text", "body", "blob"))
        encoding, octets = values.pop("encoding", body if body is not None else "8bit"), values.get("octets")
        coding = _coding(encoding, values) if isinstance(encoding, str) else None
        if coding is not None:
            if isinstance(text, str):
                return _inline(start, encode_text(text.encode(), coding))
            if isinstance(raw, str):
                try:
                    return _inline(start, a2b_base64(raw, strict_mode=True))
                except ValueError:
                    pass
            elif body is not None:
                return Segment(BODY, start, 0, body_start, -1, 0, coding)
            elif isinstance(blob, str) and type(octets) is int and octets >= 0:
                return Segment(BLOB, start, octets, 0, 0, 0, coding, blob)
    raise MailError(Reason.BAD_CONTENT, "front matter: malformed wire segment")


def _inline(start: int, octets: bytes) -> Segment:
    return Segment(INLINE, start, len(octets), ref=b2a_base64(octets, newline=False).decode())
