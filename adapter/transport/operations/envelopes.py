"""Envelopes: the sender's requests to the relay, and for reports on the delivery (RFC 3461)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from adapter.store.effects import DsnRecipient, Enqueue, QueuedRow, RequestDsn
from protocol.smtp.commands import Body, Ret

LIFETIME_SECONDS = 5 * 86400  # RFC 5321 4.5.4.1 wants at least 4 to 5 days


@dataclass(frozen=True, slots=True)
class RelayRecipient:
    """A recipient at another host."""

    address: str
    notify: frozenset[str] | None = None  # RFC 3461 4.1; empty for NEVER, None: not given
    orcpt: str | None = None  # RFC 3461 4.2, encoded as it is passed on


@dataclass(frozen=True, slots=True)
class RelayEnvelope:
    """Parameters for all recipients at other hosts."""

    ret: Ret | None = None  # RFC 3461 4.3
    envid: str | None = None  # RFC 3461 4.4, decoded
    body: Body = Body.SEVEN_BIT
    smtputf8: bool = False
    requiretls: bool = False
    return_to: str = ""  # the local address that gets reports; empty: the sender's
    lifetime: float = LIFETIME_SECONDS

    def enqueue(
        self, message_id: str, sender: str, recipients: Iterable[tuple[str, RelayRecipient]], now: int
    ) -> Enqueue:
        """``recipients`` come with fresh queue ids; ``now`` is in seconds."""
        return Enqueue(
            message_id,
            sender,
            self.return_to,
            self.ret and self.ret.value,
            self.envid,
            self.body.value,
            self.smtputf8,
            self.requiretls,
            now,
            now + int(self.lifetime),
            tuple(
                QueuedRow(queue_id, each.address, notify_parameter(each.notify), each.orcpt)
                for queue_id, each in recipients
            ),
        )


@dataclass(frozen=True, slots=True)
class RecipientRequest:
    address: str  # as the sender named it
    mailboxes: Collection[str]  # the addresses it leads to
    notify: frozenset[str] | None = None  # RFC 3461 4.1; empty for NEVER, None: not given
    orcpt: str | None = None  # RFC 3461 4.2, encoded as it is passed on


@dataclass(frozen=True, slots=True)
class DsnRequests:
    """The requests for reports on one message."""

    recipients: Collection[RecipientRequest]
    ret: Ret | None = None  # RFC 3461 4.3
    envid: str | None = None  # RFC 3461 4.4, decoded

    def effect(self, message_id: str, recipients: Iterable[RecipientRequest]) -> RequestDsn:
        """``recipients`` are those who have the message; of one that was named twice the first counts."""
        by_address: dict[str, DsnRecipient] = {}
        for each in recipients:
            by_address.setdefault(each.address, DsnRecipient(each.address, notify_parameter(each.notify), each.orcpt))
        return RequestDsn(message_id, self.ret and self.ret.value, self.envid, tuple(by_address.values()))


def notify_parameter(conditions: frozenset[str] | None) -> str | None:
    """The value of NOTIFY=, for passing it on."""
    return None if conditions is None else ",".join(sorted(conditions)) or "NEVER"
