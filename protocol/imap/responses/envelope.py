"""Encoding of ENVELOPE and BODYSTRUCTURE (RFC 3501 and RFC 9051, section 9), to be stored and sent.

The result is valid IMAP4rev1 for all values: a string is quoted where the grammar allows it, otherwise a literal, and
NUL, which no string may contain, is removed. Parameter values outside ASCII use the extended form of RFC 2231, which
clients without UTF8=ACCEPT understand.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from protocol.imap.wire.strings import nstring, string

if TYPE_CHECKING:
    from protocol.mime.addresses import Address
    from protocol.mime.structure import Envelope, Structure

_PERCENT = re.compile(rb"[^A-Za-z0-9!#$&+.^_`{|}~-]")


# RFC 3501 9 envelope
def encode_envelope(e: Envelope) -> bytes:
    from_ = _addresses(e.from_)
    return b"(%b %b %b %b %b %b %b %b %b %b)" % (
        nstring(e.date),
        nstring(e.subject),
        from_,
        from_ if e.sender is e.from_ else _addresses(e.sender),
        from_ if e.reply_to is e.from_ else _addresses(e.reply_to),
        _addresses(e.to),
        _addresses(e.cc),
        _addresses(e.bcc),
        nstring(e.in_reply_to),
        nstring(e.message_id),
    )


def _addresses(addresses: list[Address]) -> bytes:
    if not addresses:
        return b"NIL"
    encoded = [
        b"(%b %b %b %b)"
        % (
            b"NIL" if name is None else string(name),
            b"NIL" if route is None else string(route),
            b"NIL" if mailbox is None else string(mailbox),
            b"NIL" if host is None else string(host),
        )
        for name, route, mailbox, host in addresses
    ]
    return b"(%b)" % b"".join(encoded)


# RFC 3501 9 body
def encode_structure(s: Structure, extended: bool) -> bytes:
    """Encode a structure with extension data (BODYSTRUCTURE) or without (BODY)."""
    if not s.children:
        return _encode_one(s, [], extended)
    # Parents before children; encoded in reverse order, so that children are encoded before their parent.
    order: list[Structure] = []
    stack = [s]
    while stack:
        one = stack.pop()
        order.append(one)
        stack.extend(reversed(one.children))
    encoded: list[bytes] = []
    for one in reversed(order):
        children = [encoded.pop() for _ in one.children]
        encoded.append(_encode_one(one, children, extended))
    return encoded[0]


def _encode_one(s: Structure, children: list[bytes], extended: bool) -> bytes:
    """Encode one body, given its encoded children."""
    subtype = string(s.subtype.encode("latin-1", "replace"))
    params = _params(s.params)
    if children and s.envelope is None:
        extension = b" %b %b" % (params, _extension(s)) if extended else b""
        return b"(%b %b%b)" % (b"".join(children), subtype, extension)
    parts = [
        string(s.type.encode("latin-1", "replace")),
        subtype,
        params,
        nstring(s.id),
        nstring(s.description),
        string(s.encoding.encode("latin-1", "replace")),
        b"%d" % s.size,
    ]
    if s.envelope is not None:
        parts.append(encode_envelope(s.envelope))
        parts.extend(children)
    if s.lines is not None:
        parts.append(b"%d" % s.lines)
    if extended:
        parts.append(nstring(s.md5))
        parts.append(_extension(s))
    return b"(%b)" % b" ".join(parts)


# RFC 3501 9 body-fld-dsp, body-fld-lang and body-fld-loc
def _extension(s: Structure) -> bytes:
    if s.disposition is None and not s.language and s.location is None:
        return b"NIL NIL NIL"
    disposition = b"NIL"
    if s.disposition is not None:
        kind = string(s.disposition.type.encode("latin-1", "replace"))
        disposition = b"(%b %b)" % (kind, _params(s.disposition.params))
    language = b"(%b)" % b" ".join(map(string, s.language)) if s.language else b"NIL"
    return b"%b %b %b" % (disposition, language, nstring(s.location))


# RFC 3501 9 body-fld-param
def _params(params: dict[str, str]) -> bytes:
    if not params:
        return b"NIL"
    encoded: list[bytes] = []
    for name, value in params.items():
        key = name.encode("latin-1", "replace")
        if value.isascii():
            content = value.encode("ascii")
        else:
            key += b"*"
            content = b"utf-8''" + _PERCENT.sub(_percent, value.encode("utf-8", "replace"))
        encoded.append(string(key))
        encoded.append(string(content))
    return b"(%b)" % b" ".join(encoded)


def _percent(match: re.Match[bytes]) -> bytes:
    return b"%%%02X" % match[0][0]
