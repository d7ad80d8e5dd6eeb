"""The outline: where the parts of a message lie, kept so that a section can be served without scanning the message.

A part is ``[start, body, end, type, subtype, encoding, children]``; the encoded form is but a cache.
"""

from __future__ import annotations

from typing import Any

import orjson

from protocol.errors import MailError, Reason
from protocol.mime.headers import parse_headers
from protocol.mime.parser import Part

_NO_HEADERS = parse_headers(b"", 0, 0)


def encode(root: Part) -> bytes:
    """Parts are at most a few dozen levels deep (the scanner's limit), so recursion is bounded."""
    return orjson.dumps(_row(root))


def _row(part: Part) -> list[Any]:
    children = [_row(child) for child in part.children]
    return [part.start, part.body, part.end, part.type, part.subtype, part.encoding, children]


def decode(encoded: bytes) -> Part:
    """The part tree with offsets, types and encodings; header blocks and parameters are not kept."""
    try:
        return _part(orjson.loads(encoded))
    except (ValueError, TypeError) as error:
        raise MailError(Reason.BAD_CONTENT, f"outline cannot be read: {error}") from error


def _part(row: list[Any]) -> Part:
    start, body, end, kind, subtype, encoding, children = row
    return Part(start, body, end, kind, subtype, {}, encoding, [_part(child) for child in children], "", _NO_HEADERS)
