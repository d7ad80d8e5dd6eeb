"""Who may connect: limits on connections in total, for one address and for one user, shared by all listeners.

Invariants: every ticket given out is counted exactly once until it is released, however often that is called; peers in
exempt networks are never refused and not counted by address, but count towards the total.
"""

from __future__ import annotations

from collections import Counter

from adapter.servers import networks
from adapter.servers.networks import Networks
from adapter.settings import Limits


class Admission:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._exempt = Networks(limits.exempt)
        self._by_peer: Counter[str] = Counter()
        self._by_user: Counter[str] = Counter()
        self.total = 0

    def exempts(self, peer: str) -> bool:
        return peer in self._exempt

    def admit(self, peer: str) -> Ticket | None:
        """A ticket to be released at the end of the connection, or None: too many already."""
        exempt = self.exempts(peer)
        group = "" if exempt else networks.group(peer)
        if not exempt and (
            self.total >= self._limits.connections or self._by_peer[group] >= self._limits.connections_per_ip
        ):
            return None
        self.total += 1
        if group:
            self._by_peer[group] += 1
        return Ticket(self, group)

    def _enter(self, user: str) -> bool:
        if self._by_user[user] >= self._limits.connections_per_user:
            return False
        self._by_user[user] += 1
        return True

    def _leave(self, group: str, user: str) -> None:
        self.total -= 1
        _take_one(self._by_peer, group)
        _take_one(self._by_user, user)


def _take_one(counter: Counter[str], key: str) -> None:
    """Keys that count nothing are dropped: a flood of addresses leaves nothing behind."""
    if key:
        counter[key] -= 1
        if counter[key] <= 0:
            del counter[key]


class Ticket:
    """One connection's place."""

    __slots__ = ("_admission", "_group", "_released", "_user")

    def __init__(self, admission: Admission, group: str) -> None:
        self._admission = admission
        self._group = group
        self._user = ""
        self._released = False

    def enter(self, user: str) -> bool:
        """The connection belongs to this user now; False if the user has too many."""
        if self._user or not self._admission._enter(user):
            return False
        self._user = user
        return True

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._admission._leave(self._group, self._user)
