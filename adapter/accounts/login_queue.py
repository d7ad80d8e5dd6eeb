"""Queues of logins: bounds on how many wait, and turns that are fair between peers.

A login that is delayed is counted in :class:`Bounds`, for its own peer and account. It asks for a place in a
:class:`FairQueue` when its delay has passed.

Invariants: every peer has a line of its own, and the lines are served round-robin, so that a peer with many logins
delays another one by at most one of them. If all lines together are full, the longest line gives way. A login that is
cancelled leaves its line at once. A place is given back when the work is over, also if its caller has been cancelled.
Everything here happens on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from typing import TypeVar

_T = TypeVar("_T")


class CrowdedError(Exception):
    """Too many logins wait already: a temporary failure."""


class Bounds:
    """Count the logins that are delayed under each of their keys."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    @contextlib.contextmanager
    def hold(self, limits: dict[str, int]) -> Iterator[None]:
        """Count one more under each key for the length of the block. Raises CrowdedError beyond a key's limit."""
        if any(self._counts[key] >= limit for key, limit in limits.items()):
            raise CrowdedError
        self._counts.update(limits.keys())
        try:
            yield
        finally:
            for key in limits:
                self._counts[key] -= 1
                if not self._counts[key]:
                    del self._counts[key]

    def __len__(self) -> int:
        return len(self._counts)


class FairQueue:
    """``places`` that may be taken at a time, and at most ``waiting`` callers for them."""

    def __init__(self, places: int, waiting: int) -> None:
        self.waiting = waiting
        self._free = places
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}  # the next to be served first; none is empty

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(len, self._lines.values()))

    @contextlib.asynccontextmanager
    async def place(self, line: str) -> AsyncIterator[None]:
        """Hold a place for the length of the block. Raises CrowdedError."""
        await self._take(line)
        try:
            yield
        finally:
            self._give_back()

    async def run(self, line: str, executor: Executor, function: Callable[..., _T], *arguments: object) -> _T:
        """Call a function on a thread, in turn. Raises CrowdedError."""
        await self._take(line)
        try:
            call = asyncio.get_running_loop().run_in_executor(executor, function, *arguments)
        except BaseException:
            self._give_back()
            raise
        call.add_done_callback(self._called)
        return await asyncio.shield(call)

    def _called(self, call: asyncio.Future[_T]) -> None:
        if not call.cancelled():
            call.exception()  # a caller that has been cancelled does not fetch it
        self._give_back()

    async def _take(self, line: str) -> None:
        if self._free and not self._lines:
            self._free -= 1
            return
        self._make_room(line)
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(line, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the place was handed over just before
                self._give_back()
            else:
                self._leave(line, turn)
            raise

    def _make_room(self, line: str) -> None:
        if len(self) < self.waiting:
            return
        longest = max(self._lines, key=lambda name: len(self._lines[name]), default=line)
        if len(self._lines.get(longest, ())) <= len(self._lines.get(line, ())) + 1:
            raise CrowdedError
        last = self._lines[longest][-1]
        self._leave(longest, last)
        if not last.done():
            last.set_exception(CrowdedError())

    def _leave(self, line: str, turn: asyncio.Future[None]) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._lines[line].remove(turn)
            if not self._lines[line]:
                del self._lines[line]

    def _give_back(self) -> None:
        """Hand the place to the first of the line that is next, or keep it for a later caller."""
        while self._lines:
            line, turns = next(iter(self._lines.items()))
            turn = turns.popleft()
            del self._lines[line]
            if turns:
                self._lines[line] = turns  # behind all others
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
