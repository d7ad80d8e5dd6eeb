"""Group commit: many submitters, failing operations, cancelled callers, full disks."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from adapter.store import disk
from adapter.store.disk import Directories
from adapter.store.flags import Flag
from adapter.store.journal import Journal, without_aborted
from adapter.store.locks import Locks
from adapter.transport import operations as op
from adapter.transport import writer
from adapter.transport.operations.base import Plan
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.store.journals import reopened
from tests.support.stores import ADA, BOB, append, deliver, folder, folder_names, new_store, rows, subscriptions
from tests.support.waiting import PATIENCE


class Batches:
    """Count the records of each journal append."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        append_records = Journal.append

        def counting(journal: Journal, records: list[Any]) -> None:
            self.sizes.append(len(records))
            append_records(journal, records)

        monkeypatch.setattr(Journal, "append", counting)


def together(store: Transport, *operations: op.Operation[Any]) -> list[Future[Any]]:
    """Submit operations while the writer is busy, so that they form one batch."""
    entered, proceed = threading.Event(), threading.Event()

    @dataclass(frozen=True)
    class Plug(op.Operation[None]):
        """Keep the writer busy before it takes a lock or changes anything."""

        name = "plug"

        def addresses(self) -> tuple[str, ...]:
            entered.set()
            proceed.wait(PATIENCE)
            raise MailError(Reason.NOT_ALLOWED)

        def plan(self, plan: Plan) -> None: ...

    store.submit(Plug())
    assert entered.wait(PATIENCE)
    futures = [store.submit(operation) for operation in operations]
    proceed.set()
    return futures


@dataclass(frozen=True)
class Failing(op.Operation[None]):
    """Fail with this error, before or (``half``) after creating a folder."""

    error: Exception
    half: bool = False
    address: str = ADA
    name = "failing"

    def addresses(self) -> tuple[str, ...]:
        return (self.address,)

    def plan(self, plan: Plan) -> None:
        if self.half:
            op.CreateFolder(ADA, "half made").plan(plan)
        raise self.error


def outcomes(futures: list[Future[Any]]) -> list[str]:
    names = []
    for future in futures:
        error = future.exception(timeout=PATIENCE)
        assert error is None or isinstance(error, MailError)
        names.append("done" if error is None else error.reason.name)
    return names


@contextmanager
def index_locked(store: Transport) -> Iterator[None]:
    """Hold the index lock as another process would."""
    with (
        closing(Directories(store.root)) as directories,
        closing(Locks(directories, PATIENCE)) as holder,
        holder.hold(()),
    ):
        yield


# --- batches ---------------------------------------------------------------------------------------------------------


def test_waiting_operations_share_one_journal_append(store: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(monkeypatch)
    assert outcomes(together(store, *[op.Subscribe(ADA, f"f{n}") for n in range(50)])) == ["done"] * 50
    assert batches.sizes == [50]


def test_batch_size_is_limited(store: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(monkeypatch)
    futures = together(store, *[op.Subscribe(ADA, f"f{n}") for n in range(300)])
    assert outcomes(futures) == ["done"] * 300
    assert batches.sizes == [writer._BATCH_OPERATIONS, 300 - writer._BATCH_OPERATIONS]


def test_commits_of_many_threads_share_journal_appends(store: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(monkeypatch)
    barrier = threading.Barrier(64)
    failures: list[BaseException] = []
    uids: list[int] = []

    def work(number: int) -> None:
        try:
            staged = [store.stage(message(f"{number}.{part}")) for part in range(5)]
            barrier.wait()
            for item in staged:
                uids.append(store.run(op.Append(ADA, "INBOX", [op.AppendItem(item)]))[0].uid)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(uids) == list(range(1, 321))
    assert len(batches.sizes) < 160  # far fewer appends than operations
    assert len({row.message_id for row in rows(store)}) == 320


def test_operations_of_one_thread_are_applied_in_order(store: Transport) -> None:
    futures = together(
        store,
        op.CreateFolder(ADA, "a"),
        op.RenameFolder(ADA, "a", "b"),
        op.CreateFolder(ADA, "a"),
        op.DeleteFolder(ADA, "b"),
        op.Register("new@example.test"),
        op.CreateFolder("new@example.test", "c"),
    )
    assert outcomes(futures) == ["done"] * 6
    assert "a" in folder_names(store)
    assert "b" not in folder_names(store)


# --- other operations of a batch -------------------------------------------------------------------------------------

FAILURES: list[tuple[op.Operation[Any], str]] = [
    (op.DeleteFolder(ADA, "nowhere"), "NO_SUCH_FOLDER"),
    (Failing(ZeroDivisionError("bug")), "UNKNOWN"),
    (Failing(MailError(Reason.LIMIT)), "LIMIT"),
    (Failing(OSError(errno.ENOSPC, "full")), "DISK_FULL"),
    (Failing(MailError(Reason.LIMIT), half=True), "LIMIT"),
    (Failing(ZeroDivisionError("bug"), half=True), "UNKNOWN"),
    (Failing(ZeroDivisionError("bug"), address="\ud800@example.test"), "UNKNOWN"),
    (Failing(ZeroDivisionError("bug"), address="x" * 300), "UNKNOWN"),
]


@pytest.mark.parametrize(("failing", "reason"), FAILURES)
def test_failed_operation_does_not_affect_others_in_batch(
    store: Transport, failing: op.Operation[Any], reason: str
) -> None:
    futures = together(
        store, op.Subscribe(ADA, "a"), failing, op.CreateFolder(BOB, "b"), failing, op.Subscribe(ADA, "c")
    )
    assert outcomes(futures) == ["done", reason, "done", reason, "done"]
    assert {"a", "c"} <= set(subscriptions(store))
    assert "b" in folder_names(store, BOB)
    assert "half made" not in folder_names(store)


def test_operation_that_times_out_on_a_lock_does_not_affect_others_in_batch(tmp_path: Path) -> None:
    with new_store(tmp_path / "store", ADA, BOB):
        pass
    with (
        Transport.open(tmp_path / "store", lock_timeout=0.3) as store,
        FileLock(tmp_path / "store" / "locks" / "addresses" / f"{ADA}.lock"),
    ):
        futures = together(store, op.Subscribe(BOB, "a"), op.Subscribe(ADA, "b"), op.Subscribe(BOB, "c"))
        assert outcomes(futures) == ["done", "LOCK_TIMEOUT", "done"]
    assert_layers_agree(tmp_path / "store", tmp_path / "scratch")


@pytest.mark.parametrize("step", ["rename", "symlink", "mkdir", "index-commit", "append", "fsync"])
@pytest.mark.parametrize("once", [True, False])
def test_batch_is_rolled_back_on_a_full_disk_and_later_commits_succeed(
    store: Transport, monkeypatch: pytest.MonkeyPatch, step: str, once: bool
) -> None:
    append(store, "INBOX", message())
    staged = store.stage(message("new", attachments=[b"a" * 500]))
    before = (folder_names(store), rows(store), folder(store))
    failed: list[str] = []

    def fail(action: str, fd: int, name: str) -> None:
        if action == step and not (once and failed):
            failed.append(action)
            raise OSError(errno.ENOSPC, "No space left on device")

    batch: list[op.Operation[Any]] = [op.Deliver(staged, "x@y.test", [ADA, BOB]), op.CreateFolder(ADA, "Work")]
    monkeypatch.setattr(disk, "on_step", fail)
    results = outcomes(together(store, *batch))
    monkeypatch.setattr(disk, "on_step", None)
    assert failed
    if once:  # each was retried alone
        assert results == ["done", "done"]
        assert folder(store).messages == 2
    else:
        assert set(results) <= {"DISK_FULL", "done"}
        assert "DISK_FULL" in results
        if results == ["DISK_FULL", "DISK_FULL"]:
            assert (folder_names(store), rows(store), folder(store)) == before
    deliver(store, ADA)


def test_writer_continues_if_a_staged_file_cannot_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(action: str, fd: int, name: str) -> None:
        if action == "unlink":
            raise OSError(errno.EIO, "Input/output error")

    with new_store(tmp_path / "store", ADA) as store:
        staged = store.stage(message())
        monkeypatch.setattr(disk, "on_step", fail)
        outcome = store.submit(op.Deliver(staged, "x@y.test", ["nobody@example.test"]))
        assert outcome.result(timeout=PATIENCE).sent is None
        monkeypatch.setattr(disk, "on_step", None)
        deliver(store, ADA)
        assert folder(store).messages == 1


def test_rolled_back_batch_leaves_only_an_abort_record(store: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = append(store, "INBOX", message(), flags=Flag.DELETED)[0].folder
    before = folder(store)

    def fail(action: str, fd: int, name: str) -> None:
        if action == "index-commit":
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk, "on_step", fail)
    futures = together(
        store,
        op.Expunge(ADA, inbox),
        op.RenameFolder(ADA, "Sent", "Gesendet"),
        op.DeleteFolder(ADA, "Trash"),
        op.Deregister(BOB, "purge"),
        op.Register("new@example.test"),
    )
    assert outcomes(futures) == ["UNKNOWN"] * 5
    monkeypatch.setattr(disk, "on_step", None)
    assert folder(store) == before
    assert append(store, "INBOX", message())[0].uid == 2
    with closing(Directories(store.root)) as directories, closing(reopened(directories)) as journal:
        records = list(journal.records(0))
    assert "abort" in [record.op for record in records]
    assert [record.op for record in without_aborted(iter(records))] == ["register", "register", "append", "append"]


# --- cancelled callers -----------------------------------------------------------------------------------------------


def test_submitted_operation_cannot_be_cancelled(store: Transport) -> None:
    (future,) = together(store, op.Subscribe(ADA, "a"))
    assert not future.cancel()
    future.result()
    pending = store.submit(op.Subscribe(ADA, "b"))
    pending.cancel()
    del pending
    store.run(op.Subscribe(ADA, "c"))
    assert {"a", "b", "c"} <= set(subscriptions(store))


async def test_commits_can_be_awaited_from_asyncio(store: Transport) -> None:
    results = await asyncio.gather(*[store.commit(op.Subscribe(ADA, f"f{n}")) for n in range(40)])
    assert results == [True] * 40
    with pytest.raises(MailError):
        await store.commit(op.DeleteFolder(ADA, "nowhere"))


async def test_a_cancelled_task_does_not_cancel_its_commit(store: Transport) -> None:
    with index_locked(store):
        task = asyncio.create_task(store.commit(op.Subscribe(ADA, "a")))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert "a" not in subscriptions(store)
    await store.commit(op.Subscribe(ADA, "b"))
    assert {"a", "b"} <= set(subscriptions(store))


async def test_a_time_limit_does_not_cancel_its_commit(store: Transport) -> None:
    with index_locked(store), pytest.raises(TimeoutError):
        await asyncio.wait_for(store.commit(op.CreateFolder(ADA, "a")), 0.01)
    await store.commit(op.Subscribe(ADA, "b"))
    assert "a" in folder_names(store)


def test_writer_survives_the_end_of_an_event_loop(store: Transport) -> None:
    async def leave() -> None:
        _task = asyncio.create_task(store.commit(op.Subscribe(ADA, "a")))
        await asyncio.sleep(0)
        _task.cancel()

    with index_locked(store):
        asyncio.run(leave())
    store.run(op.Subscribe(ADA, "b"))
    assert {"a", "b"} <= set(subscriptions(store))


def test_closing_completes_queued_operations(tmp_path: Path) -> None:
    store = Transport.open(_empty_store(tmp_path))
    futures = together(store, *[op.Subscribe(ADA, f"f{n}") for n in range(100)])
    store.close()
    assert outcomes(futures) == ["done"] * 100
    with pytest.raises(MailError) as caught:
        store.submit(op.Subscribe(ADA, "x"))
    assert caught.value.reason is Reason.MAINTENANCE


def _empty_store(tmp_path: Path) -> Path:
    with new_store(tmp_path / "store", ADA):
        pass
    return tmp_path / "store"


def test_operation_completes_only_after_its_locks_are_released(store: Transport) -> None:
    """A completion callback can take the locks at once."""
    was_free: list[bool] = []

    def try_lock(future: Future[Any]) -> None:
        was_free.append(store._locks._round.acquire(blocking=False))
        store._locks._round.release()

    future = store.submit(op.Subscribe(ADA, "a"))
    future.add_done_callback(try_lock)
    future.result()
    store.run(op.Subscribe(ADA, "b"))
    assert was_free == [True]


@pytest.fixture(autouse=True)
def _within_time_limit() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < 60
