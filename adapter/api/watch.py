"""Waiting for new mail: the arrivals in one folder, from the change feed, of any process."""

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

LookUp = Callable[[int], Summary | None]
#: Returns the UIDs from this one on, ascending.
UidsFrom = Callable[[int], list[int]]


def arrivals(records: list[Record], folder_id: int) -> list[int]:
    """Return the UIDs of new mail in a folder, without copies and moves of older mail."""
    return [arrival.uid for record in records for arrival in new_mail(record) if arrival.folder == folder_id]


class _Arrivals(ABC):
    """The part that both kinds of watch share; they differ in how they wait."""

    def __init__(
        self, changes: ChangeFeed, folder: Folder, look_up: LookUp, uids_from: UidsFrom, timeout: float | None
    ) -> None:
        self._look_up = look_up
        self._uids_from = uids_from
        self._next = folder.uidnext  # the first UID that has not arrived
        self._timeout = timeout
        self._closed = False
        self._folder_id = folder.id
        self._subscription = changes.subscribe(self._on_records, None, self._on_gap)

    def _on_records(self, records: list[Record]) -> None:
        self._pass_on(arrivals(records, self._folder_id))

    def _on_gap(self, after: int, upto: int) -> None:
        """Read the folder instead: records were removed before they were read."""
        self._pass_on(self._uids_from(self._next))

    def _pass_on(self, uids: list[int]) -> None:
        for uid in uids:
            self._next = uid + 1
            self._put(uid)

    @abstractmethod
    def _put(self, uid: int | None) -> None:
        """Called on the feed's thread; None wakes the waiting caller."""

    def close(self) -> None:
        self._closed = True
        self._subscription.close()
        self._put(None)


class Watch(_Arrivals):
    """Messages as they arrive from now on. Iterating ends after ``timeout`` seconds without one; the watch continues,
    and the next iteration starts with what has arrived since. ``close`` ends it."""

    def __init__(
        self, changes: ChangeFeed, folder: Folder, look_up: LookUp, uids_from: UidsFrom, timeout: float | None
    ) -> None:
        self._arrived: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        super().__init__(changes, folder, look_up, uids_from, timeout)

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
            if uid is not None and (summary := self._look_up(uid)) is not None:
                return summary
        raise StopIteration

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncWatch(_Arrivals):
    """The same for asyncio: ``async with mailbox.watch_async() as watch: async for mail in watch: …``."""

    def __init__(
        self, changes: ChangeFeed, folder: Folder, look_up: LookUp, uids_from: UidsFrom, timeout: float | None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[int | None] = asyncio.Queue()
        self._taken: int | None = (
            None  # from the queue, but not returned yet: the caller may cancel while it is looked up
        )
        super().__init__(changes, folder, look_up, uids_from, timeout)

    def _put(self, uid: int | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
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
                        summary = await asyncio.to_thread(self._look_up, self._taken)
                        self._taken = None
                        if summary is not None:
                            return summary
        raise StopAsyncIteration

    async def __aenter__(self) -> AsyncWatch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
