"""Header fields the server writes, and the edits submission makes to a header block.

Invariants: nothing a client says can end a header line; no line is longer than 998 octets; fields that are not
edited keep their octets; added fields stand before all others, so signatures over the rest still verify.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from protocol.mime.addresses import mailboxes
from protocol.mime.headers import HeaderBlock, parse_headers
from protocol.smtp.states import Service, SessionState

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_NOT_NAME = re.compile(r"[^A-Za-z0-9.:_\[\]-]")
_NOT_COMMENT = re.compile(r"[^A-Za-z0-9.:_ /+-]")
#: RFC 5322 3.6.3; and RFC 5321 4.4: nobody but the server of final delivery writes Return-Path.
_NOT_SENT = frozenset({"bcc", "resent-bcc", "return-path"})
_AUTHORS = ("From", "Sender", "Resent-From", "Resent-Sender")
_QUOTED = re.compile(rb'"(?>(?:[^"\\]|\\.)*)"|=\?[^?\s]+\?[bBqQ]\?[^?\s]*\?=', re.DOTALL)
_COMMENT = re.compile(rb"\((?>(?:[^()\\]|\\.)*)\)", re.DOTALL)
_MAX_AUTHORS = 4096  # octets of all their fields
_BETWEEN = re.compile(rb"[,;:]")
_JOINTS = (b".", b"@")  # spaces around them belong to an address (RFC 5322 4.4)


def format_date(moment: datetime) -> str:
    """RFC 5322 3.3; ``moment`` is aware. Not from email.utils, which would bring in sockets."""
    offset = moment.utcoffset()
    if offset is None:
        raise ValueError("a time without zone")
    minutes = int(offset.total_seconds()) // 60
    zone = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}{abs(minutes) % 60:02d}"
    return (
        f"{_DAYS[moment.weekday()]}, {moment.day:02d} {_MONTHS[moment.month - 1]} {moment.year:04d} "
        f"{moment.hour:02d}:{moment.minute:02d}:{moment.second:02d} {zone}"
    )


def with_keyword(session: SessionState, *, smtputf8: bool = False) -> str:
    """What follows ``with`` in Received (RFC 3848, RFC 6531 4.3)."""
    if not session.extended:
        return "SMTP"
    if session.service is Service.LMTP:
        name = "UTF8LMTP" if smtputf8 else "LMTP"
    else:
        name = "UTF8SMTP" if smtputf8 else "ESMTP"
    return name + ("S" if session.tls else "") + ("A" if session.authenticated else "")


@dataclass(frozen=True, slots=True)
class Hop:
    """One step of a message's way, as the server saw it."""

    hello: str  # what the client called itself
    peer: str | None  # its IP address; None on a unix socket
    peer_name: str | None  # its name in the DNS, if looked up and confirmed
    host: str  # the server's name
    keyword: str  # from with_keyword()
    id: str
    date: datetime
    recipient: str | None = None  # only if there is one alone: Received must not tell of the others
    tls: str | None = None  # for people: "TLSv1.3 TLS_AES_256_GCM_SHA384"


def received(hop: Hop) -> bytes:
    """RFC 5321 4.4: the Received field, folded, CRLF at its end."""
    lines = [
        f"Received: from {_host(hop.hello)} ({_peer(hop)})",
        f"\tby {_host(hop.host)} with {_host(hop.keyword)} id {_host(hop.id)}",
    ]
    if hop.tls:
        lines.append(f"\t(using {_NOT_COMMENT.sub('', hop.tls)[:100]})")
    if hop.recipient and _fits(hop.recipient):
        lines.append(f"\tfor <{hop.recipient}>")
    lines[-1] += ";"
    lines.append(f"\t{format_date(hop.date)}")
    return "".join(f"{line}\r\n" for line in lines).encode()


def _host(text: str) -> str:
    return _NOT_NAME.sub("?", text[:255]) or "unknown"


def _peer(hop: Hop) -> str:
    if hop.peer is None:
        return "local"
    address = f"[IPv6:{_host(hop.peer)}]" if ":" in hop.peer else f"[{_host(hop.peer)}]"
    return f"{_host(hop.peer_name or 'unknown')} {address}"


def _fits(address: str) -> bool:
    """Not even where RFC 6531 3.7.3 allows it is an address written that is not ASCII: it would make a header
    international that is not, and a server without SMTPUTF8 would not take the message."""
    return address.isprintable() and len(address) < 600 and address.isascii()


def return_path(sender: str) -> bytes:
    """RFC 5321 4.4: written at final delivery; empty for the null sender."""
    return f"Return-Path: <{sender if sender.isprintable() else ''}>\r\n".encode()


def _parse(header: bytes) -> HeaderBlock:
    return parse_headers(header, 0, len(header))


def authors(header: bytes) -> list[str] | None:
    """Everybody in whose name the message is sent (RFC 6409 6.1 wants them checked), From at least.

    None: there is no From, or the fields can be read in two ways, and somebody could be named who is not seen here.
    """
    fields = _parse(header)
    values = [value for name in _AUTHORS for value in fields.all(name)]
    if sum(map(len, values)) > _MAX_AUTHORS or any(map(_is_ambiguous, values)):
        return None
    # A CR that stands alone ends a line for some.
    if not any(map(mailboxes, fields.all("From"))) or b"\r" in header.replace(b"\r\n", b""):
        return None
    return [mailbox.address for value in values for mailbox in mailboxes(value)]


def _is_ambiguous(value: bytes) -> bool:
    """Whether an address list has more addresses than commas; a reader takes the first, another the last.

    Words beside an address without angle brackets are part of it for some (``eve ada@example.test``).
    """
    value = _QUOTED.sub(b"x", value)
    while (shorter := _COMMENT.sub(b"", value)) != value:
        value = shorter
    if b"(" in value or b'"' in value:
        return True
    for element in _BETWEEN.split(value):
        _, opened, inside = element.partition(b"<")
        after = inside.partition(b">")[2]
        if opened:
            if b"<" in inside or after.strip():
                return True
        elif element.count(b"@") > 1 or (b"@" in element and _has_words_beside(element)):
            return True
    return False


def _has_words_beside(address: bytes) -> bool:
    return any(
        not left.endswith(_JOINTS) and not right.startswith(_JOINTS) for left, right in pairwise(address.split())
    )


def without_unsent(header: bytes) -> bytes:
    """Without fields that must not leave their author, however they are folded or spelled."""
    lower = header.lower()
    if not any(name.encode("ascii") in lower for name in _NOT_SENT):
        return header
    return _without(header, _NOT_SENT)


def _without(header: bytes, names: Collection[str]) -> bytes:
    """Without the fields of these names, which are in lower case."""
    kept = []
    position = 0
    for field in _parse(header).fields:
        if field.lower in names:
            kept.append(header[position : field.start])
            line_end = header.find(b"\n", field.end)
            position = len(header) if line_end < 0 else line_end + 1
    kept.append(header[position:])
    return b"".join(kept)


def complete(header: bytes, *, date: datetime, message_id: str) -> bytes:
    """RFC 6409 8.2 and 8.3: Date and Message-ID added if they are missing, or put in the place of empty ones.

    ``message_id`` has its brackets.
    """
    fields = _parse(header)
    values = {"Date": format_date(date), "Message-ID": message_id}
    missing = {name: value for name, value in values.items() if not any(fields.all(name))}
    empty = [name.lower() for name in missing if fields.first(name) is not None]
    added = "".join(f"{name}: {value}\r\n" for name, value in missing.items())
    return added.encode() + (_without(header, empty) if empty else header)
