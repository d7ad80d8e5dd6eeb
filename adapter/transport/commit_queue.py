"""CommitQueue from the event loop: staging on a thread, then the store's writer, then back.

An executor and a future for each step would cost more than the step. So threads of our own take jobs from a queue, and
the loop is woken once for a batch that ends together.

Small messages are staged and committed on the same thread, all that wait together: staging beside a commit would
only take the interpreter from it, at each of its system calls, and keep other processes waiting for its locks. Large
messages are staged on other threads and handed to the writer, so that they do not hold up small ones.

Invariant: a job that was started is finished, even if the task that waits for it is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from adapter.store.effects import Actor
from adapter.transport.operations.base import Operation
from adapter.transport.staging import SPOOL_MEMORY
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_MAX_BATCH = 64  # small ones in one batch
_MAX_STAGING_SECONDS = 0.05  # seconds after which a batch is committed although more is waiting


_Prepare = Callable[[], Operation[Any]]
_Job = tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], _Prepare, Actor | None]
_Jobs = queue.SimpleQueue[_Job | None]
_Prepared = tuple[_Job, Operation[Any]]


class CommitQueue:
    def __init__(self, transport: Transport, threads: int) -> None:
        self._transport = transport
        self._small: _Jobs = queue.SimpleQueue()
        self._large: _Jobs = queue.SimpleQueue()
        self._mutex = threading.Lock()
        self._closed = False
        self._done: deque[tuple[asyncio.Future[Any], Future[Any] | MailError]] = deque()
        self._scheduled = False
        self._threads = [
            threading.Thread(target=self._work_on_small, name="markpost-small", daemon=True),
            *(
                threading.Thread(target=self._work_on_large, name=f"markpost-large-{number}", daemon=True)
                for number in range(threads)
            ),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Finish what was handed in, and take nothing more. Blocks."""
        with self._mutex:
            self._closed = True
            self._small.put(None)
            for _ in self._threads[1:]:
                self._large.put(None)
        for thread in self._threads:
            thread.join()

    async def run(self, prepare: Callable[[], Operation[Result]], size: int, actor: Actor | None = None) -> Result:
        """Commit the operation that ``prepare``, called on a thread, makes of so many octets. Raises MailError.

        ``actor`` caused it; None: the actor that the store was opened with.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Result] = loop.create_future()
        with self._mutex:  # a job queued after close()'s sentinel would never run
            if self._closed:
                raise MailError(Reason.MAINTENANCE)
            (self._small if size <= SPOOL_MEMORY else self._large).put((loop, waiter, prepare, actor))
        return await waiter

    def _work_on_small(self) -> None:
        while (job := self._small.get()) is not None:
            batch = self._prepare(job)
            until = time.monotonic() + _MAX_STAGING_SECONDS
            while not self._small.empty() and len(batch) < _MAX_BATCH and time.monotonic() < until:
                if (job := self._small.get()) is None:
                    self._small.put(None)  # once more, for when the batch is done
                    break
                batch += self._prepare(job)
            self._commit(batch)

    def _work_on_large(self) -> None:
        while (job := self._large.get()) is not None:
            for (loop, waiter, _, actor), operation in self._prepare(job):
                try:
                    committed = self._transport.submit(operation, actor)
                except MailError as error:
                    self._give_up(job, operation, error)
                else:
                    committed.add_done_callback(partial(self._post, loop, waiter))

    def _prepare(self, job: _Job) -> list[_Prepared]:
        """Return the job with its operation; nothing if preparing it failed, which ends the job."""
        loop, waiter, prepare, _ = job
        try:
            return [(job, prepare())]
        except Exception as error:
            self._post(loop, waiter, as_mail_error(error))
            return []

    def _commit(self, batch: list[_Prepared]) -> None:
        try:
            done = self._transport.commit_all([operation for _, operation in batch], [job[3] for job, _ in batch])
        except Exception as error:  # the store is closed; whatever else it is, this thread is needed
            for job, operation in batch:
                self._give_up(job, operation, as_mail_error(error))
            return
        for ((loop, waiter, *_), _), future in zip(batch, done, strict=True):
            self._post(loop, waiter, future)

    def _give_up(self, job: _Job, operation: Operation[Any], error: MailError) -> None:
        for staged in operation.staged_content():
            self._transport.discard(staged)
        loop, waiter, *_ = job
        self._post(loop, waiter, error)

    def _post(
        self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[Any], outcome: Future[Any] | MailError
    ) -> None:
        """From any thread. A batch ends all at once: waking the loop for each would cost more than the rest."""
        self._done.append((waiter, outcome))
        if not self._scheduled:
            self._scheduled = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits
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
    """Translate an error before the commit to a MailError; the details go to the log."""
    if isinstance(error, MailError):
        return error
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        failure = MailError(Reason.DISK_FULL, str(error))
    else:
        _log.error("a message could not be staged", exc_info=error)
        failure = MailError(Reason.UNKNOWN, type(error).__name__)
    failure.__cause__ = error
    return failure
