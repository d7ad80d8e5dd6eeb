"""Success reports for senders who asked for them (RFC 3461 section 4.1, NOTIFY=SUCCESS).

A report goes to the mailbox of a local sender, or through the outbox if there is a smarthost; a sender who cannot be
reached gets none. A failed report never undoes the delivery.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

from adapter.sessions.context import OpenStore
from adapter.smtp.transaction import Recipient, Transaction
from adapter.store.effects import Actor
from adapter.transport.operations.delivery import Deliver
from adapter.transport.operations.envelopes import RelayEnvelope, RelayRecipient
from protocol.errors import MailError
from protocol.smtp import dsn, trace

_log = logging.getLogger(__name__)


def requested_reports(transaction: Transaction) -> list[Recipient]:
    """The local recipients with NOTIFY=SUCCESS; none for the null sender or a sender without a domain."""
    if not transaction.mail.path.domain:
        return []
    return [each for each in transaction.recipients if each.targets and "SUCCESS" in (each.command.notify or ())]


async def report_delivered(
    store: OpenStore,
    transaction: Transaction,
    delivered: Sequence[Recipient],
    header: bytes,
    hostname: str,
    actor: Actor,
) -> None:
    """Report to the sender that these recipients have the message. Raises nothing: they have it in any case."""
    try:
        await _send_report(store, transaction, delivered, header, hostname, actor)
    except MailError as error:
        _log.warning("%s: delivery report failed (%s); the message is delivered", transaction.id, error)
    except Exception:
        _log.exception("%s: delivery report failed; the message is delivered", transaction.id)


async def _send_report(
    store: OpenStore,
    transaction: Transaction,
    delivered: Sequence[Recipient],
    header: bytes,
    hostname: str,
    actor: Actor,
) -> None:
    try:
        targets = store.recipients.resolve(transaction.mail.path)
    except MailError:
        targets = ()
    is_remote = targets is None and bool(store.settings.relay.host)
    if not targets and not is_remote:
        return
    now = datetime.now(UTC)
    octets = trace.return_path("") + dsn.build(
        dsn.Report(
            host=hostname,
            to=transaction.sender,
            message_id=f"<{secrets.token_hex(16)}@{hostname}>",
            now=now,
            arrived=now,
            outcomes=tuple(
                dsn.Outcome(each.address, dsn.Action.DELIVERED, "2.1.5", orcpt=each.command.orcpt) for each in delivered
            ),
            header=header,
            envid=transaction.mail.envid,
            ret=transaction.mail.ret,
        )
    )

    def prepare() -> Deliver:
        staged = store.transport.stage(octets)
        if not is_remote:
            return Deliver(staged, "", [target.address for target in targets or ()])
        # RFC 8689 section 5: a report reveals the message, so it is protected in the same way.
        envelope = RelayEnvelope(requiretls=transaction.mail.requiretls, lifetime=store.settings.relay.expire_after)
        return Deliver(staged, "", [], relay=[RelayRecipient(transaction.sender, frozenset())], envelope=envelope)

    await store.commits.run(prepare, len(octets), actor)
