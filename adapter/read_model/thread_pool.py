"""Work that blocks, done on threads, with errors as callers expect them.

A pool of our own: an executor would cost more than most of what is done here, and its threads would keep for ever what
their connections to the index hold.
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


def give_back_memory() -> None:
    """Return what was freed to the system, where the C library can do that (malloc_trim(3))."""
    with contextlib.suppress(AttributeError):
        _libc.malloc_trim(0)


class Threads:
    def __init__(self, name: str, most: int, when_idle: Callable[[], None], idle: float) -> None:
        """At most ``most`` threads. One without work for ``idle`` seconds calls ``when_idle``, once."""
        self._name = name
        self._most = most
        self._when_idle = when_idle
        self.idle = idle
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0  # jobs; known to the loop's thread alone

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """The result of a function that blocks. Raises MailError, whatever goes wrong with files or index."""
        return await self.start(function, *arguments)

    def start(self, function: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        """The same, on its way. Call it on the loop's thread; what was begun is finished even if nobody waits."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._unfinished += 1
        if len(self._threads) < min(self._unfinished, self._most):
            name = f"markpost-{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((future, function, arguments))
        return future

    def close(self) -> None:
        """Blocks until what was begun is finished."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        patience: float | None = self.idle
        while True:
            try:
                job = self._jobs.get(timeout=patience)
            except queue.Empty:
                self._when_idle()
                patience = None
                continue
            if job is None:
                return
            patience = self.idle
            future, function, arguments = job
            result: Any = None
            error: BaseException | None = None
            try:
                result = function(*arguments)
            except (OSError, sqlite3.Error) as trouble:
                _log.exception("reading the store failed")
                error = MailError(Reason.UNKNOWN, f"{type(trouble).__name__}: {trouble}")
            except Exception as trouble:
                error = trouble
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                future.get_loop().call_soon_threadsafe(self._finish, future, result, error)
            del job, future, function, arguments, result, error  # not kept while waiting

    def _finish(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._unfinished -= 1
        if future.done():  # cancelled
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
