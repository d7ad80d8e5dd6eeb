"""Thread pool for blocking work, with errors as the callers of the read model expect them.

An executor would cost more than most jobs here, and its threads would keep the memory of their database connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from protocol.errors import MailError, Reason

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

_Job = tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]

_libc = ctypes.CDLL(None)


def trim_memory() -> None:
    """Return freed memory to the system where the C library can do that (malloc_trim(3))."""
    with contextlib.suppress(AttributeError):
        _libc.malloc_trim(0)


class ThreadPool:
    def __init__(self, name: str, max_threads: int, on_idle: Callable[[], None], idle_seconds: float) -> None:
        """Start threads on demand. One without work for ``idle_seconds`` calls ``on_idle`` once."""
        self._name = name
        self._max_threads = max_threads
        self._on_idle = on_idle
        self.idle_seconds = idle_seconds
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0  # jobs; used by the loop's thread alone

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return the result of a blocking function. Raises MailError for any failure of files or index."""
        return await self.start(function, *arguments)

    def start(self, function: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        """Queue the function, from the loop's thread. It is finished even if the future is cancelled."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._unfinished += 1
        if len(self._threads) < min(self._unfinished, self._max_threads):
            name = f"markpost-{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((future, function, arguments))
        return future

    def close(self) -> None:
        """Block until all queued jobs are finished."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        timeout: float | None = self.idle_seconds
        while True:
            try:
                job = self._jobs.get(timeout=timeout)
            except queue.Empty:
                self._on_idle()
                timeout = None
                continue
            if job is None:
                return
            timeout = self.idle_seconds
            future, function, arguments = job
            result: Any = None
            error: BaseException | None = None
            try:
                result = function(*arguments)
            except (OSError, sqlite3.Error) as cause:
                _log.exception("reading the store failed")
                error = MailError(Reason.UNKNOWN, f"{type(cause).__name__}: {cause}")
            except Exception as cause:
                error = cause
            with contextlib.suppress(RuntimeError):  # the loop is closed
                future.get_loop().call_soon_threadsafe(self._finish, future, result, error)
            del job, future, function, arguments, result, error  # not kept alive while waiting

    def _finish(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._unfinished -= 1
        if future.done():  # cancelled
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
