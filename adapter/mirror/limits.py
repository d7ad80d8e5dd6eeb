"""Limits of the mirror: messages beyond the size limit or quota stay upstream, and are retried at the next sync."""

from __future__ import annotations

from typing import NamedTuple

from adapter.store.queries import mailboxes
from adapter.store.quotas import Quota, Quotas, usage
from adapter.transport.transport import Transport


class MirrorLimits(NamedTuple):
    """Limits that apply to mirrored mail."""

    message_size: int
    quotas: Quotas


class Room:
    """The remaining quota of an account, without messages that wait for their commit."""

    def __init__(self, transport: Transport, address: str, quota: Quota) -> None:
        """Read the usage. Blocking."""
        self._quota = quota
        self._used, self._count = 0, 0
        if quota.limited:
            with transport.reading() as connection:
                registration = mailboxes.active_registration(connection, address)
                self._used, self._count = usage(mailboxes.folders(connection, registration.id))

    def has_room(self, octets: int, messages: int = 1) -> bool:
        return self._quota.holds(self._used + octets, self._count + messages)

    def reserve(self, octets: int) -> bool:
        """Reserve room for one message; False if there is none."""
        if not self.has_room(octets):
            return False
        self._used += octets
        self._count += 1
        return True
