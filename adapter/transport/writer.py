"""The one mutation path: group commit.

Operations from any thread queue up here. One thread takes all that wait (or a caller brings a batch, on a thread of its
own), and for the batch: takes the locks, plans inside one index transaction, appends the records to the journal with
one fsync (the commit point), changes the files, commits the index, publishes the sequence number, unlocks in reverse
order, and only then answers.

One operation that fails does not fail its neighbours: a plan that raises is left out of the batch; if the files cannot
follow, the batch is rolled back in all layers, the abort is recorded, and each operation is retried alone.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from adapter.observability.metrics import BATCH, COMMIT_SECONDS
from adapter.store import disk, index
from adapter.store.disk import Directories
from adapter.store.effects import Actor
from adapter.store.index import Index
from adapter.store.journal import MAX_BATCH, Journal, Record
from adapter.store.locks import Locks, LockTimeout
from adapter.store.published import PublishedSequence
from adapter.transport import apply, ids
from adapter.transport.apply.undo import Undo
from adapter.transport.errors import as_mail_error
from adapter.transport.operations.base import AnyOperation, Plan
from adapter.transport.staging import StagingArea
from protocol.errors import MailError, Reason

_log = logging.getLogger(__name__)

_BATCH_OPERATIONS = MAX_BATCH // 2


class _HalfPlanned(Exception):  # noqa: N818 - a signal inside this module
    """A plan failed after it had changed the index: the transaction has to be rolled back."""


class _Job:
    __slots__ = ("actor", "error", "future", "operation", "record", "result")

    def __init__(self, operation: AnyOperation, actor: Actor) -> None:
        self.operation = operation
        self.actor = actor
        self.future: Future[Any] = Future()
        self.result: Any = None
        self.error: Exception | None = None
        self.record: Record | None = None


class Writer:
    def __init__(
        self,
        directories: Directories,
        locks: Locks,
        journal: Journal,
        index: Index,
        staging: StagingArea,
        published: PublishedSequence,
        catch_up: Callable[[], int],
        after_commit: Callable[[list[Record]], None],
        actor: Actor,
    ) -> None:
        """``actor``: recorded with aborts."""
        self._directories = directories
        self._locks = locks
        self._journal = journal
        self._index = index
        self._staging = staging
        self._published = published
        self._catch_up = catch_up
        self._after_commit = after_commit
        self._actor = actor
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._turn = threading.Lock()  # held for a batch
        self.is_settled = True  # False: the journal holds records that were neither applied nor aborted
        self._thread = threading.Thread(target=self._run, name="markpost-writer", daemon=True)
        self._thread.start()

    def submit(self, operation: AnyOperation, actor: Actor) -> Future[Any]:
        """Queue an operation. Once queued it runs to its end: cancelling the future does not stop a commit."""
        job = _Job(operation, actor)
        job.future.set_running_or_notify_cancel()
        with self._closing:
            if self._closed:
                raise MailError(Reason.MAINTENANCE, "the store is closed")
            self._queue.put(job)
        return job.future

    def commit_all(self, operations: Sequence[tuple[AnyOperation, Actor]]) -> list[Future[Any]]:
        """Commit these on the calling thread; the futures have ended."""
        jobs = [_Job(operation, actor) for operation, actor in operations]
        with self._turn:
            if self._closed:
                raise MailError(Reason.MAINTENANCE, "the store is closed")
            for at in range(0, len(jobs), _BATCH_OPERATIONS):
                self._commit(jobs[at : at + _BATCH_OPERATIONS])
        return [job.future for job in jobs]

    def close(self) -> None:
        """Finish what is queued, then stop."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join()
        with self._turn:
            pass  # a batch of another thread is done

    def _run(self) -> None:
        open_ = True
        while open_:
            batch = [self._queue.get()]
            while len(batch) < _BATCH_OPERATIONS and batch[-1] is not None:
                try:
                    batch.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            open_ = batch[-1] is not None
            jobs = [job for job in batch if job is not None]
            if jobs:
                with self._turn:
                    self._commit(jobs)

    def _commit(self, jobs: list[_Job]) -> None:
        began = time.monotonic()
        self._commit_locked(jobs)
        BATCH.of().observe(len(jobs))
        COMMIT_SECONDS.of().observe(time.monotonic() - began)
        records = [job.record for job in jobs if job.record is not None]
        if records:
            self._after_commit(records)
        for job in jobs:
            if job.record is not None or self.is_settled:  # else it may be rolled forward yet, and need its content
                for staged in job.operation.staged_content():
                    self._staging.release(staged, committed=job.record is not None)
            if job.record is not None:
                job.operation.committed(job.record.seq)
            if job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.result)

    def _commit_locked(self, jobs: list[_Job]) -> None:
        """Commit the jobs under their locks; a lock timeout fails only the jobs that need that lock."""
        locked = False
        try:
            with self._locks.hold({address for job in jobs for address in job.operation.addresses()}):
                locked = True
                self._journal.refresh()
                self._catch_up()
                self.is_settled = True
                if not self._attempt(jobs) and len(jobs) > 1:
                    for job in jobs:
                        if self.is_settled:
                            self._catch_up()  # to the abort: it puts right what could not be undone
                            self._attempt([job])
        except LockTimeout as timeout:
            free = [job for job in jobs if timeout.address and timeout.address not in job.operation.addresses()]
            _fail([job for job in jobs if job not in free], timeout)
            if free:
                self._commit_locked(free)
        except Exception as error:
            if locked or len(jobs) == 1:
                _fail(jobs, error)
            else:  # one of them names an address for which there can be no lock
                for job in jobs:
                    self._commit_locked([job])

    def _attempt(self, jobs: list[_Job]) -> bool:
        """Plan, journal and apply these jobs in one transaction. False: nothing happened, errors are noted."""
        undo = Undo()
        journaled: list[Record] = []
        try:
            with self._index.transaction() as connection:
                planned = [(job, record) for job in jobs if (record := self._plan(job, connection)) is not None]
                if planned:
                    records = [record for _, record in planned]
                    self._journal.append(records)
                    journaled = records
                    apply.apply_files(records, self._directories, undo)
                    index.set_applied(connection, self._journal.last_seq, self._journal.last_checksum)
        except _HalfPlanned:
            # Nothing is journaled yet. A savepoint around every plan would spare the others this second round, but
            # would cost each of them more than the plan itself.
            return self._attempt([job for job in jobs if job.error is None])
        except Exception as error:
            self.is_settled = self._take_back(journaled, undo) if journaled else self._journal.is_known
            failure = as_mail_error(error)
            for job in jobs:
                job.error = failure
            return False
        if planned:
            self._published.set(self._journal.last_seq)
        undo.committed()
        for job, record in planned:
            job.record = record
        return True

    def _plan(self, job: _Job, connection: sqlite3.Connection) -> Record | None:
        plan = Plan(connection, self._directories, ids.microseconds())
        job.error = None
        try:
            job.result = job.operation.plan(plan)
        except Exception as error:
            job.error = as_mail_error(error)
            if plan.effects:
                raise _HalfPlanned from error
            return None
        if not plan.effects:
            return None
        return Record(at=plan.now, op=job.operation.name, actor=job.actor, effects=plan.effects)

    def _take_back(self, records: list[Record], undo: Undo) -> bool:
        """The records are in the journal but the files or the index could not follow: undo, and say so there.

        False: the abort could not be recorded either. The records then stand, and the next round rolls them forward:
        callers get an error that leaves open whether the operation happened.
        """
        complete = undo.run()
        abort = Record(
            at=ids.microseconds(),
            op="abort",
            actor=self._actor,
            effects=[],
            aborted=(records[0].seq, records[-1].seq),
        )
        try:
            self._journal.append([abort])
            return True  # steps that could not be undone are repaired by the next process that catches up
        except OSError as error:
            _log.error("abort of records %s not recorded (%s); cutting the journal", abort.aborted, error)
        if not complete or not self._journal.is_known:
            return False
        try:
            # The records are about to be removed: the rollback must be durable first.
            disk.sync_file_system(self._directories.root_fd)
        except OSError:
            return False
        self._journal.forget_last_batch()
        return self._journal.is_known


def _fail(jobs: list[_Job], error: Exception) -> None:
    for job in jobs:
        if job.record is None and job.error is None:
            job.error = as_mail_error(error)
