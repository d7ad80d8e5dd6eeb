"""Trace header fields (Received, Return-Path) and the header edits of submission.

Invariants: no input from a client can end a header line; no line is longer than 998 octets; fields that are not edited
keep their octets; added fields come before all others, so signatures over the rest still verify.
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
_INVALID_NAME_CHARS = re.compile(r"[^A-Za-z0-9.:_\[\]-]")
_INVALID_COMMENT_CHARS = re.compile(r"[^A-Za-z0-9.:_ /+-]")
#: RFC 5322 3.6.3; RFC 5321 4.4: only the server of final delivery writes Return-Path.
_PRIVATE_FIELDS = frozenset({"bcc", "resent-bcc", "return-path"})
_AUTHORS = ("From", "Sender", "Resent-From", "Resent-Sender")
_QUOTED = re.compile(rb'"(?>(?:[^"\\]|\\.)*)"|=\?[^?\s]+\?[bBqQ]\?[^?\s]*\?=', re.DOTALL)
_COMMENT = re.compile(rb"\((?>(?:[^()\\]|\\.)*)\)", re.DOTALL)
_MAX_AUTHOR_BYTES = 4096  # of all these fields together
_SEPARATOR = re.compile(rb"[,;:]")
_JOINTS = (b".", b"@")  # spaces around them belong to an address (RFC 5322 4.4)


def format_date(moment: datetime) -> str:
    """RFC 5322 3.3; ``moment`` has a zone. email.utils is not used because it imports sockets."""
    offset = moment.utcoffset()
    if offset is None:
        raise ValueError("the time has no zone")
    minutes = int(offset.total_seconds()) // 60
    zone = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}{abs(minutes) % 60:02d}"
    return (
        f"{_DAYS[moment.weekday()]}, {moment.day:02d} {_MONTHS[moment.month - 1]} {moment.year:04d} "
        f"{moment.hour:02d}:{moment.minute:02d}:{moment.second:02d} {zone}"
    )


def with_keyword(session: SessionState, *, smtputf8: bool = False) -> str:
    """The protocol keyword after ``with`` in Received (RFC 3848, RFC 6531 4.3)."""
    if not session.extended:
        return "SMTP"
    if session.service is Service.LMTP:
        name = "UTF8LMTP" if smtputf8 else "LMTP"
    else:
        name = "UTF8SMTP" if smtputf8 else "ESMTP"
    return name + ("S" if session.tls else "") + ("A" if session.authenticated else "")


@dataclass(frozen=True, slots=True)
class Hop:
    """One hop of a message, as recorded in Received."""

    hello: str  # the client's name for itself
    peer: str | None  # its IP address; None on a unix socket
    peer_name: str | None  # its DNS name, if looked up and confirmed
    host: str  # the server's name
    keyword: str  # from with_keyword()
    id: str
    date: datetime
    recipient: str | None = None  # only if it is the only one: Received must not reveal other recipients
    tls: str | None = None  # for people: "TLSv1.3 TLS_AES_256_GCM_SHA384"


def received_field(hop: Hop) -> bytes:
    """RFC 5321 4.4: the Received field, folded, CRLF at its end."""
    lines = [
        f"Received: from {_host(hop.hello)} ({_peer(hop)})",
        f"\tby {_host(hop.host)} with {_host(hop.keyword)} id {_host(hop.id)}",
    ]
    if hop.tls:
        lines.append(f"\t(using {_INVALID_COMMENT_CHARS.sub('', hop.tls)[:100]})")
    if hop.recipient and _can_appear(hop.recipient):
        lines.append(f"\tfor <{hop.recipient}>")
    lines[-1] += ";"
    lines.append(f"\t{format_date(hop.date)}")
    return "".join(f"{line}\r\n" for line in lines).encode()


def _host(text: str) -> str:
    return _INVALID_NAME_CHARS.sub("?", text[:255]) or "unknown"


def _peer(hop: Hop) -> str:
    if hop.peer is None:
        return "local"
    address = f"[IPv6:{_host(hop.peer)}]" if ":" in hop.peer else f"[{_host(hop.peer)}]"
    return f"{_host(hop.peer_name or 'unknown')} {address}"


def _can_appear(address: str) -> bool:
    """Only ASCII addresses are written, although RFC 6531 3.7.3 allows others: they would make the header
    international, and a server without SMTPUTF8 would refuse the message."""
    return address.isprintable() and len(address) < 600 and address.isascii()


def return_path(sender: str) -> bytes:
    """RFC 5321 4.4: the Return-Path field, written at final delivery; empty for the null sender."""
    return f"Return-Path: <{sender if sender.isprintable() else ''}>\r\n".encode()


def _parse(header: bytes) -> HeaderBlock:
    return parse_headers(header, 0, len(header))


def authors(header: bytes) -> list[str] | None:
    """The addresses that a reader shows as the author, at least From (RFC 6409 6.1 requires a check).

    None: there is no From, or the fields are ambiguous and a reader could show an address that is not checked here.
    """
    fields = _parse(header)
    values = [value for name in _AUTHORS for value in fields.all(name)]
    if sum(map(len, values)) > _MAX_AUTHOR_BYTES or any(map(_is_ambiguous, values)):
        return None
    # Some readers treat a lone CR as a line end.
    if not any(map(mailboxes, fields.all("From"))) or b"\r" in header.replace(b"\r\n", b""):
        return None
    return [mailbox.address for value in values for mailbox in mailboxes(value)]


def _is_ambiguous(value: bytes) -> bool:
    """True if an address list has more addresses than separators: readers differ in which one they take.

    Some readers include words next to an address without angle brackets (``eve ada@example.test``).
    """
    value = _QUOTED.sub(b"x", value)
    while (shorter := _COMMENT.sub(b"", value)) != value:
        value = shorter
    if b"(" in value or b'"' in value:
        return True
    for element in _SEPARATOR.split(value):
        _, opened, inside = element.partition(b"<")
        after = inside.partition(b">")[2]
        if opened:
            if b"<" in inside or after.strip():
                return True
        elif element.count(b"@") > 1 or (b"@" in element and _has_adjacent_words(element)):
            return True
    return False


def _has_adjacent_words(address: bytes) -> bool:
    return any(
        not left.endswith(_JOINTS) and not right.startswith(_JOINTS) for left, right in pairwise(address.split())
    )


def without_private_fields(header: bytes) -> bytes:
    """Remove Bcc and Return-Path fields, however they are folded or spelled."""
    lower = header.lower()
    if not any(name.encode("ascii") in lower for name in _PRIVATE_FIELDS):
        return header
    return _without(header, _PRIVATE_FIELDS)


def _without(header: bytes, names: Collection[str]) -> bytes:
    """Remove the fields with these names (lower case)."""
    kept = []
    position = 0
    for field in _parse(header).fields:
        if field.lower in names:
            kept.append(header[position : field.start])
            line_end = header.find(b"\n", field.end)
            position = len(header) if line_end < 0 else line_end + 1
    kept.append(header[position:])
    return b"".join(kept)


def add_missing_fields(header: bytes, *, date: datetime, message_id: str) -> bytes:
    """RFC 6409 8.2 and 8.3: add Date and Message-ID if they are missing or empty.

    ``message_id`` includes its angle brackets.
    """
    fields = _parse(header)
    values = {"Date": format_date(date), "Message-ID": message_id}
    missing = {name: value for name, value in values.items() if not any(fields.all(name))}
    empty = [name.lower() for name in missing if fields.first(name) is not None]
    added = "".join(f"{name}: {value}\r\n" for name, value in missing.items())
    return added.encode() + (_without(header, empty) if empty else header)
