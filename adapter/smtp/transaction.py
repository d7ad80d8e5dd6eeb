"""One mail transaction: the sender, the accepted recipients, and the mailboxes of each of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from adapter.accounts.recipients import Target
from adapter.smtp.message import IncomingMessage
from protocol.smtp.commands import Body, MailCommand, RcptCommand


@dataclass(frozen=True, slots=True)
class Recipient:
    """An accepted RCPT. An empty ``targets`` means a remote recipient, queued in the outbox."""

    address: str  # as given
    command: RcptCommand
    targets: tuple[Target, ...]


@dataclass(slots=True)
class Transaction:
    id: str
    sender: str  # as given; empty: the null sender
    mail: MailCommand
    recipients: list[Recipient] = field(default_factory=list)
    message: IncomingMessage | None = None  # since DATA or the first BDAT

    @property
    def is_binary(self) -> bool:
        return self.mail.body is Body.BINARY

    def targets(self) -> dict[str, Target]:
        """Each mailbox once, however many recipients lead to it; the first one decides the folder."""
        targets: dict[str, Target] = {}
        for recipient in self.recipients:
            for target in recipient.targets:
                targets.setdefault(target.address, target)
        return targets

    def without_own_reply(self, *, one_reply: bool) -> frozenset[str]:
        """Mailboxes that share a reply with others: refusing one of them would deliver to the others again."""
        if one_reply and len(self.recipients) > 1:
            return frozenset(self.targets())
        shared = [recipient.targets for recipient in self.recipients if len(recipient.targets) > 1]
        return frozenset(target.address for targets in shared for target in targets)

    def remote_recipients(self) -> list[Recipient]:
        return [recipient for recipient in self.recipients if not recipient.targets]
