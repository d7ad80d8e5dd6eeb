"""Reports to the sender about mail in the outbox (RFC 3461, 3464): whether requested, content, destination.

There is never a report about a report: mail with the null sender gets none.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from adapter.relay import replies
from adapter.relay.replies import RecipientReply
from adapter.store import names
from adapter.store.queries.outbox import QueueRow
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError
from protocol.smtp import dsn, trace
from protocol.smtp.commands import OriginalRecipient, Ret, parse_rcpt
from protocol.smtp.replies import SmtpError

Event = Literal["FAILURE", "DELAY", "SUCCESS"]

_ACTIONS = {"FAILURE": dsn.Action.FAILED, "DELAY": dsn.Action.DELAYED, "SUCCESS": dsn.Action.RELAYED}
_HEADER_END = re.compile(rb"\r?\n\r?\n")


@dataclass(frozen=True, slots=True)
class Notice:
    """One recipient of a report."""

    row: QueueRow
    event: Event
    reply: RecipientReply


def is_requested(row: QueueRow, event: Event) -> bool:
    """RFC 3461 4.1; without NOTIFY, failures and delays are reported."""
    if not row.sender:
        return False
    return event != "SUCCESS" if row.notify is None else event in row.notify.split(",")


def expired(row: QueueRow, last: RecipientReply) -> RecipientReply:
    """RFC 3463: X.4.7, delivery time expired; the last reply gives the reason."""
    text = f"{_expiry_text(row)}; the last reply was: {last.text}"
    return RecipientReply(replies.Verdict.FAILED, f"450 4.4.7 {replies.one_line(text)}", last.remote, last.text)


def _expiry_text(row: QueueRow) -> str:
    return f"not delivered within {(row.expires_at - row.created_at) / 86400:.3g} days"


def return_address(row: QueueRow) -> str | None:
    """The local address for reports; None if there is none."""
    try:
        return names.normalise_address(row.return_to or row.sender)
    except MailError:
        return None


def stage_report(transport: Transport, host: str, notices: Sequence[Notice], now: float) -> op.QueueReport | None:
    """Stage a report of these notices, all about one message; None if there is no local sender. Blocking."""
    address = return_address(notices[0].row) if notices else None
    if address is None:
        return None
    octets = trace.return_path("") + compose_report(transport, host, notices, now)
    return op.QueueReport(transport.stage(octets), address, frozenset(notice.row.queue_id for notice in notices))


def compose_report(transport: Transport, host: str, notices: Sequence[Notice], now: float) -> bytes:
    """The report as a message, with the original or its header."""
    row = notices[0].row
    failed = any(notice.event == "FAILURE" for notice in notices)
    ret = _ret(row)
    header, message = _original(transport, row, whole=failed and ret is not Ret.HEADERS)
    report = dsn.Report(
        host=host,
        to=row.sender,
        message_id=f"<{uuid.uuid4().hex}@{host}>",
        now=_moment(now),
        arrived=_moment(row.created_at),
        outcomes=tuple(_outcome(notice, now) for notice in notices),
        header=header,
        message=message,
        envid=row.envid,
        ret=ret,
    )
    return dsn.build(report)


def _ret(row: QueueRow) -> Ret | None:
    """RFC 8689 section 5: a message with REQUIRETLS is returned as its header only, whatever RET says."""
    if row.requiretls:
        return Ret.HEADERS
    return None if row.ret is None else Ret(row.ret)


def _outcome(notice: Notice, now: float) -> dsn.Outcome:
    row, reply = notice.row, notice.reply
    return dsn.Outcome(
        address=row.recipient,
        action=_ACTIONS[notice.event],
        status=reply.status,
        diagnostic=reply.last_reply or reply.text,
        reason=_expiry_text(row) if reply.last_reply else "",
        remote=reply.remote,
        orcpt=original_recipient(row.orcpt),
        last_attempt=_moment(now),
        retry_until=_moment(row.expires_at) if notice.event == "DELAY" else None,
    )


def original_recipient(orcpt: str | None) -> OriginalRecipient | None:
    if orcpt is None:
        return None
    try:
        return parse_rcpt(f"TO:<x@invalid> ORCPT={orcpt}".encode(), smtputf8=True).orcpt
    except SmtpError:
        return None


def _original(transport: Transport, row: QueueRow, *, whole: bool) -> tuple[bytes, bytes | None]:
    """Header and, if ``whole`` and not too large, the message; both empty if it cannot be read."""
    octets = b""
    try:
        for chunk in transport.content.stream(row.message_id):
            octets += chunk
            whole = whole and len(octets) <= dsn.MAX_RETURNED_BYTES
            if not whole and (_HEADER_END.search(octets) or len(octets) > dsn.MAX_RETURNED_BYTES):
                break
    except (MailError, OSError):
        whole = False
    octets = octets.removeprefix(trace.return_path(row.sender))
    end = _HEADER_END.search(octets)
    return octets[: end.start() if end else None], octets if whole else None


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)
