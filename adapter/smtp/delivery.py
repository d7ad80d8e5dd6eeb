"""From a complete message to replies: stage, commit, and what to say to each recipient.

Invariants: a positive reply is given only for what is durable; trouble nobody foresaw is temporary, so nothing bounces
because of it; a reply for several recipients is positive only if it holds for all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from adapter.net.networks import Peer
from adapter.sessions.context import OpenStore
from adapter.smtp.spool import Incoming
from adapter.smtp.transaction import Recipient, Transaction
from adapter.store.disk_errors import disk_cause
from adapter.transport.apply.dsn_requests import DsnRequests, RecipientRequest
from adapter.transport.apply.outbox import RelayEnvelope, RelayRecipient
from adapter.transport.operations.delivery import Deliver, Delivery, Placed
from adapter.transport.sent_copy import fingerprint_of
from protocol.errors import MailError, Reason
from protocol.smtp import replies
from protocol.smtp.replies import Reply

_log = logging.getLogger(__name__)


async def deliver(
    store: OpenStore,
    transaction: Transaction,
    incoming: Incoming,
    peer: Peer,
    account: str | None,
    *,
    keep_sent: bool,
    one_answer: bool,
) -> Reply | dict[str, Reply]:
    """Commit the message; one reply for all, or one by recipient as it was given. ``account`` is who submits it.

    ``one_answer``: the client can be told only one thing about all recipients.
    """
    targets = transaction.targets()
    folders = {target.address: target.folder for target in targets.values() if target.folder is not None}
    elsewhere = [
        RelayRecipient(each.address, each.command.notify, each.command.orcpt_parameter) for each in transaction.remote()
    ]
    holders = [*targets, account] if account and keep_sent else targets
    quotas = {each: quota for each in holders if (quota := store.recipients.quota(each)).limited}
    lenient = transaction.answered_together(everybody=one_answer) if quotas else ()
    size = incoming.size
    lifetime = store.settings.relay.expire_after

    def prepare() -> Deliver:
        fingerprint = None
        if account and keep_sent:
            with incoming.reading() as octets:
                fingerprint = fingerprint_of(octets)
        staged = incoming.stage()
        return Deliver(
            staged,
            transaction.sender,
            list(targets),
            folders,
            keep_sent=keep_sent,
            account=account or "",
            relay=elsewhere,
            envelope=_envelope(transaction, account, lifetime) if elsewhere else None,
            quotas=quotas,
            lenient=lenient,
            requests=_requests(transaction),
            find_twin=store.sent_copies.finder(staged.content.id, fingerprint),
        )

    try:
        delivery = await store.commits.run(prepare, size)
    except MailError as error:
        level = logging.ERROR if error.reason is Reason.UNKNOWN else logging.WARNING
        if disk_cause(error) is not None:
            _log.error("mail is refused for now: %s", error)  # once a minute; each message has its own line below
            level = logging.INFO
        _log.log(level, "%s %s not accepted: %s", peer, transaction.id, error)
        return replies.reply_to(error)
    _log.info(
        "%s %s accepted as %s: from <%s> to %s, %d octets",
        peer,
        transaction.id,
        delivery.message_id,
        transaction.sender,
        ", ".join(f"<{recipient.address}>" for recipient in transaction.recipients),
        size,
    )
    accepted = replies.ACCEPTED.about(delivery.message_id)
    return {
        recipient.address: _reply(recipient, delivery, accepted, transaction, peer)
        for recipient in transaction.recipients
    }


def _envelope(transaction: Transaction, account: str | None, lifetime: float) -> RelayEnvelope:
    """What the next host is told about the message, and where reports about it go."""
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


def _requests(transaction: Transaction) -> DsnRequests | None:
    """What the sender asked of the delivery to recipients here (RFC 3461); None: nothing, as is usual."""
    mail = transaction.mail
    asked = mail.ret is not None or mail.envid is not None
    recipients = [
        RecipientRequest(
            each.address,
            [target.address for target in each.targets],
            each.command.notify,
            each.command.orcpt_parameter,
        )
        for each in transaction.recipients
        if each.targets and (asked or each.command.notify is not None or each.command.orcpt is not None)
    ]
    return DsnRequests(recipients, mail.ret, mail.envid) if recipients else None


def _reply(recipient: Recipient, delivery: Delivery, accepted: Reply, transaction: Transaction, peer: Peer) -> Reply:
    """An address with several mailboxes is delivered if one has the message, unless another may have it later."""
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


def one_reply(by_recipient: Mapping[str, Reply]) -> Reply:
    """SMTP has one reply for all recipients.

    If some have the message and some do not, the client is asked to come again: it then learns at RCPT who is gone,
    and to have a message twice is better than not to have it.
    """
    given = list(by_recipient.values())
    refused = [reply for reply in given if not reply.positive]
    if not refused:
        return given[0]
    if len(refused) == len(given):
        return next((reply for reply in refused if reply.code < 500), refused[0])
    return replies.INTERNAL_ERROR
