"""Who may connect: limits on connections in total, for one address and for one user, shared by all listeners and by all
workers.

Invariants: every ticket given out is counted exactly once until it is released, however often that is called; peers in
exempt networks are never refused and not counted by address, but count towards the total.
"""

from __future__ import annotations

from adapter.servers import networks
from adapter.servers.networks import Networks
from adapter.servers.shared_counts import Key, SharedCounts
from adapter.settings import Limits


class Admission:
    def __init__(self, limits: Limits, counts: SharedCounts | None = None) -> None:
        self._limits = limits
        self._exempt = Networks(limits.exempt)
        self.counts = counts or SharedCounts()
        self._all = self.counts.key("connections")
        self.refused = 0

    @property
    def by_worker(self) -> list[int]:
        """The connections of each worker."""
        return self.counts.of_workers(self._all)

    @property
    def total(self) -> int:
        return sum(self.by_worker)

    def apply(self, limits: Limits) -> None:
        """Go by these limits from now on; nobody who is in is sent away. Raises ConfigError."""
        self._exempt = Networks(limits.exempt)
        self._limits = limits

    def exempts(self, peer: str) -> bool:
        return peer in self._exempt

    def admit(self, peer: str) -> Ticket | None:
        """A ticket to be released at the end of the connection, or None: too many already."""
        exempt = self.exempts(peer)
        keys = [self._all] if exempt else [self._all, self.counts.key(f"peer {networks.group(peer)}")]
        with self.counts.exclusive():
            if not exempt and (
                self.total >= self._limits.connections or self._count(keys[1]) >= self._limits.connections_per_ip
            ):
                self.refused += 1
                return None
            return Ticket(self, [key for key in keys if self.counts.add(key)])

    def _count(self, key: Key) -> int:
        return sum(self.counts.of_workers(key))

    def _enter(self, user: str) -> list[Key] | None:
        """What was counted; None: too many already."""
        key = self.counts.key(f"user {user}")
        with self.counts.exclusive():
            if self._count(key) >= self._limits.connections_per_user:
                return None
            return [key] if self.counts.add(key) else []

    def _leave(self, counted: list[Key]) -> None:
        with self.counts.exclusive():
            for key in counted:
                self.counts.take(key)


class Ticket:
    """One connection's place."""

    __slots__ = ("_admission", "_counted", "_entered", "_released")

    def __init__(self, admission: Admission, counted: list[Key]) -> None:
        self._admission = admission
        self._counted = counted
        self._entered = False
        self._released = False

    def enter(self, user: str) -> bool:
        """The connection belongs to this user now; False if the user has too many."""
        counted = None if self._entered else self._admission._enter(user)
        if counted is None:
            return False
        self._counted += counted
        self._entered = True
        return True

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._admission._leave(self._counted)
