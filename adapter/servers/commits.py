"""Commits from the event loop: staging on a thread, then the store's writer, then back.

An executor and a future for each step would cost more than the step. So threads of our own take jobs from a queue and
hand them on to the writer themselves, and the loop is woken once for a batch that ends together.

Invariant: what was begun is finished, whatever becomes of the task that waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from adapter.transport.operations.base import Operation
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


_Prepare = Callable[[], Operation[Any]]
_Job = tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], _Prepare]


class Commits:
    def __init__(self, transport: Transport, threads: int) -> None:
        self._transport = transport
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: deque[tuple[asyncio.Future[Any], Future[Any] | MailError]] = deque()
        self._scheduled = False
        self._threads = [
            threading.Thread(target=self._work, name=f"markpost-staging-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Finish what was handed in. Blocks."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    async def run(self, prepare: Callable[[], Operation[Result]]) -> Result:
        """Commit the operation that ``prepare``, called on a thread, returns. Raises MailError."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Result] = loop.create_future()
        self._jobs.put((loop, waiter, prepare))
        return await waiter

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._start(*job)

    def _start(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[Any], prepare: _Prepare) -> None:
        try:
            operation = prepare()
        except Exception as error:
            self._post(loop, waiter, as_mail_error(error))
            return
        try:
            committed = self._transport.submit(operation)
        except MailError as error:
            for staged in operation.staged_content():
                self._transport.discard(staged)
            self._post(loop, waiter, error)
            return
        committed.add_done_callback(lambda done: self._post(loop, waiter, done))

    def _post(
        self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[Any], outcome: Future[Any] | MailError
    ) -> None:
        """From any thread. A batch ends all at once: waking the loop for each would cost more than the rest."""
        self._done.append((waiter, outcome))
        if not self._scheduled:
            self._scheduled = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._scheduled = False
        while self._done:
            waiter, outcome = self._done.popleft()
            if waiter.done():
                continue
            error = outcome if isinstance(outcome, MailError) else outcome.exception()
            if error is not None:
                waiter.set_exception(error)
            elif isinstance(outcome, Future):
                waiter.set_result(outcome.result())


def as_mail_error(error: Exception) -> MailError:
    """Trouble before the commit as callers want it; the details go to the log."""
    if isinstance(error, MailError):
        return error
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        return MailError(Reason.DISK_FULL, str(error))
    _log.error("a message could not be staged", exc_info=error)
    return MailError(Reason.UNKNOWN, type(error).__name__)
