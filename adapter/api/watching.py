"""Waiting for new mail: the arrivals in one folder, from the change feed, whoever delivered them."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
from collections.abc import Callable
from types import TracebackType

from adapter.api.items import Summary
from adapter.store.journal import Record
from adapter.store.queries import Folder
from adapter.transport.changes import ChangeFeed, new_mail

Look = Callable[[int], Summary | None]
#: UIDs from one on, ascending.
Uids = Callable[[int], list[int]]


def arrivals(records: list[Record], folder_id: int) -> list[int]:
    """The UIDs that came into a folder; copies and moves of mail that was here before are none."""
    return [arrival.uid for record in records for arrival in new_mail(record) if arrival.folder == folder_id]


class Watch:
    """Messages as they arrive, from the moment it is made. Iterating ends after ``timeout`` seconds without one; the
    watch goes on, and what arrives meanwhile is what the next iteration starts with. ``close`` ends it for good."""

    def __init__(self, changes: ChangeFeed, folder: Folder, look: Look, uids: Uids, timeout: float | None) -> None:
        self._look = look
        self._uids = uids
        self._next = folder.uidnext  # the first UID not yet heard of
        self._timeout = timeout
        self._closed = False
        self._arrived: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._folder_id = folder.id
        self._subscription = changes.subscribe(self._hear, None, self._miss)

    def _hear(self, records: list[Record]) -> None:
        self._tell(arrivals(records, self._folder_id))

    def _miss(self, after: int, upto: int) -> None:
        """Records were lost to us: what lies in the folder tells as well."""
        self._tell(self._uids(self._next))

    def _tell(self, uids: list[int]) -> None:
        for uid in uids:
            self._next = uid + 1
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

    def close(self) -> None:
        self._closed = True
        self._subscription.close()
        self._arrived.put(None)

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncWatch:
    """The same for asyncio: ``async with mailbox.watch_async() as watch: async for mail in watch: …``."""

    def __init__(self, changes: ChangeFeed, folder: Folder, look: Look, uids: Uids, timeout: float | None) -> None:
        self._look = look
        self._uids = uids
        self._next = folder.uidnext  # the first UID not yet heard of
        self._timeout = timeout
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[int | None] = asyncio.Queue()
        self._folder_id = folder.id
        self._subscription = changes.subscribe(self._hear, None, self._miss)

    def _hear(self, records: list[Record]) -> None:
        self._tell(arrivals(records, self._folder_id))

    def _miss(self, after: int, upto: int) -> None:
        """Records were lost to us: what lies in the folder tells as well."""
        self._tell(self._uids(self._next))

    def _tell(self, uids: list[int]) -> None:
        for uid in uids:
            self._next = uid + 1
            with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever waited
                self._loop.call_soon_threadsafe(self._arrived.put_nowait, uid)

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> Summary:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                while not self._closed:
                    uid = await self._arrived.get()
                    if uid is not None and (found := await asyncio.to_thread(self._look, uid)) is not None:
                        return found
        raise StopAsyncIteration

    def close(self) -> None:
        self._closed = True
        self._subscription.close()
        self._arrived.put_nowait(None)

    async def __aenter__(self) -> AsyncWatch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
