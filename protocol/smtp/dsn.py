"""Delivery reports (RFC 3464 in a multipart/report, RFC 6522; RFC 6533 for international addresses).

Invariants: the result is a complete message with CRLF line ends, no NUL, no line over 998 octets, and is ASCII unless
an address or the returned message is not; text from a remote server or the sender cannot inject a field or a part.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from protocol.mime.headers import parse_headers
from protocol.smtp.commands import OriginalRecipient, Ret
from protocol.smtp.trace import format_date

#: Of a larger message only the header is returned.
MAX_RETURNED_BYTES = 1 << 20
_MAX_HEADER_BYTES = 256 << 10
_MAX_TEXT_BYTES = 400
_MESSAGE_ID = re.compile(rb"<[!-;=?-~]{1,250}>")


class Action(Enum):
    """RFC 3464 2.3.3."""

    FAILED = "failed"
    DELAYED = "delayed"
    DELIVERED = "delivered"
    RELAYED = "relayed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The delivery status of one recipient."""

    address: str
    action: Action
    status: str  # RFC 3463
    diagnostic: str = ""  # the reply of the remote server, or our own
    remote: str = ""  # the remote server's name
    orcpt: OriginalRecipient | None = None
    last_attempt: datetime | None = None
    retry_until: datetime | None = None
    reason: str = ""  # for people, if the diagnostic alone does not explain it


@dataclass(frozen=True, slots=True)
class Report:
    """``header`` and ``message`` are the original's; without ``message`` only the header is returned."""

    host: str
    to: str  # the return path
    message_id: str  # of the report, with its brackets
    now: datetime
    arrived: datetime
    outcomes: tuple[Outcome, ...]
    header: bytes
    message: bytes | None = None
    envid: str | None = None
    ret: Ret | None = None


_SUBJECTS = {
    Action.FAILED: "Undelivered mail returned to sender",
    Action.DELAYED: "Mail is delayed; delivery will be retried",
    Action.DELIVERED: "Mail was delivered",
    Action.RELAYED: "Mail was relayed",
}
_INTRODUCTIONS = {
    Action.FAILED: "Your message could not be delivered to",
    Action.DELAYED: "Your message is delayed and does not have to be sent again. It is not yet delivered to",
    Action.DELIVERED: "Your message was delivered to",
    Action.RELAYED: "Your message was relayed to a server that may not send further reports. The recipients are",
}


def build(report: Report) -> bytes:
    """The report as a message, to be sent with a null reverse-path (RFC 3461 6.1)."""
    original = parse_headers(report.header, 0, len(report.header))
    text = _text(report, original.text("Subject") or "").encode()
    status, international = _status(report)
    returned = _returned(report)
    parts = [
        _part("text/plain; charset=utf-8", text),
        _part("message/global-delivery-status" if international else "message/delivery-status", status),
        returned,
    ]
    boundary = _boundary(report.message_id, parts)
    subject = next(_SUBJECTS[action] for action in Action if any(o.action is action for o in report.outcomes))
    fields = [
        f"From: Mail Delivery System <MAILER-DAEMON@{_clean(report.host)}>",
        f"To: <{_clean(report.to)}>",
        f"Subject: {subject}",
        f"Date: {format_date(report.now)}",
        f"Message-ID: {report.message_id}",
        "Auto-Submitted: auto-replied",
        "MIME-Version: 1.0",
        f'Content-Type: multipart/report; report-type=delivery-status; boundary="{boundary}"',
    ]
    origin = _MESSAGE_ID.fullmatch(original.first("Message-ID") or b"")
    if origin is not None:
        fields.append(f"References: {origin[0].decode('ascii')}")
    if not all(part.isascii() for part in parts):
        fields.append("Content-Transfer-Encoding: 8bit")
    delimiter = f"\r\n--{boundary}".encode("ascii")
    head = "\r\n".join(fields).encode() + b"\r\n\r\nThis is a MIME message.\r\n"
    return head + b"".join(delimiter + b"\r\n" + part for part in parts) + delimiter + b"--\r\n"


def _clean(text: str, limit: int = _MAX_TEXT_BYTES) -> str:
    """Reduce any text to one printable line of at most ``limit`` octets."""
    cut = text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")
    return "".join(char if char.isprintable() else " " for char in cut)


def _ascii(text: str) -> str:
    return _clean(text).encode("ascii", "replace").decode("ascii")


def _text(report: Report, subject: str) -> str:
    """The part for people."""
    lines = [f"This is the mail system at {_clean(report.host)}.", ""]
    for action in Action:
        outcomes = [outcome for outcome in report.outcomes if outcome.action is action]
        if not outcomes:
            continue
        lines += [f"{_INTRODUCTIONS[action]}:", ""]
        for outcome in outcomes:
            lines.append(f"  <{_clean(outcome.address)}>")
            if outcome.reason:
                lines.append(f"    {_clean(outcome.reason)}")
            if outcome.diagnostic:
                source = f"{_clean(outcome.remote, 255)} said: " if outcome.remote else ""
                lines.append(f"    {source}{_clean(outcome.diagnostic)}")
            if outcome.retry_until is not None:
                lines.append(f"    Delivery will be retried until {format_date(outcome.retry_until)}.")
        lines.append("")
    lines.append("The message:")
    lines.append(f"  Subject: {_clean(subject)}")
    lines.append(f"  Arrived: {format_date(report.arrived)}")
    return "".join(f"{line}\r\n" for line in lines)


def _status(report: Report) -> tuple[bytes, bool]:
    """RFC 3464 2.2 and 2.3: fields for the message, then for each recipient."""
    message = [f"Reporting-MTA: dns; {_clean(report.host)}"]
    if report.envid is not None:
        message.append(f"Original-Envelope-Id: {_ascii(report.envid)}")
    message.append(f"Arrival-Date: {format_date(report.arrived)}")
    groups = [message]
    for outcome in report.outcomes:
        group = []
        if outcome.orcpt is not None:
            group.append(f"Original-Recipient: {_clean(outcome.orcpt.type)};{_clean(outcome.orcpt.address, 600)}")
        kind = "rfc822" if outcome.address.isascii() else "utf-8"
        group.append(f"Final-Recipient: {kind};{_clean(outcome.address, 600)}")
        group.append(f"Action: {outcome.action.value}")
        group.append(f"Status: {_ascii(outcome.status)}")
        if outcome.remote:
            group.append(f"Remote-MTA: dns; {_ascii(outcome.remote)}")
        if outcome.diagnostic:
            group.append(f"Diagnostic-Code: smtp; {_ascii(outcome.diagnostic)}")
        if outcome.last_attempt is not None:
            group.append(f"Last-Attempt-Date: {format_date(outcome.last_attempt)}")
        if outcome.retry_until is not None:
            group.append(f"Will-Retry-Until: {format_date(outcome.retry_until)}")
        groups.append(group)
    text = "\r\n".join("".join(f"{line}\r\n" for line in group) for group in groups)
    return text.encode(), not text.isascii()


def _returned(report: Report) -> bytes:
    """RFC 3461 4.3: return the whole message only for a failure, and only with RET=FULL or without RET."""
    message = report.message
    failed = any(outcome.action is Action.FAILED for outcome in report.outcomes)
    if (
        message is not None
        and failed
        and report.ret is not Ret.HEADERS
        and len(message) <= MAX_RETURNED_BYTES
        and _is_text(message)
    ):
        return _part("message/global" if _is_international(report.header) else "message/rfc822", message)
    header = report.header[:_MAX_HEADER_BYTES].replace(b"\r\n", b"\n").replace(b"\r", b" ").replace(b"\0", b" ")
    header = header.rstrip(b"\n").replace(b"\n", b"\r\n") + b"\r\n"
    if _is_text(header) and header.isascii():
        return _part("text/rfc822-headers", header)
    # The only part that may be encoded, so that any header can be returned.
    encoded = binascii.b2a_qp(header, istext=True)
    return (
        b"Content-Type: text/rfc822-headers; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
        + (encoded)
    )


def _is_international(header: bytes) -> bool:
    """RFC 6532: valid UTF-8 in the header; other 8-bit octets are errors."""
    if header.isascii():
        return False
    try:
        header.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _is_text(data: bytes) -> bool:
    """True for 7bit or 8bit content: CRLF lines of bounded length, no NUL (RFC 2045 2.7 and 2.8)."""
    lines = data.split(b"\r\n")
    return b"\0" not in data and not any(len(line) > 998 or b"\r" in line or b"\n" in line for line in lines)


def _part(content_type: str, body: bytes) -> bytes:
    encoding = b"" if body.isascii() else b"Content-Transfer-Encoding: 8bit\r\n"
    return f"Content-Type: {content_type}\r\n".encode("ascii") + encoding + b"\r\n" + body


def _boundary(seed: str, parts: list[bytes]) -> str:
    boundary = "=_" + hashlib.sha256(seed.encode()).hexdigest()[:32]
    while any(boundary.encode("ascii") in part for part in parts):
        boundary = "=_" + hashlib.sha256(boundary.encode("ascii")).hexdigest()[:32]
    return boundary
