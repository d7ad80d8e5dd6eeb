"""Admission: limits on connections, by listener, address and user, for all workers together.

Each kind of listener has its own budget (:mod:`adapter.sessions.budgets`). A worker holds at most its share of the
unauthenticated connections. When that share is full, the oldest one is evicted in favour of the new one, first of the
peer with the most (:mod:`adapter.sessions.eviction`). Peers that have logged in or delivered a message before are
evicted last, so that a flood from many addresses does not displace them. While more than half of the share is used,
connections that take longer than ``busy_login_time`` to log in, or to begin a mail transaction, are evicted when the
next connection arrives.

Invariants: a ticket is counted exactly once until it is released, and releasing is idempotent; a logged-in connection,
and one that is storing a message, is never evicted; peers in exempt networks are refused only when the process has no
free descriptors, are never evicted, and use no budget.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Collection

from adapter.config.schema import Limits
from adapter.net import networks
from adapter.net.networks import Networks
from adapter.net.shared_counts import Key, SharedCounts
from adapter.sessions.budgets import LMTP_PART, UNLIMITED, WEIGHTS, allowed_connections, share_out
from adapter.sessions.eviction import EvictionQueue

_log = logging.getLogger(__name__)

#: How long a peer stays known after a login or a delivery.
_KNOWN_PEER_SECONDS = 7 * 86400.0
#: Interval of the warnings about one full budget.
_WARNING_INTERVAL_SECONDS = 60.0

#: Closes a connection with the protocol's reply for "try again later".
Evict = Callable[[], None]


class Stage(enum.Enum):
    """The progress of an unauthenticated connection."""

    IDLE = enum.auto()
    TRANSACTION = enum.auto()  # evicted after the idle connections of its peer
    STORING = enum.auto()  # storing a message: not evicted


class Admission:
    """Admits and evicts connections; ``per_process`` is the number that the descriptors of a process allow."""

    def __init__(
        self,
        limits: Limits,
        counts: SharedCounts | None = None,
        *,
        kinds: Collection[str] = tuple(WEIGHTS),
        per_process: int = UNLIMITED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = counts or SharedCounts()
        self._kinds = kinds
        self._per_process = per_process
        self._clock = clock
        self._all = self.counts.key("connections")
        #: Logged-in connections, and those of LMTP.
        self._logged_in = {kind: self.counts.key(f"logged in {kind}") for kind in kinds}
        self._waiting = {kind: _Waiting() for kind in kinds}
        self._storing = dict.fromkeys(kinds, 0)
        self._open = 0  # sockets of this process, including closing ones
        self._warned: dict[str, float] = {}
        self.refused = 0
        self.evicted = 0
        self.apply(limits)

    @property
    def by_worker(self) -> list[int]:
        """The number of connections of each worker."""
        return self.counts.of_workers(self._all)

    @property
    def total(self) -> int:
        return sum(self.by_worker)

    def apply(self, limits: Limits) -> None:
        """Apply new limits; open connections stay. Raises ValueError."""
        exempt = Networks(limits.exempt)
        allowed = allowed_connections(self.counts.workers, self._per_process)
        self.budgets = share_out(limits, self._kinds, allowed)
        self._exempt = exempt
        self._limits = limits

    def exempts(self, peer: str) -> bool:
        return peer in self._exempt

    def admit(self, kind: str, peer: str, evict: Evict) -> Ticket | None:
        """Return a ticket, to be released at the end of the connection; None: too many connections."""
        exempt = self.exempts(peer)
        group = networks.group(peer)
        of_peer = self.counts.key(f"peer {group}")
        keys = [self._all] if exempt else [self._all, of_peer]
        if kind == "lmtp" and not exempt:
            keys.append(self._logged_in[kind])
        ticket, victims = None, []
        with self.counts.exclusive():
            has_room = exempt or self._count(of_peer) < self._limits.connections_per_ip
            if has_room and not exempt:
                victims = self._make_room(kind)
                has_room = self._has_room(kind)
            if has_room and self._open >= self._descriptors(kind):  # until a socket is closed
                victims += self._of_longest_queue()
                has_room = False
            if has_room:
                ticket = Ticket(self, kind, group, evict, [key for key in keys if self.counts.add(key)])
                ticket.is_known = self.counts.common(self._known_peer(group), _KNOWN_PEER_SECONDS) > 0
        for victim in victims:
            victim.evict()
        if ticket is None:
            self.refused += 1
            return None
        self._open += 1
        if kind == "lmtp" or exempt:
            ticket.is_protected = True
        else:
            self._waiting[kind].add(ticket, self._clock())
        return ticket

    # --- making room -------------------------------------------------------------------------------------------------

    def _make_room(self, kind: str) -> list[Ticket]:
        """Evict as many connections as one more needs; the caller closes them."""
        if kind == "lmtp" or self._count(self._logged_in[kind]) >= self.budgets[kind].connections:
            return []
        waiting, victims = self._waiting[kind], []
        if len(waiting) * 2 * self.counts.workers > self.budgets[kind].before_login:  # under pressure
            slow = waiting.idle_before(self._clock() - self._limits.busy_login_time)
            victims = [self._evict(each) for each in slow]
        while not self._has_room(kind) and (victim := waiting.victim()) is not None:
            self._warn(kind)
            victims.append(self._evict(victim))
        return victims

    def _has_room(self, kind: str) -> bool:
        if self._count(self._logged_in[kind]) >= self.budgets[kind].connections:
            return False
        return kind == "lmtp" or len(self._waiting[kind]) + self._storing[kind] < self._share(kind)

    def _of_longest_queue(self) -> list[Ticket]:
        victim = max(self._waiting.values(), key=len).victim()
        return [] if victim is None else [self._evict(victim)]

    def _share(self, kind: str) -> int:
        """Return the number of unauthenticated connections that this worker may hold now."""
        return self.budgets[kind].before_login_of_worker(self._count(self._logged_in[kind]), self.counts.workers)

    def _descriptors(self, kind: str) -> int:
        return self._per_process - (0 if kind == "lmtp" else self._per_process // LMTP_PART)

    def _evict(self, ticket: Ticket) -> Ticket:
        self.evicted += 1
        self._forget(ticket)
        return ticket

    def _warn(self, kind: str) -> None:
        now = self._clock()
        if now - self._warned.get(kind, -_WARNING_INTERVAL_SECONDS) >= _WARNING_INTERVAL_SECONDS:
            self._warned[kind] = now
            _log.warning(
                "%s: %d unauthenticated connections (limits.connections_%s reached); evicting the oldest",
                kind,
                self.budgets[kind].before_login,
                kind,
            )

    # --- used by tickets --------------------------------------------------------------------------------------------

    def _set_stage(self, ticket: Ticket, stage: Stage) -> None:
        if ticket.is_protected or not ticket.is_counted:
            return
        waiting = self._waiting[ticket.kind]
        if ticket.is_storing:
            self._storing[ticket.kind] -= 1
            waiting.add(ticket, self._clock())
        ticket.is_storing = stage is Stage.STORING
        if ticket.is_storing:
            self._storing[ticket.kind] += 1
            waiting.remove(ticket)
        else:
            waiting.set_idle(ticket, idle=stage is Stage.IDLE, now=self._clock())

    def _enter(self, ticket: Ticket, user: str) -> bool:
        key = self.counts.key(f"user {user}")
        with self.counts.exclusive():
            if not ticket.is_counted or self._count(key) >= self._limits.connections_per_user:
                return False
            keys = [key] if ticket.is_protected else [key, self._logged_in[ticket.kind]]
            ticket.counted += [each for each in keys if self.counts.add(each)]
            self.counts.set_common(self._known_peer(ticket.group), 1)
        self._waiting[ticket.kind].remove(ticket)
        ticket.is_protected = True
        return True

    def _remember(self, ticket: Ticket) -> None:
        with self.counts.exclusive():
            self.counts.set_common(self._known_peer(ticket.group), 1)

    def _known_peer(self, group: str) -> Key:
        return self.counts.key(f"known {group}")

    def _forget(self, ticket: Ticket) -> None:
        """Remove a connection from the counts, under their lock."""
        if ticket.is_counted:
            ticket.is_counted = False
            self._waiting[ticket.kind].remove(ticket)
            self._storing[ticket.kind] -= ticket.is_storing
            for key in ticket.counted:
                self.counts.take(key)

    def _close(self, ticket: Ticket) -> None:
        with self.counts.exclusive():
            self._forget(ticket)
        self._open -= 1

    def _count(self, key: Key) -> int:
        return sum(self.counts.of_workers(key))


class Ticket:
    """The admission of one connection."""

    __slots__ = (
        "_admission",
        "_entered",
        "_released",
        "counted",
        "evict",
        "group",
        "is_counted",
        "is_known",
        "is_protected",
        "is_storing",
        "kind",
    )

    def __init__(self, admission: Admission, kind: str, group: str, evict: Evict, counted: list[Key]) -> None:
        self.kind = kind
        self.group = group
        self.evict = evict
        self.counted = counted
        self.is_counted = True
        self.is_protected = False  # logged in, trusted or exempt: never evicted
        self.is_known = False  # the peer has logged in or delivered a message before
        self.is_storing = False
        self._admission = admission
        self._entered = False
        self._released = False

    def enter(self, user: str) -> bool:
        """Record the login of a user; False if the user has too many connections, or this one was evicted."""
        if self._entered or not self._admission._enter(self, user):
            return False
        self._entered = True
        return True

    def set_stage(self, stage: Stage) -> None:
        """Record the progress of an unauthenticated connection."""
        self._admission._set_stage(self, stage)

    def remember_peer(self) -> None:
        """Record that the peer has delivered a message: its next connections are evicted last."""
        self._admission._remember(self)

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._admission._close(self)


class _Waiting:
    """The unauthenticated connections of one kind, of this worker."""

    def __init__(self) -> None:
        self._unknown_peers: EvictionQueue[Ticket] = EvictionQueue()
        self._known_peers: EvictionQueue[Ticket] = EvictionQueue()

    def __len__(self) -> int:
        return len(self._unknown_peers) + len(self._known_peers)

    def add(self, ticket: Ticket, now: float) -> None:
        self._queue(ticket).add(ticket, ticket.group, now)

    def remove(self, ticket: Ticket) -> None:
        self._queue(ticket).remove(ticket)

    def set_idle(self, ticket: Ticket, *, idle: bool, now: float) -> None:
        self._queue(ticket).set_idle(ticket, idle=idle, now=now)

    def idle_before(self, moment: float) -> list[Ticket]:
        return self._unknown_peers.idle_before(moment) + self._known_peers.idle_before(moment)

    def victim(self) -> Ticket | None:
        unknown = self._unknown_peers.victim()
        return self._known_peers.victim() if unknown is None else unknown

    def _queue(self, ticket: Ticket) -> EvictionQueue[Ticket]:
        return self._known_peers if ticket.is_known else self._unknown_peers
