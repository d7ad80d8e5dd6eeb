"""BODY from BODYSTRUCTURE: the same structure without its extension data (RFC 3501 7.4.2 and 9, body).

Works on the encoded form that ``fragments.encode_structure`` writes. Nothing recurses; every octet is passed once.
"""

from __future__ import annotations

import re

# A string, the head of a literal, an atom (a number or NIL), a parenthesis or a space.
_TOKEN = re.compile(rb'"(?>(?:[^"\\]++|\\.)*)"|\{(\d++)\}\r\n|[^\s()"{]++|[() ]', re.DOTALL)
_TEXT = b'"text"'
_MESSAGE = b'"message"'
_MESSAGES = (b'"rfc822"', b'"global"')

# RFC 3501 9: the fields of a part before its extension data. A text adds its lines, a message its envelope, body and
# lines; a multipart has its subtype alone, after the parts.
_OF_BASIC, _OF_TEXT, _OF_MESSAGE, _OF_MULTIPART = 7, 8, 10, 1
_BEFORE_INNER_BODY = 8


class _Body:
    """A body that is being read."""

    __slots__ = ("fields", "first", "wanted")

    def __init__(self) -> None:
        self.fields = 0
        self.wanted = _OF_BASIC
        self.first = b""

    def field(self, token: bytes) -> None:
        self.fields += 1
        if self.fields == 1:
            self.first = token
        elif self.fields == 2 and self.first == _TEXT:
            self.wanted = _OF_TEXT
        elif self.fields == 2 and self.first == _MESSAGE and token in _MESSAGES:
            self.wanted = _OF_MESSAGE

    @property
    def is_next_a_body(self) -> bool:
        return self.fields == 0 or (self.fields == _BEFORE_INNER_BODY and self.wanted == _OF_MESSAGE)


def plain_structure(encoded: bytes) -> bytes:
    """BODY of an encoded BODYSTRUCTURE."""
    out: list[bytes] = []
    bodies: list[_Body] = []
    taken_from = 0  # what follows from here on belongs to the result
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
                body.wanted = _OF_MULTIPART
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
                if body.fields > body.wanted:
                    taken_from = at - 1
                bodies.pop()
                body = bodies[-1] if bodies else None
                if body is None or body.wanted == _OF_MULTIPART:
                    continue
        elif depth:
            continue
        body.field(token)
        if body.fields == body.wanted:
            out.append(encoded[taken_from:at])
            taken_from = at
    out.append(encoded[taken_from:])
    return b"".join(out)
