"""Deliver a received message: transaction -> operation -> commit queue -> one reply for each recipient.

Invariants: a positive reply is given only for a durable message; unknown errors are temporary, so that no mail bounces
because of them; a reply for several recipients is positive only if it holds for all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adapter.observability import metrics
from adapter.observability.disk_errors import disk_cause
from adapter.observability.peer import Peer
from adapter.sessions.context import OpenStore
from adapter.smtp.delivery_report import report_delivered, requested_reports
from adapter.smtp.message import IncomingMessage
from adapter.smtp.transaction import Recipient, Transaction
from adapter.store.effects import Actor
from adapter.transport.operations.delivery import Deliver, Delivery, Placed
from adapter.transport.operations.envelopes import DsnRequests, RecipientRequest, RelayEnvelope, RelayRecipient
from adapter.transport.sent_copy import fingerprint_of
from protocol.errors import MailError, Reason
from protocol.smtp import replies
from protocol.smtp.replies import Reply
from protocol.smtp.states import Service

_log = logging.getLogger(__name__)

#: One reply for the whole message, or one for each recipient by its address as given.
DeliveryReplies = Reply | Mapping[str, Reply]


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a message: service, peer, and account if it was submitted."""

    service: Service
    peer: Peer
    account: str | None  # of the login; None: not submitted
    hostname: str  # ours

    @property
    def actor(self) -> Actor:
        return Actor(self.account or "", self.service.value)


async def deliver(store: OpenStore, transaction: Transaction, message: IncomingMessage, origin: Origin) -> list[Reply]:
    """Commit a complete message and return the replies to the client: one, or in LMTP one for each recipient.

    Raises nothing: RFC 5321 4.1.1.4, every message gets its reply.
    """
    size = 0
    outcome: DeliveryReplies
    try:
        await message.finish()
        size = message.size
        outcome = await _accept_or_refuse(store, transaction, message, origin)
    except Exception:
        _log.exception("%s %s: delivery failed; replying with a temporary error", origin.peer, transaction.id)
        outcome = replies.INTERNAL_ERROR
    given = final_replies(origin.service, transaction, outcome)
    _count(origin.service, given, size)
    return given


def final_replies(service: Service, transaction: Transaction, outcome: DeliveryReplies) -> list[Reply]:
    """The replies to a complete message (RFC 5321 4.1.1.4, RFC 2033 4.2)."""
    if service is Service.LMTP:
        return replies.lmtp_replies([recipient.address for recipient in transaction.recipients], outcome)
    return [outcome if isinstance(outcome, Reply) else _one_reply(outcome)]


async def _accept_or_refuse(
    store: OpenStore, transaction: Transaction, message: IncomingMessage, origin: Origin
) -> DeliveryReplies:
    if message.refusal is not None:
        refusal = message.refusal.text
        _log.info("%s %s refused: from <%s>, %s", origin.peer, transaction.id, transaction.sender, refusal)
        return message.refusal
    outcome = await _commit(store, transaction, message, origin)
    if isinstance(outcome, Mapping):
        delivered = [each for each in requested_reports(transaction) if outcome[each.address].positive]
        if delivered:
            await report_delivered(store, transaction, delivered, message.header, origin.hostname, origin.actor)
    return outcome


async def _commit(
    store: OpenStore, transaction: Transaction, message: IncomingMessage, origin: Origin
) -> DeliveryReplies:
    account = origin.account
    keep_sent = account is not None and store.settings.submission.keep_sent
    targets = transaction.targets()
    folders = {target.address: target.folder for target in targets.values() if target.folder is not None}
    remote = [
        RelayRecipient(each.address, each.command.notify, each.command.orcpt_parameter)
        for each in transaction.remote_recipients()
    ]
    holders = [*targets, account] if account and keep_sent else targets
    quotas = {each: quota for each in holders if (quota := store.recipients.quota(each)).limited}
    lenient = transaction.without_own_reply(one_reply=origin.service is not Service.LMTP) if quotas else ()
    size = message.size
    lifetime = store.settings.relay.expire_after

    def prepare() -> Deliver:
        fingerprint = None
        if account and keep_sent:
            with message.reading() as octets:
                fingerprint = fingerprint_of(octets)
        staged = message.stage()
        return Deliver(
            staged,
            transaction.sender,
            list(targets),
            folders,
            keep_sent=keep_sent,
            account=account or "",
            relay=remote,
            envelope=_relay_envelope(transaction, account, lifetime) if remote else None,
            quotas=quotas,
            lenient=lenient,
            requests=_dsn_requests(transaction),
            find_twin=store.sent_copies.finder(staged.content.id, fingerprint),
        )

    try:
        delivery = await store.commits.run(prepare, size, origin.actor)
    except MailError as error:
        _log_failed_commit(origin.peer, transaction, error)
        return replies.reply_to(error)
    _log.info(
        "%s %s accepted as %s: from <%s> to %s, %d octets",
        origin.peer,
        transaction.id,
        delivery.message_id,
        transaction.sender,
        ", ".join(f"<{recipient.address}>" for recipient in transaction.recipients),
        size,
    )
    accepted = replies.ACCEPTED.about(delivery.message_id)
    return {
        recipient.address: _recipient_reply(recipient, delivery, accepted, transaction, origin.peer)
        for recipient in transaction.recipients
    }


def _relay_envelope(transaction: Transaction, account: str | None, lifetime: float) -> RelayEnvelope:
    """The parameters to pass to the next host, and the address for reports."""
    mail = transaction.mail
    return RelayEnvelope(
        ret=mail.ret,
        envid=mail.envid,
        body=mail.body,
        smtputf8=mail.smtputf8,
        requiretls=mail.requiretls,
        return_to=account or "",
        lifetime=lifetime,
    )


def _dsn_requests(transaction: Transaction) -> DsnRequests | None:
    """The DSN parameters for local recipients (RFC 3461); None if there are none, as usual."""
    mail = transaction.mail
    has_mail_parameters = mail.ret is not None or mail.envid is not None
    recipients = [
        RecipientRequest(
            each.address,
            [target.address for target in each.targets],
            each.command.notify,
            each.command.orcpt_parameter,
        )
        for each in transaction.recipients
        if each.targets and (has_mail_parameters or each.command.notify is not None or each.command.orcpt is not None)
    ]
    return DsnRequests(recipients, mail.ret, mail.envid) if recipients else None


# --- replies, log and metrics ----------------------------------------------------------------------------------------


def _recipient_reply(
    recipient: Recipient, delivery: Delivery, accepted: Reply, transaction: Transaction, peer: Peer
) -> Reply:
    """An address with several mailboxes is delivered if one has the message, unless another may get it later."""
    outcomes = [delivery.recipients.get(target.address) for target in recipient.targets]
    errors = [outcome for outcome in outcomes if isinstance(outcome, MailError)]
    for error in errors:
        _log.warning("%s %s not delivered to <%s>: %s", peer, transaction.id, recipient.address, error)
    temporary = [error for error in errors if error.temporary]
    if temporary:
        return replies.reply_to(temporary[0])
    if errors and not any(isinstance(outcome, Placed) for outcome in outcomes):
        return replies.reply_to(errors[0])
    return accepted


def _one_reply(by_recipient: Mapping[str, Reply]) -> Reply:
    """Combine the replies for SMTP, which has one for all recipients.

    If only some recipients have the message, the client is asked to retry: RCPT then refuses the unknown address,
    and a duplicate is better than a lost message.
    """
    given = list(by_recipient.values())
    refused = [reply for reply in given if not reply.positive]
    if not refused:
        return given[0]
    if len(refused) == len(given):
        return next((reply for reply in refused if reply.code < 500), refused[0])
    return replies.INTERNAL_ERROR


def _log_failed_commit(peer: Peer, transaction: Transaction, error: MailError) -> None:
    level = logging.ERROR if error.reason is Reason.UNKNOWN else logging.WARNING
    if disk_cause(error) is not None:
        # Written once a minute at most; each message has its own line below.
        _log.error("delivery: disk error (%s); refusing mail with a temporary error", error)
        level = logging.INFO
    _log.log(level, "%s %s not accepted: %s", peer, transaction.id, error)


def _count(service: Service, given: Sequence[Reply], size: int) -> None:
    if all(reply.positive for reply in given):
        metrics.DELIVERIES.of(service.value, "accepted").add()
        metrics.DELIVERED_OCTETS.of(service.value).add(size)
    else:
        is_temporary = any(400 <= reply.code < 500 for reply in given)
        metrics.DELIVERIES.of(service.value, "deferred" if is_temporary else "refused").add()
