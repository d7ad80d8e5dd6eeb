"""DATA and BDAT: the octets of a message from the stream to the spool, then to the store, and the replies."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from adapter.content import html_alternative
from adapter.net.networks import UNIX
from adapter.observability import metrics
from adapter.sessions.admission import Stage
from adapter.smtp import reports
from adapter.smtp.delivery import deliver, one_reply
from adapter.smtp.pace import Pace, TooSlowError
from adapter.smtp.spool import Incoming
from adapter.smtp.submission import header_editor
from adapter.smtp.transaction import Transaction
from protocol.smtp import replies, trace
from protocol.smtp.data import Intake, LineEnds
from protocol.smtp.replies import INTERNAL_ERROR, Reply
from protocol.smtp.states import Event, Service

if TYPE_CHECKING:
    from adapter.smtp.session import SmtpSession

_log = logging.getLogger(__name__)


class Reader(Protocol):
    """What DataReader and ChunkReader have in common."""

    done: bool
    leftover: bytes

    def feed(self, data: bytes, /) -> bytes: ...


def begin(session: SmtpSession, transaction: Transaction) -> Incoming:
    """A place for the message, with the trace fields it gets (RFC 5321 4.4)."""
    now = datetime.now(UTC)
    store = session.store
    line_ends = LineEnds.KEEP if transaction.binary else session.edge.line_ends
    intake = Intake(session.edge.limits, line_ends)
    recipients = transaction.recipients
    hop = trace.Hop(
        hello=session.told_hello or session.hello,
        peer=None if session.peer_address == UNIX else session.peer_address,
        peer_name=session.told_name,
        host=session.edge.services.hostname,
        keyword=trace.with_keyword(session.state, smtputf8=transaction.mail.smtputf8),
        id=transaction.id,
        date=now,
        recipient=recipients[0].address if len(recipients) == 1 else None,
        tls=session.cipher,
    )
    fields = trace.received(hop)
    # RFC 5321 4.4: Return-Path is for final delivery; what goes on to another host leaves it behind (see the relay).
    if any(recipient.targets for recipient in recipients):
        fields = trace.return_path(transaction.sender) + fields
    account = session.account
    if account is None:
        return Incoming(store, intake, fields, _as_it_is)
    return Incoming(
        store,
        intake,
        fields,
        header_editor(store.recipients, account, now),
        html_alternative.add_html if store.recipients.wants_html(account) else None,
        html_alternative.is_markdown,
    )


def _as_it_is(header: bytes) -> bytes:
    return header


async def pump(session: SmtpSession, reader: Reader, incoming: Incoming | None) -> None:
    """From the stream through ``reader`` until it is done. A client that is too slow is cut off.

    Whatever this raises ends the session: the next octets are not commands.
    """
    pace = Pace(session.limits)
    data = session.lines.take()
    while True:
        body = reader.feed(data)
        if incoming is not None:
            await incoming.add(body)
        if reader.done:
            session.lines.feed(reader.leftover)
            return
        await session.flush(session.limits.idle)
        started = session.loop.time()
        if incoming is None or incoming.refusal is not None:
            pace.refuse(started)
        try:
            if started >= pace.refused_until:  # octets that are there already would not be waited for
                raise TimeoutError
            data = await session.receive(min(pace.patience, pace.refused_until - started))
        except TimeoutError:
            raise TooSlowError from None
        pace.took(session.loop.time() - started, len(data))


async def complete(session: SmtpSession, transaction: Transaction, incoming: Incoming) -> list[Reply]:
    """The message is all there: commit it. One reply, or with LMTP one for each recipient (RFC 2033 4.2).

    RFC 5321 4.1.1.4: whatever comes of it, the transaction is over and the next may begin.
    """
    session.set_stage(Stage.STORING)
    size = 0
    outcome: Reply | dict[str, Reply]
    try:
        await incoming.finish()
        size = incoming.size
        outcome = await _settle(session, transaction, incoming)
    except Exception:
        _log.exception("%s %s failed", session.peer, transaction.id)
        outcome = INTERNAL_ERROR
    await session.end_transaction()
    session.state.advance(Event.END)
    given = replies_to(session, transaction, outcome)
    if any(reply.positive for reply in given):
        session.message_accepted()
    _count(session.edge.service.value, given, size)
    return given


def replies_to(session: SmtpSession, transaction: Transaction, outcome: Reply | dict[str, Reply]) -> list[Reply]:
    if session.edge.service is Service.LMTP:
        return replies.lmtp_replies([recipient.address for recipient in transaction.recipients], outcome)
    return [outcome if isinstance(outcome, Reply) else one_reply(outcome)]


async def _settle(session: SmtpSession, transaction: Transaction, incoming: Incoming) -> Reply | dict[str, Reply]:
    """Refuse the message, or deliver it and report that to those who asked."""
    if incoming.refusal is not None:
        why = incoming.refusal.text
        _log.info("%s %s refused: from <%s>, %s", session.peer, transaction.id, transaction.sender, why)
        return incoming.refusal
    outcome = await deliver(
        session.store,
        transaction,
        incoming,
        session.peer,
        session.account,
        keep_sent=session.account is not None and session.store.settings.submission.keep_sent,
        one_answer=session.edge.service is not Service.LMTP,
    )
    if isinstance(outcome, dict):
        delivered = [each for each in reports.wanted(transaction) if outcome[each.address].positive]
        if delivered:
            hostname = session.edge.services.hostname
            await reports.report(session.store, transaction, delivered, incoming.header, hostname)
    return outcome


def _count(service: str, given: list[Reply], size: int) -> None:
    if all(reply.positive for reply in given):
        metrics.DELIVERIES.of(service, "accepted").add()
        metrics.DELIVERED_OCTETS.of(service).add(size)
    else:
        later = any(400 <= reply.code < 500 for reply in given)
        metrics.DELIVERIES.of(service, "deferred" if later else "refused").add()
