"""Encoding of ENVELOPE and BODYSTRUCTURE (RFC 3501 and RFC 9051, section 9), to be stored and sent.

The result is valid IMAP4rev1 for all values: a string is quoted where the grammar allows it, otherwise a literal, and
NUL, which no string may contain, is removed. Parameter values outside ASCII use the extended form of RFC 2231, which
clients without UTF8=ACCEPT understand.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocol.mime.addresses import Address
    from protocol.mime.structure import Envelope, Structure

# Longer strings could be quoted, too, but some clients limit the length of a line.
_is_plain = re.compile(rb"[\x01-\x09\x0b\x0c\x0e-!#-\[\]-\x7f]{0,1000}").fullmatch
_is_quotable = re.compile(rb"[\x01-\x09\x0b\x0c\x0e-\x7f]{0,1000}").fullmatch
_PERCENT = re.compile(rb"[^A-Za-z0-9!#$&+.^_`{|}~-]")


def nstring(b: bytes | None) -> bytes:
    """Encode as NIL, a quoted string, or a literal."""
    return b"NIL" if b is None else string(b)


def string(b: bytes) -> bytes:
    """Encode as a quoted string if the octets allow it, else as a literal."""
    if _is_plain(b):
        return b'"%b"' % b
    if _is_quotable(b):
        return b'"%b"' % b.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    if b"\x00" in b:
        return string(b.replace(b"\x00", b""))
    return b"{%d}\r\n%b" % (len(b), b)


def encode_envelope(e: Envelope) -> bytes:
    """RFC 3501 section 9: envelope."""
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


def encode_structure(s: Structure, extended: bool) -> bytes:
    """RFC 3501 section 9: body; with the extension data (BODYSTRUCTURE) or without (BODY)."""
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


def _extension(s: Structure) -> bytes:
    """RFC 3501 section 9: body-fld-dsp, body-fld-lang and body-fld-loc."""
    if s.disposition is None and not s.language and s.location is None:
        return b"NIL NIL NIL"
    disposition = b"NIL"
    if s.disposition is not None:
        kind = string(s.disposition.type.encode("latin-1", "replace"))
        disposition = b"(%b %b)" % (kind, _params(s.disposition.params))
    language = b"(%b)" % b" ".join(map(string, s.language)) if s.language else b"NIL"
    return b"%b %b %b" % (disposition, language, nstring(s.location))


def _params(params: dict[str, str]) -> bytes:
    """RFC 3501 section 9: body-fld-param."""
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
