"""Text regions of a message as segments of the canonical file, where YAML can represent them.

A UTF-8 region with CRLF line endings is one literal segment. Any other region is split into runs of lines with the same
line ending and charset; short binary data becomes base64. A region that needs too many runs, or too much space in the
file, becomes a blob.
"""

from __future__ import annotations

from adapter.content.encodings import base64_lines, charsets, quoted_printable
from adapter.content.encodings.codings import EIGHT_BIT, SEVEN_BIT, Coding, quoted_coding
from adapter.content.wire import RAW, TEXT
from adapter.content.wire_encoding import SegmentDraft
from adapter.content.yaml import NOT_LITERAL, fits_yaml

MAX_RUNS = 64
MAX_RAW_BYTES = 8 * 1024
_CODED_CHARSET = "windows-1252"


def newline_of(raw: bytes) -> str | None:
    """The line ending of a text ("crlf" if it has a single line); None for mixed line endings or a bare CR."""
    if b"\r" not in raw:
        return "lf" if b"\n" in raw else "crlf"
    rest = raw.replace(b"\r\n", b"")  # several times faster than counting single octets
    return None if b"\r" in rest or b"\n" in rest else "crlf"


def is_literal(raw: bytes) -> bool:
    """True if a text segment without parameters can represent the octets."""
    return newline_of(raw) == "crlf" and fits_yaml(raw)


def segment_text(raw: bytes) -> list[SegmentDraft] | None:
    """Split a region into text and raw segments; None if it must become a blob."""
    if not raw:
        return []
    newline = newline_of(raw)
    if newline is not None and fits_yaml(raw):
        return [SegmentDraft(TEXT, len(raw), raw, None if newline == "crlf" else Coding("8bit", "", newline))]
    drafts: list[SegmentDraft] = []
    raw_size = 0
    for style, run in _runs(raw):
        if len(drafts) == MAX_RUNS:
            drafts = []
            break
        if style == "crlf":
            drafts.append(SegmentDraft(TEXT, len(run), run))
        elif style == "raw":
            raw_size += len(run)
            drafts.append(SegmentDraft(RAW, len(run), run))
        else:
            newline, _, charset = style.partition(" ")
            text = run.replace(b"\r\n", b"\n")
            if charset:
                text = text.decode("cp1252").encode()
            drafts.append(SegmentDraft(TEXT, len(run), text, Coding("8bit", charset, newline)))
    if drafts and raw_size <= MAX_RAW_BYTES:
        return drafts
    return [SegmentDraft(RAW, len(raw), raw)] if len(raw) <= MAX_RAW_BYTES else None


def _runs(raw: bytes) -> list[tuple[str, bytes]]:
    """Group consecutive lines by style: "crlf", "lf", either with a charset, or "raw"."""
    runs: list[tuple[str, bytes]] = []
    style, start, at, size = "", 0, 0, len(raw)
    while at < size:
        stop = raw.find(b"\n", at) + 1 or size
        now = _style(raw[at:stop], style)
        if now != style:
            if start < at:
                runs.append((style, raw[start:at]))
                if len(runs) > MAX_RUNS:
                    return runs
            style, start = now, at
        at = stop
    runs.append((style, raw[start:]))
    return runs


def _style(line: bytes, before: str) -> str:
    if line.endswith(b"\r\n"):
        newline, core = "crlf", line[:-2]
    elif line.endswith(b"\n"):
        newline, core = "lf", line[:-1]
    else:
        newline, core = before.partition(" ")[0] if before not in ("", "raw") else "crlf", line
    if b"\r" in core:
        return "raw"
    if fits_yaml(core):
        return newline
    try:
        text = core.decode("cp1252")
    except UnicodeDecodeError:
        return "raw"
    return "raw" if NOT_LITERAL.search(text) or "\ufffd" in text else f"{newline} {_CODED_CHARSET}"


def coded_text(raw: bytes, encoding: str, label: str) -> tuple[bytes, Coding] | None:
    """Decode a whole part to UTF-8 with LF; also return the coding that reproduces ``raw``. None if there is none."""
    if encoding == "base64":
        return _base64_text(raw, label)
    newline = newline_of(raw)
    if newline is None:
        return None
    if newline == "crlf":
        raw = raw.replace(b"\r\n", b"\n")
    quoting = None
    if encoding == "quoted-printable":
        analysed = quoted_printable.analyse(raw)
        if analysed is None:
            return None
        raw, quoting = analysed
    decoded = _decode(raw, label)
    if decoded is None:
        return None
    text, charset = decoded
    if quoting is not None:
        return text, quoted_coding(quoting, charset, newline)
    if not charset and newline == "crlf":
        return text, SEVEN_BIT if raw.isascii() else EIGHT_BIT
    return text, Coding("7bit" if raw.isascii() else "8bit", charset, newline)


def _base64_text(raw: bytes, label: str) -> tuple[bytes, Coding] | None:
    start, end, line, eol = base64_lines.detect(raw, 0, len(raw))
    if start or end != len(raw):
        return None
    try:
        data = b"".join(base64_lines.decode_exact(raw, start, end, line, eol))
    except base64_lines.InexactError:
        return None
    newline = newline_of(data)
    decoded = None if newline is None else _decode(data.replace(b"\r\n", b"\n"), label)
    if newline is None or decoded is None:
        return None
    return decoded[0], Coding("base64", decoded[1], newline, line, "lf" if eol == b"\n" else "crlf")


def _decode(raw: bytes, label: str) -> tuple[bytes, str] | None:
    """Convert ``raw`` to UTF-8 and return its charset; None for NUL, a bare CR or an unknown charset."""
    if b"\x00" in raw or b"\r" in raw:
        return None
    if raw.isascii() and b"\x1b" not in raw:
        return raw, ""
    decoded = charsets.decode(raw, label)
    if decoded is None:
        return None
    text, charset = decoded
    return (text.encode() if charset else raw), charset
