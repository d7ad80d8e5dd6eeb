"""The values of IMAP's ENVELOPE, BODY and BODYSTRUCTURE (RFC 3501 section 7.4.2, RFC 9051 section 7.5.2).

Every structure can be encoded as valid IMAP:
- A multipart without children (no usable boundary, no delimiter, beyond limits) is described as a text/plain leaf.
  RFC 2045 section 5.2 requires that for a broken Content-Type, the grammar has no empty multipart, and people can
  still read the body.
- A message that was not parsed (transfer-encoded, or beyond the limits) keeps its type, with an empty envelope and an
  empty text part, since the grammar requires both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from protocol.mime.addresses import Address, parse_addresses
from protocol.mime.headers import parse_parameters
from protocol.mime.parser import walk

if TYPE_CHECKING:
    from protocol.mime.headers import HeaderBlock
    from protocol.mime.parser import Buffer, Part

_CHUNK_BYTES = 1 << 18
_LANGUAGE = re.compile(rb"[^\s,()]++")
_COMMENT = re.compile(rb"\([^()]*+\)")
_DEFAULT_CHARSET = "us-ascii"


class Envelope(NamedTuple):
    """None is an absent field, ``b""`` an empty one; absent addresses are ``[]``."""

    date: bytes | None
    subject: bytes | None
    from_: list[Address]
    sender: list[Address]
    reply_to: list[Address]
    to: list[Address]
    cc: list[Address]
    bcc: list[Address]
    in_reply_to: bytes | None
    message_id: bytes | None


EMPTY_ENVELOPE = Envelope(None, None, [], [], [], [], [], [], None, None)


def envelope(headers: HeaderBlock) -> Envelope:
    """The envelope of a message; an absent or empty Sender or Reply-To takes the value of From."""
    first = headers.first
    from_ = _addresses(first("from"))
    return Envelope(
        first("date"),
        first("subject"),
        from_,
        _addresses(first("sender")) or from_,
        _addresses(first("reply-to")) or from_,
        _addresses(first("to")),
        _addresses(first("cc")),
        _addresses(first("bcc")),
        first("in-reply-to"),
        first("message-id"),
    )


def _addresses(raw: bytes | None) -> list[Address]:
    return parse_addresses(raw) if raw else []


class Disposition(NamedTuple):
    """RFC 2183"""

    type: str
    params: dict[str, str]


@dataclass(slots=True)
class Structure:
    """One part; ``lines`` is set for text and messages, ``envelope`` for messages, which have one child."""

    type: str
    subtype: str
    params: dict[str, str]
    id: bytes | None
    description: bytes | None
    encoding: str
    size: int
    lines: int | None
    md5: bytes | None
    disposition: Disposition | None
    language: list[bytes]
    location: bytes | None
    envelope: Envelope | None = None
    children: list[Structure] = field(default_factory=list)


def structure(buffer: Buffer, part: Part) -> Structure:
    """The structure of a part and all parts below it."""
    if not part.children:
        return _describe(buffer, part)
    parts = list(walk(part))
    structures = [_describe(buffer, one) for one in parts]
    # Children follow their part, so in reverse order every child is complete before its parent.
    waiting: list[Structure] = []
    for one, node in zip(reversed(parts), reversed(structures), strict=True):
        if one.children:
            node.children = [waiting.pop() for _ in one.children]
        waiting.append(node)
    return waiting[0]


def _describe(buffer: Buffer, part: Part) -> Structure:
    """A part without its children."""
    kind, subtype, params = part.type, part.subtype, part.params
    first = part.headers.first
    lines: int | None = None
    inside: Envelope | None = None
    children: list[Structure] = []
    if kind == "multipart" and not part.children:
        kind, subtype, params = "text", "plain", {}
    elif part.is_message:
        lines = count_lines(buffer, part.body, part.end)
        if part.children:
            inside = envelope(part.children[0].headers)
        else:
            inside = EMPTY_ENVELOPE
            children = [_empty_text()]
    if kind == "text":
        lines = count_lines(buffer, part.body, part.end)
        if "charset" not in params:
            params = {"charset": _DEFAULT_CHARSET, **params}
    raw_disposition = first("content-disposition")
    raw_language = first("content-language")
    return Structure(
        kind,
        subtype,
        params,
        first("content-id"),
        first("content-description"),
        part.encoding,
        part.end - part.body,
        lines,
        first("content-md5"),
        None if raw_disposition is None else _disposition(raw_disposition),
        [] if raw_language is None else _LANGUAGE.findall(_COMMENT.sub(b"", raw_language)),
        first("content-location"),
        inside,
        children,
    )


def _disposition(raw: bytes) -> Disposition | None:
    kind, params = parse_parameters(raw)
    return Disposition(kind, params) if kind else None


def _empty_text() -> Structure:
    params = {"charset": _DEFAULT_CHARSET}
    return Structure("text", "plain", params, None, None, "7bit", 0, 0, None, None, [], None)


def count_lines(buffer: Buffer, start: int, end: int) -> int:
    """The number of line ends; in chunks if the buffer is not in memory."""
    if isinstance(buffer, bytes | bytearray):
        return buffer.count(b"\n", start, end)
    return sum(bytes(buffer[at : min(at + _CHUNK_BYTES, end)]).count(b"\n") for at in range(start, end, _CHUNK_BYTES))
