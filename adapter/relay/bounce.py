"""Reports to the sender about mail in the outbox (RFC 3461, 3464): who wants which, what they say, where they go.

Never is there a report about a report: mail with the null sender has nobody to be told.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from adapter.relay import replies
from adapter.relay.replies import Answer
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
    """What there is to tell about one recipient."""

    row: QueueRow
    event: Event
    answer: Answer


def is_wanted(row: QueueRow, event: Event) -> bool:
    """RFC 3461 4.1; where nothing was said, failures and delays are told."""
    if not row.sender:
        return False
    return event != "SUCCESS" if row.notify is None else event in row.notify.split(",")


def expiry(row: QueueRow, last: Answer) -> Answer:
    """RFC 3463: X.4.7, delivery time expired; what was said last tells why."""
    text = f"{_time_up(row)}; the last answer was: {last.text}"
    return Answer(replies.Verdict.FAILED, f"450 4.4.7 {replies.one_line(text)}", last.remote, last.text)


def _time_up(row: QueueRow) -> str:
    return f"not delivered within {(row.expires_at - row.created_at) / 86400:.3g} days"


def return_address(row: QueueRow) -> str | None:
    """The local address that gets reports."""
    try:
        return names.normalise_address(row.return_to or row.sender)
    except MailError:
        return None


def stage(transport: Transport, host: str, notices: Sequence[Notice], now: float) -> op.QueueReport | None:
    """A report of these notices, all about one message; None if there is nobody to tell. Blocks."""
    address = return_address(notices[0].row) if notices else None
    if address is None:
        return None
    octets = trace.return_path("") + compose(transport, host, notices, now)
    return op.QueueReport(transport.stage(octets), address, frozenset(notice.row.queue_id for notice in notices))


def compose(transport: Transport, host: str, notices: Sequence[Notice], now: float) -> bytes:
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
    """RFC 8689 section 5: of a message with REQUIRETLS the header is returned, whatever else was asked for."""
    if row.requiretls:
        return Ret.HEADERS
    return None if row.ret is None else Ret(row.ret)


def _outcome(notice: Notice, now: float) -> dsn.Outcome:
    row, answer = notice.row, notice.answer
    return dsn.Outcome(
        address=row.recipient,
        action=_ACTIONS[notice.event],
        status=answer.status,
        diagnostic=answer.last or answer.text,
        reason=_time_up(row) if answer.last else "",
        remote=answer.remote,
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
    """Header and, if wanted and not too large, all of the message; one that cannot be read has neither."""
    octets = b""
    try:
        for chunk in transport.content.stream(row.message_id):
            octets += chunk
            whole = whole and len(octets) <= dsn.MAX_RETURNED
            if not whole and (_HEADER_END.search(octets) or len(octets) > dsn.MAX_RETURNED):
                break
    except (MailError, OSError):
        whole = False
    octets = octets.removeprefix(trace.return_path(row.sender))
    end = _HEADER_END.search(octets)
    return octets[: end.start() if end else None], octets if whole else None


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)
