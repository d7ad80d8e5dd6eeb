"""BODY from BODYSTRUCTURE: the same structure without its extension data (RFC 3501 7.4.2 and 9, body).

The input is encoded by ``envelope.encode_structure``. Nothing recurses; every octet is scanned once.
"""

from __future__ import annotations

import re

# A string, the head of a literal, an atom (a number or NIL), a parenthesis or a space.
_TOKEN = re.compile(rb'"(?>(?:[^"\\]++|\\.)*)"|\{(\d++)\}\r\n|[^\s()"{]++|[() ]', re.DOTALL)
_TEXT = b'"text"'
_MESSAGE = b'"message"'
_MESSAGES = (b'"rfc822"', b'"global"')

# RFC 3501 9: the number of fields of a body before its extension data. A text adds its lines, a message its envelope,
# body and lines; a multipart has only its subtype, after the parts.
_BASIC_FIELDS, _TEXT_FIELDS, _MESSAGE_FIELDS, _MULTIPART_FIELDS = 7, 8, 10, 1
_FIELDS_BEFORE_INNER_BODY = 8


class _Body:
    """A body that is being scanned: its fields so far, and how many precede its extension data."""

    __slots__ = ("basic_fields", "fields", "first")

    def __init__(self) -> None:
        self.fields = 0
        self.basic_fields = _BASIC_FIELDS
        self.first = b""

    def field(self, token: bytes) -> None:
        self.fields += 1
        if self.fields == 1:
            self.first = token
        elif self.fields == 2 and self.first == _TEXT:
            self.basic_fields = _TEXT_FIELDS
        elif self.fields == 2 and self.first == _MESSAGE and token in _MESSAGES:
            self.basic_fields = _MESSAGE_FIELDS

    @property
    def is_next_a_body(self) -> bool:
        return self.fields == 0 or (self.fields == _FIELDS_BEFORE_INNER_BODY and self.basic_fields == _MESSAGE_FIELDS)


def plain_structure(encoded: bytes) -> bytes:
    """Remove the extension data from an encoded BODYSTRUCTURE."""
    out: list[bytes] = []
    bodies: list[_Body] = []
    kept_from = 0  # the start of the octets to copy next
    depth = 0  # of lists that are one field, such as parameters
    at = 0
    while (match := _TOKEN.match(encoded, at)) is not None:
        token = match[0]
        at = match.end() + (int(match[1]) if match[1] else 0)
        if token == b" ":
            continue
        body = bodies[-1] if bodies else None
        if token == b"(":
            if depth or (body is not None and not body.is_next_a_body):
                depth += 1
                continue
            if body is not None and body.fields == 0:
                body.basic_fields = _MULTIPART_FIELDS
            bodies.append(_Body())
            continue
        if body is None:
            break
        if token == b")":
            if depth:
                depth -= 1
                if depth:
                    continue
            else:
                if body.fields > body.basic_fields:
                    kept_from = at - 1
                bodies.pop()
                body = bodies[-1] if bodies else None
                if body is None or body.basic_fields == _MULTIPART_FIELDS:
                    continue
        elif depth:
            continue
        body.field(token)
        if body.fields == body.basic_fields:
            out.append(encoded[kept_from:at])
            kept_from = at
    out.append(encoded[kept_from:])
    return b"".join(out)
