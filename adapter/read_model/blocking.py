"""Blocking access to a :class:`~adapter.read_model.interface.MailboxReader`, for callers without an event loop.

Its coroutines run on an event loop of their own, on a thread that starts with the first call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from adapter.read_model.interface import MailboxReader

Reader = TypeVar("Reader", bound=MailboxReader, covariant=True)
Result = TypeVar("Result")


class BlockingCalls(Generic[Reader]):
    """Runs coroutines for any thread but that of its loop. A call sees every change acknowledged before it."""

    def __init__(self, reader: Reader, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._reader = reader
        self._close = close
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def reader(self) -> Reader:
        return self._reader

    def run(self, call: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine and return its result."""
        return asyncio.run_coroutine_threadsafe(self._current(call), self._running_loop()).result()

    def close(self) -> None:
        """Stop the loop, if it was started, and close the reader."""
        with self._mutex:
            loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    async def _current(self, call: Coroutine[Any, Any, Result]) -> Result:
        if self._reader.is_behind:
            await self._reader.catch_up()
        return await call

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._mutex:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="markpost-reads", daemon=True)
                self._thread.start()
            return self._loop
