"""One mail transaction: the sender, the recipients it was accepted for, and where each of them leads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from adapter.accounts.recipients import Target
from adapter.smtp.spool import Incoming
from protocol.smtp.commands import Body, MailCommand, RcptCommand


@dataclass(frozen=True, slots=True)
class Recipient:
    """An accepted RCPT. Without targets the address is elsewhere, and the outbox has it."""

    address: str  # as given
    command: RcptCommand
    targets: tuple[Target, ...]


@dataclass(slots=True)
class Transaction:
    id: str
    sender: str  # as given; empty: the null sender
    mail: MailCommand
    recipients: list[Recipient] = field(default_factory=list)
    incoming: Incoming | None = None  # once DATA or BDAT has begun

    @property
    def binary(self) -> bool:
        return self.mail.body is Body.BINARY

    def targets(self) -> dict[str, Target]:
        """Each mailbox once, however many recipients lead to it; the first says to which folder."""
        found: dict[str, Target] = {}
        for recipient in self.recipients:
            for target in recipient.targets:
                found.setdefault(target.address, target)
        return found

    def answered_together(self, *, everybody: bool) -> frozenset[str]:
        """Mailboxes without an answer of their own: to refuse it for one would bring it to the others again."""
        if everybody and len(self.recipients) > 1:
            return frozenset(self.targets())
        several = [recipient.targets for recipient in self.recipients if len(recipient.targets) > 1]
        return frozenset(target.address for targets in several for target in targets)

    def remote(self) -> Iterator[Recipient]:
        return (recipient for recipient in self.recipients if not recipient.targets)
