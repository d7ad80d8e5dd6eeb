"""Eviction queue: selects the unauthenticated connection to close in favour of a new one.

The peer (network group) with the most connections in the queue loses one first: the oldest idle one, or the oldest if
none is idle. So a flood from many addresses displaces itself before it displaces a client that has one connection.

Invariant: the time of every step is bounded, however long the queue is.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

Member = TypeVar("Member", bound=Hashable)

#: Groups of the same size among which the oldest member is searched for.
_SCANNED_GROUPS = 64


class EvictionQueue(Generic[Member]):
    """Unauthenticated connections by network group."""

    def __init__(self) -> None:
        self._group: dict[Member, str] = {}
        self._added: dict[Member, int] = {}  # in this order
        self._number = itertools.count()
        self._idle_since: dict[Member, float] = {}  # longest first
        self._members: dict[str, dict[Member, None]] = {}  # by group; oldest first
        self._of_size: dict[int, dict[str, None]] = {}  # groups by their number of members; the first to grow first
        self._largest = 0

    def __len__(self) -> int:
        return len(self._group)

    def add(self, member: Member, group: str, now: float) -> None:
        """Add an idle member."""
        members = self._members.setdefault(group, {})
        self._resize(group, len(members), len(members) + 1)
        members[member] = None
        self._group[member] = group
        self._added[member] = next(self._number)
        self._idle_since[member] = now

    def remove(self, member: Member) -> None:
        group = self._group.pop(member, None)
        if group is None:
            return
        del self._added[member]
        self._idle_since.pop(member, None)
        members = self._members[group]
        self._resize(group, len(members), len(members) - 1)
        del members[member]
        if not members:
            del self._members[group]

    def set_idle(self, member: Member, *, idle: bool, now: float) -> None:
        """Record whether a member is idle; its position stays."""
        self._idle_since.pop(member, None)
        if idle and member in self._group:
            self._idle_since[member] = now

    def victim(self) -> Member | None:
        """Return the member to evict next, or None."""
        if not self._group:
            return None
        groups = itertools.islice(self._of_size[self._largest], _SCANNED_GROUPS)
        candidates = [self._oldest_idle(self._members[group]) for group in groups]
        return min(candidates, key=self._added.__getitem__)

    def _oldest_idle(self, members: dict[Member, None]) -> Member:
        return next((each for each in members if each in self._idle_since), next(iter(members)))

    def idle_before(self, moment: float) -> list[Member]:
        """Return the members that have been idle since before this moment."""
        return [each for each, _ in itertools.takewhile(lambda item: item[1] < moment, self._idle_since.items())]

    def _resize(self, group: str, before: int, after: int) -> None:
        if before:
            groups = self._of_size[before]
            del groups[group]
            if not groups:
                del self._of_size[before]
        if after:
            self._of_size.setdefault(after, {})[group] = None
        if after > self._largest or self._largest not in self._of_size:
            self._largest = after
