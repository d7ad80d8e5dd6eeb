"""A message that is Markdown alone becomes multipart/alternative: the Markdown as it was sent, then the same as HTML.

Invariants: header fields keep their octets, but those that describe the body move into the first part with it; the
body keeps its octets. What is not Markdown, or cannot be carried in a part, is returned as it came.
"""

from __future__ import annotations

import base64
import re
import secrets

from adapter.content.markdown_to_html import markdown_to_html
from protocol.mime.headers import parse_headers
from protocol.mime.parser import scan
from protocol.mime.text import decode_text

_MAX_TEXT = 1 << 20
_MADE = re.compile(rb'^Content-Type: multipart/alternative; boundary="(=_[0-9a-f]{32})"\r\n', re.MULTILINE)


def is_markdown(header: bytes) -> bool:
    """Whether the whole message is one text/markdown part (RFC 7763), by its header block."""
    if b"markdown" not in header.lower():
        return False
    part = scan(header)
    return part.type == "text" and part.subtype == "markdown"


def boundary_of(header: bytes) -> bytes | None:
    """The boundary in a header block that :func:`add_html` may have made; None if it did not."""
    found = _MADE.search(header)
    return found[1] if found is not None else None


def add_html(header: bytes, body: bytes, boundary: bytes | None = None) -> bytes:
    """The message with an HTML alternative, always the same for one ``boundary``; without, it is new. CPU work."""
    octets = header + body
    root = scan(octets)
    if not header.endswith(b"\r\n\r\n") or root.encoding == "binary":
        return octets
    html = markdown_to_html(decode_text(octets, root, _MAX_TEXT))
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
    # A body in 8 bits needs its container to say so (RFC 2045 6.4).
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
    """Undo :func:`add_html`, but for the order of fields; None if ``octets`` are not what it makes."""
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
    kept = _MADE.sub(b"", header[:-2]).removesuffix(b"Content-Transfer-Encoding: 8bit\r\n")
    # Whether the version field was there, and where the moved fields were, cannot be known: order does not matter here.
    original = kept + moved + b"\r\n"
    return original + body if add_html(original, body, boundary) == octets else None
