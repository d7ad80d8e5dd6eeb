"""Decoding of an encoded ENVELOPE: the inverse of ``envelope.encode_envelope``.

It contains all fields for SORT and most of those for SEARCH and THREAD, and one query returns it for a whole folder. An
envelope without literals, as nearly all are, is split by one regular expression.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from protocol.mime.addresses import Address

_STRING = rb'"(?>(?:[^"\\]++|\\.)*)"|NIL'
_LITERAL = rb"\{(\d++)\}\r\n"
_LIST = rb"NIL|\((?>(?:\((?:%b) (?:%b) (?:%b) (?:%b)\))+)\)" % ((_STRING,) * 4)
_WHOLE = re.compile(
    rb"\((%b) (%b) %b (%b) (%b)\)" % (_STRING, _STRING, b" ".join([b"(%b)" % _LIST] * 6), _STRING, _STRING), re.DOTALL
)
_ADDRESS = re.compile(rb"\((%b) (%b) (%b) (%b)\)" % ((_STRING,) * 4), re.DOTALL)
_TOKEN = re.compile(rb"%b|%b|[() ]" % (_STRING, _LITERAL), re.DOTALL)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


class EncodedEnvelope(NamedTuple):
    """The fields, each encoded and without literals."""

    date: bytes
    subject: bytes
    from_: bytes
    sender: bytes
    reply_to: bytes
    to: bytes
    cc: bytes
    bcc: bytes
    in_reply_to: bytes
    message_id: bytes


def split_envelope(encoded: bytes) -> EncodedEnvelope:
    """Split an envelope into its fields. Raises ValueError if this server did not encode it."""
    match = _WHOLE.fullmatch(encoded) or _WHOLE.fullmatch(_without_literals(encoded))
    if match is None:
        raise ValueError("not an envelope")
    return EncodedEnvelope(*match.groups())


# RFC 3501 9 nstring
def string(field: bytes) -> bytes | None:
    if field == b"NIL":
        return None
    return _ESCAPED.sub(rb"\1", field[1:-1]) if b"\\" in field else field[1:-1]


# RFC 3501 9 env-from and the like
def addresses(field: bytes) -> list[Address]:
    return [Address(*map(string, four)) for four in _ADDRESS.findall(field)]


def _without_literals(encoded: bytes) -> bytes:
    """Replace every literal by a quoted string, which need not be valid IMAP."""
    out: list[bytes] = []
    at = 0
    while (match := _TOKEN.match(encoded, at)) is not None:
        at = match.end()
        if match[1] is None:
            out.append(match[0])
        else:
            text = encoded[at : at + int(match[1])]
            at += len(text)
            out.append(b'"%b"' % text.replace(b"\\", b"\\\\").replace(b'"', b'\\"'))
    return b"".join(out)
