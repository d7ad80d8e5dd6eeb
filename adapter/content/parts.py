"""MIME parts of a message: choose the readable body, name the attachments, and cache the outline.

The readable body is the first text/markdown leaf, else the first text/plain, else the first text/html. Leaves of the
message itself come before leaves of embedded messages, and an attachment is never the body. A blank plain text next
to an HTML part is skipped: some mailers add one as a formality.

The outline is the part tree with its offsets, cached in the index so that a section can be served without scanning the
message. A row is ``[start, body, end, type, subtype, encoding, children]``.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson

from protocol.errors import MailError, Reason
from protocol.mime.headers import decode_words, parse_headers, parse_parameters
from protocol.mime.parser import Buffer, Part
from protocol.mime.text import decode_body

_MAX_NAME_BYTES = 150
_UNSAFE = re.compile(r'[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff/\\:*?"<>|\ud800-\udfff]+')
_BLANKS = b" \t\r\n\xa0"
# Delivery and reading reports are message/* by the standard, but readable text.
_TEXT_LIKE = frozenset({"delivery-status", "disposition-notification", "feedback-report", "global-delivery-status"})
_EXTENSIONS = {
    "text/plain": ".txt",
    "text/html": ".html",
    "text/calendar": ".ics",
    "message/rfc822": ".eml",
    "image/jpeg": ".jpg",
    "image/svg+xml": ".svg",
    "application/octet-stream": ".bin",
    "application/pgp-signature": ".asc",
    "application/pkcs7-signature": ".p7s",
}


class Leaf(NamedTuple):
    """A part without children. ``name``: safe file name of an attachment, else ""."""

    part: Part
    name: str


class Leaves(NamedTuple):
    """All leaves in order, and the readable one: a text (``body``) or an HTML part (``html``), never both."""

    all: list[Leaf]
    body: Part | None
    html: Part | None


def safe_name(name: str) -> str:
    """Sanitise a file name: no path, no control characters, no direction overrides."""
    name = _UNSAFE.sub("_", name).strip(" .")
    if len(name.encode("utf-8", "replace")) > _MAX_NAME_BYTES:
        stem, dot, extension = name.rpartition(".")
        if not dot or len(extension) > 10:
            stem, extension = name, ""
        keep = stem.encode("utf-8", "replace")[: _MAX_NAME_BYTES - 12].decode("utf-8", "ignore").rstrip(" .")
        name = f"{keep}.{extension}" if extension else keep
    return name


def is_text(part: Part) -> bool:
    """True for a text leaf: stored in the file if small, and an attachment only if declared as one."""
    if part.type == "message":
        return part.subtype in _TEXT_LIKE
    return part.type in ("text", "multipart")


def _attachment_name(part: Part, number: int) -> str:
    """The file name of an attachment; "" if the leaf is not an attachment."""
    raw = part.headers.first("content-disposition")
    params = part.params
    disposition, given = "", ""
    if raw is not None:
        disposition, details = parse_parameters(raw)
        given = details.get("filename", "")
    given = given or params.get("name", "")
    if disposition != "attachment" and is_text(part) and not (given and disposition):
        return ""
    if "=?" in given:
        given = decode_words(given.encode("utf-8", "replace"))
    name = safe_name(given.replace("\\", "/").rpartition("/")[2] if "/" in given or "\\" in given else given)
    if name:
        return name
    kind = f"{part.type}/{part.subtype}"
    extension = _EXTENSIONS.get(kind) or "." + (re.sub(r"[^a-z0-9]+", "-", part.subtype)[:20].strip("-") or "bin")
    return f"part-{number}{extension}"


def _walk_leaves(root: Part) -> list[tuple[Part, bool]]:
    """All leaves in order, each with a flag: whether it belongs to an embedded message."""
    if not root.children:
        return [(root, False)]
    leaves: list[tuple[Part, bool]] = []
    stack = [(root, False)]
    while stack:
        part, nested = stack.pop()
        if part.children:
            nested = nested or part.is_message
            stack.extend((child, nested) for child in reversed(part.children))
        else:
            leaves.append((part, nested))
    return leaves


def classify(buffer: Buffer, root: Part) -> Leaves:
    leaves: list[Leaf] = []
    candidates: dict[tuple[bool, str], Part] = {}
    for number, (part, nested) in enumerate(_walk_leaves(root), 1):
        name = _attachment_name(part, number)
        leaves.append(Leaf(part, name))
        if not name:
            # A multipart that could not be parsed is shown as plain text.
            kind = part.subtype if part.type == "text" else "plain" if part.type == "multipart" else ""
            if kind in ("markdown", "plain", "html"):
                candidates.setdefault((nested, kind), part)
    for nested in (False, True):
        html = candidates.get((nested, "html"))
        for kind in ("markdown", "plain"):
            text = candidates.get((nested, kind))
            if text is not None and (html is None or not _is_blank(buffer, text)):
                return Leaves(leaves, text, None)
        if html is not None:
            return Leaves(leaves, None, html)
    return Leaves(leaves, None, None)


def _is_blank(buffer: Buffer, part: Part) -> bool:
    return part.end - part.body < 4096 and not decode_body(buffer, part).strip(_BLANKS)


def image_names(leaves: Leaves) -> dict[str, str]:
    """The file names of the images that an HTML part can show, by Content-ID."""
    names = {}
    for part, name in leaves.all:
        identifier = part.headers.first("content-id") if name and part.type == "image" else None
        if identifier is not None:
            names[decode_words(identifier).strip().strip("<>")] = name
    return names


# -- the outline ------------------------------------------------------------------------------------------------

_NO_HEADERS = parse_headers(b"", 0, 0)


def encode_outline(root: Part) -> bytes:
    """Encode the part tree for the cache. The scanner limits the depth of parts, so recursion is bounded."""
    return orjson.dumps(_outline_row(root))


def _outline_row(part: Part) -> list[Any]:
    children = [_outline_row(child) for child in part.children]
    return [part.start, part.body, part.end, part.type, part.subtype, part.encoding, children]


def decode_outline(encoded: bytes) -> Part:
    """Decode a part tree: offsets, types and encodings. Header blocks and parameters are not cached."""
    try:
        return _outline_part(orjson.loads(encoded))
    except (ValueError, TypeError) as error:
        raise MailError(Reason.BAD_CONTENT, f"malformed outline in the index: {error}") from error


def _outline_part(row: list[Any]) -> Part:
    start, body, end, kind, subtype, encoding, children = row
    return Part(
        start, body, end, kind, subtype, {}, encoding, [_outline_part(child) for child in children], "", _NO_HEADERS
    )
