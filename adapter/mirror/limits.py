"""What there is room for here: what is beyond it stays at the other server, and is asked for again at the next look."""

from __future__ import annotations

from typing import NamedTuple

from adapter.store.queries import mailboxes
from adapter.store.quotas import Quota, Quotas, usage
from adapter.transport.transport import Transport


class Limits(NamedTuple):
    message_size: int
    quotas: Quotas


class Room:
    """What is left of an account's quota, messages that wait to be committed taken off."""

    def __init__(self, transport: Transport, address: str, quota: Quota) -> None:
        """Blocks."""
        self._quota = quota
        self._used, self._count = 0, 0
        if quota.limited:
            with transport.reading() as connection:
                registration = mailboxes.active_registration(connection, address)
                self._used, self._count = usage(mailboxes.folders(connection, registration.id))

    def has(self, octets: int, messages: int = 1) -> bool:
        return self._quota.holds(self._used + octets, self._count + messages)

    def take(self, octets: int) -> bool:
        """Whether there is room for one message; if so, it is taken."""
        if not self.has(octets):
            return False
        self._used += octets
        self._count += 1
        return True
