"""Add an HTML alternative to a Markdown-only message: multipart/alternative with the original Markdown and its HTML.

Invariants: header fields keep their octets, and the fields that describe the body move into the first part; the body
keeps its octets. A message that is not Markdown, or that cannot become a part, is returned unchanged.
"""

from __future__ import annotations

import base64
import re
import secrets

from adapter.content.html.markdown_to_html import markdown_to_html
from protocol.mime.headers import parse_headers
from protocol.mime.parser import scan
from protocol.mime.text import decode_text

_MAX_TEXT_BYTES = 1 << 20
_HTML_HEADER = re.compile(rb'^Content-Type: multipart/alternative; boundary="(=_[0-9a-f]{32})"\r\n', re.MULTILINE)


def is_markdown(header: bytes) -> bool:
    """True if the header block declares the message as a single text/markdown part (RFC 7763)."""
    if b"markdown" not in header.lower():
        return False
    part = scan(header)
    return part.type == "text" and part.subtype == "markdown"


def boundary_of(header: bytes) -> bytes | None:
    """The boundary of a header block in the form that :func:`add_html` writes, or None."""
    match = _HTML_HEADER.search(header)
    return match[1] if match is not None else None


def add_html(header: bytes, body: bytes, boundary: bytes | None = None) -> bytes:
    """Add the HTML alternative. Deterministic for a given ``boundary``, which defaults to a random one. CPU-bound."""
    octets = header + body
    root = scan(octets)
    if not header.endswith(b"\r\n\r\n") or root.encoding == "binary":
        return octets
    html = markdown_to_html(decode_text(octets, root, _MAX_TEXT_BYTES))
    kept: list[bytes] = []
    moved: list[bytes] = []
    has_version = False
    position = 0
    for field in parse_headers(header, 0, len(header)).fields:
        end = header.find(b"\n", field.end) + 1 or len(header)
        (moved if field.lower.startswith("content-") else kept).append(header[position:end])
        has_version = has_version or field.lower == "mime-version"
        position = end
    boundary = boundary or f"=_{secrets.token_hex(16)}".encode("ascii")
    encoded = base64.encodebytes(f"<!DOCTYPE html>\n<html><body>\n{html}\n</body></html>\n".encode())
    top = [*kept] if has_version else [*kept, b"MIME-Version: 1.0\r\n"]
    # The container of an 8-bit body must be labelled 8bit too (RFC 2045 section 6.4).
    if not body.isascii():
        top.append(b"Content-Transfer-Encoding: 8bit\r\n")
    return b"".join(
        (
            *top,
            b'Content-Type: multipart/alternative; boundary="' + boundary + b'"\r\n\r\n',
            b"--" + boundary + b"\r\n",
            *moved,
            b"\r\n",
            body,
            b"\r\n--" + boundary + b"\r\n",
            b"Content-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\n\r\n",
            encoded.replace(b"\n", b"\r\n"),
            b"\r\n--" + boundary + b"--\r\n",
        )
    )


def remove_html(octets: bytes) -> bytes | None:
    """Undo :func:`add_html` except for the order of fields; None if ``octets`` is not its output."""
    end = octets.find(b"\r\n\r\n") + 4
    header = octets[:end]
    boundary = boundary_of(header)
    if end < 4 or boundary is None:
        return None
    first = b"--" + boundary + b"\r\n"
    last = b"\r\n--" + boundary + b"\r\nContent-Type: text/html;"
    start, stop = end + len(first), octets.rfind(last)
    split = octets.find(b"\r\n\r\n", start - 2, stop)
    if not octets.startswith(first, end) or split < 0:
        return None
    moved, body = octets[start : split + 2], octets[split + 4 : stop]
    kept = _HTML_HEADER.sub(b"", header[:-2]).removesuffix(b"Content-Transfer-Encoding: 8bit\r\n")
    # The original position of the moved fields is unknown, and irrelevant here: field order is not compared.
    original = kept + moved + b"\r\n"
    return original + body if add_html(original, body, boundary) == octets else None
