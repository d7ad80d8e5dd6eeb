"""Reports of delivery, for senders who asked for them (RFC 3461 section 4.1, NOTIFY=SUCCESS).

They go to a local sender's mailbox, or through the outbox where there is a smarthost; a sender who cannot be reached is
not told. What is delivered stays delivered, whatever becomes of a report.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

from adapter.sessions.context import OpenStore
from adapter.smtp.transaction import Recipient, Transaction
from adapter.transport.apply.outbox import RelayEnvelope, RelayRecipient
from adapter.transport.operations.delivery import Deliver
from protocol.errors import MailError
from protocol.smtp import dsn, trace

_log = logging.getLogger(__name__)


def wanted(transaction: Transaction) -> list[Recipient]:
    """Who is to be reported as delivered; a report about a report never is, and a bare name is no return address."""
    if not transaction.mail.path.domain:
        return []
    return [each for each in transaction.recipients if each.targets and "SUCCESS" in (each.command.notify or ())]


async def report(
    store: OpenStore, transaction: Transaction, delivered: Sequence[Recipient], header: bytes, hostname: str
) -> None:
    """Tell the sender that these recipients have the message. Raises nothing: they have it all the same."""
    try:
        await _report(store, transaction, delivered, header, hostname)
    except MailError as error:
        _log.warning("%s delivered, but the report could not be: %s", transaction.id, error)
    except Exception:
        _log.exception("%s delivered, but the report failed", transaction.id)


async def _report(
    store: OpenStore, transaction: Transaction, delivered: Sequence[Recipient], header: bytes, hostname: str
) -> None:
    try:
        targets = store.recipients.find(transaction.mail.path)
    except MailError:
        targets = ()
    outside = targets is None and bool(store.settings.relay.host)
    if not targets and not outside:
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
        if not outside:
            return Deliver(staged, "", [target.address for target in targets or ()])
        # RFC 8689 section 5: a report tells of the message, and is protected on its way as that was to be.
        envelope = RelayEnvelope(requiretls=transaction.mail.requiretls, lifetime=store.settings.relay.expire_after)
        return Deliver(staged, "", [], relay=[RelayRecipient(transaction.sender, frozenset())], envelope=envelope)

    await store.commits.run(prepare, len(octets))
