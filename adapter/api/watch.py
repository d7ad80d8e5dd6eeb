"""Waiting for new mail: the arrivals in one folder, from the change feed, whoever delivered them."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType

from adapter.api.messages import Summary
from adapter.store.journal import Record
from adapter.store.queries.mailboxes import Folder
from adapter.transport.changes import ChangeFeed, new_mail

Look = Callable[[int], Summary | None]
#: UIDs from one on, ascending.
Uids = Callable[[int], list[int]]


def arrivals(records: list[Record], folder_id: int) -> list[int]:
    """The UIDs that came into a folder; copies and moves of mail that was here before are none."""
    return [arrival.uid for record in records for arrival in new_mail(record) if arrival.folder == folder_id]


class _Arrivals(ABC):
    """What both kinds of watch hear of; they differ in how they wait for it."""

    def __init__(self, changes: ChangeFeed, folder: Folder, look: Look, uids: Uids, timeout: float | None) -> None:
        self._look = look
        self._uids = uids
        self._next = folder.uidnext  # the first UID not yet heard of
        self._timeout = timeout
        self._closed = False
        self._folder_id = folder.id
        self._subscription = changes.subscribe(self._hear, None, self._miss)

    def _hear(self, records: list[Record]) -> None:
        self._pass_on(arrivals(records, self._folder_id))

    def _miss(self, after: int, upto: int) -> None:
        """Records were lost to us: what lies in the folder tells as well."""
        self._pass_on(self._uids(self._next))

    def _pass_on(self, uids: list[int]) -> None:
        for uid in uids:
            self._next = uid + 1
            self._put(uid)

    @abstractmethod
    def _put(self, uid: int | None) -> None:
        """Called on the feed's thread; None wakes whoever waits."""

    def close(self) -> None:
        self._closed = True
        self._subscription.close()
        self._put(None)


class Watch(_Arrivals):
    """Messages as they arrive, from the moment it is made. Iterating ends after ``timeout`` seconds without one; the
    watch goes on, and what arrives meanwhile is what the next iteration starts with. ``close`` ends it for good."""

    def __init__(self, changes: ChangeFeed, folder: Folder, look: Look, uids: Uids, timeout: float | None) -> None:
        self._arrived: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        super().__init__(changes, folder, look, uids, timeout)

    def _put(self, uid: int | None) -> None:
        self._arrived.put(uid)

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Summary:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while not self._closed:
            try:
                uid = self._arrived.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if uid is not None and (found := self._look(uid)) is not None:
                return found
        raise StopIteration

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncWatch(_Arrivals):
    """The same for asyncio: ``async with mailbox.watch_async() as watch: async for mail in watch: …``."""

    def __init__(self, changes: ChangeFeed, folder: Folder, look: Look, uids: Uids, timeout: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[int | None] = asyncio.Queue()
        self._taken: int | None = None  # from the queue, and not told of yet: whoever waited may give up meanwhile
        super().__init__(changes, folder, look, uids, timeout)

    def _put(self, uid: int | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever waited
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, uid)

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> Summary:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                while not self._closed:
                    if self._taken is None:
                        self._taken = await self._arrived.get()
                    if self._taken is not None:
                        found = await asyncio.to_thread(self._look, self._taken)
                        self._taken = None
                        if found is not None:
                            return found
        raise StopAsyncIteration

    async def __aenter__(self) -> AsyncWatch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
