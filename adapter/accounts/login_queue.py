"""Login queues: limits on delayed logins, and a fair queue between peers.

A delayed login is counted in :class:`Bounds`, for its peer and account. When its delay has passed it enters a
:class:`FairQueue`.

Invariants: every peer has a line of its own, and the lines are served round-robin, so that a peer with many logins
delays another one by at most one of them. If the queue is full, the longest line gives way. A cancelled login leaves
its line at once. A slot is released when the work has finished, even if its caller was cancelled. Runs on the event
loop only.
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
    """Too many logins are waiting: a temporary failure."""


class Bounds:
    """Counts the delayed logins under each of their keys."""

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
    """A number of slots, and at most ``waiting`` callers that wait for one."""

    def __init__(self, slots: int, waiting: int) -> None:
        self.waiting = waiting
        self._free = slots
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}  # the next line first; never an empty one

    def __len__(self) -> int:
        """Return the number of waiting callers."""
        return sum(map(len, self._lines.values()))

    @contextlib.asynccontextmanager
    async def slot(self, line: str) -> AsyncIterator[None]:
        """Hold a slot for the length of the block. Raises CrowdedError."""
        await self._acquire(line)
        try:
            yield
        finally:
            self._release()

    async def run(self, line: str, executor: Executor, function: Callable[..., _T], *arguments: object) -> _T:
        """Call a function on a thread when a slot is free. Raises CrowdedError."""
        await self._acquire(line)
        try:
            call = asyncio.get_running_loop().run_in_executor(executor, function, *arguments)
        except BaseException:
            self._release()
            raise
        call.add_done_callback(self._on_finished)
        return await asyncio.shield(call)

    def _on_finished(self, call: asyncio.Future[_T]) -> None:
        if not call.cancelled():
            call.exception()  # mark it as retrieved: a cancelled caller does not
        self._release()

    async def _acquire(self, line: str) -> None:
        if self._free and not self._lines:
            self._free -= 1
            return
        self._make_room(line)
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(line, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the slot was handed over just before
                self._release()
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

    def _release(self) -> None:
        """Hand the slot to the first caller of the next line, or keep it for a later caller."""
        while self._lines:
            line, turns = next(iter(self._lines.items()))
            turn = turns.popleft()
            del self._lines[line]
            if turns:
                self._lines[line] = turns  # last in the rotation
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
