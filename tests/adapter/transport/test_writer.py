"""Group commit: many submitters, one that fails, callers that go away, disks that fill up."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from adapter.store import disk
from adapter.store.flags import Flag
from adapter.store.journal import without_aborted
from adapter.transport import operations as op
from adapter.transport import writer
from adapter.transport.operations.base import Plan
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.stores import ADA, BOB, append, deliver, folder, folder_names, new_store, rows, subscriptions
from tests.support.waiting import PATIENCE


class Batches:
    """Notes how many records each journal append carries."""

    def __init__(self, store: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        append_records = store._journal.append

        def noting(records: list[Any]) -> None:
            self.sizes.append(len(records))
            append_records(records)

        monkeypatch.setattr(store._journal, "append", noting)


def together(store: Transport, *operations: op.Operation[Any]) -> list[Future[Any]]:
    """Submit operations so that they wait together, as one batch."""
    entered, go_on = threading.Event(), threading.Event()

    @dataclass(frozen=True)
    class Plug(op.Operation[None]):
        """Keeps the writer busy before it has taken a lock or touched anything."""

        name = "plug"

        def addresses(self) -> tuple[str, ...]:
            entered.set()
            go_on.wait(PATIENCE)
            raise MailError(Reason.NOT_ALLOWED)

        def plan(self, plan: Plan) -> None: ...

    store.submit(Plug())
    assert entered.wait(PATIENCE)
    futures = [store.submit(operation) for operation in operations]
    go_on.set()
    return futures


@dataclass(frozen=True)
class Failing(op.Operation[None]):
    """Fails with this error, after it has made a folder (``half``) or before."""

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
    found = []
    for future in futures:
        error = future.exception(timeout=PATIENCE)
        assert error is None or isinstance(error, MailError)
        found.append("done" if error is None else error.reason.name)
    return found


# --- batches ---------------------------------------------------------------------------------------------------------


def test_what_waits_together_shares_one_append(store: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(store, monkeypatch)
    assert outcomes(together(store, *[op.Subscribe(ADA, f"f{n}") for n in range(50)])) == ["done"] * 50
    assert batches.sizes == [50]


def test_a_batch_has_a_limit(store: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(store, monkeypatch)
    futures = together(store, *[op.Subscribe(ADA, f"f{n}") for n in range(300)])
    assert outcomes(futures) == ["done"] * 300
    assert batches.sizes == [writer._BATCH_OPERATIONS, 300 - writer._BATCH_OPERATIONS]


def test_sixty_four_threads(store: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(store, monkeypatch)
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
    assert len(batches.sizes) < 160  # they did share
    assert len({row.message_id for row in rows(store)}) == 320


def test_operations_of_one_thread_happen_in_order(store: Transport) -> None:
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


# --- neighbours ------------------------------------------------------------------------------------------------------

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
def test_one_that_fails_harms_no_neighbour(store: Transport, failing: op.Operation[Any], reason: str) -> None:
    futures = together(
        store, op.Subscribe(ADA, "a"), failing, op.CreateFolder(BOB, "b"), failing, op.Subscribe(ADA, "c")
    )
    assert outcomes(futures) == ["done", reason, "done", reason, "done"]
    assert {"a", "c"} <= set(subscriptions(store))
    assert "b" in folder_names(store, BOB)
    assert "half made" not in folder_names(store)


def test_one_that_cannot_be_locked_harms_no_neighbour(tmp_path: Path) -> None:
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
def test_a_disk_that_fills_up_takes_back_all_and_goes_on_later(
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

    plug: list[op.Operation[Any]] = [op.Deliver(staged, "x@y.test", [ADA, BOB]), op.CreateFolder(ADA, "Work")]
    monkeypatch.setattr(disk, "on_step", fail)
    found = outcomes(together(store, *plug))
    monkeypatch.setattr(disk, "on_step", None)
    assert failed
    if once:  # each was tried again by itself
        assert found == ["done", "done"]
        assert folder(store).messages == 2
    else:
        assert set(found) <= {"DISK_FULL", "done"}
        assert "DISK_FULL" in found
        if found == ["DISK_FULL", "DISK_FULL"]:
            assert (folder_names(store), rows(store), folder(store)) == before
    deliver(store, ADA)


def test_a_staged_file_that_cannot_be_removed_does_not_stop_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_batch_that_is_taken_back_leaves_an_abort_and_no_trace(
    store: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    records = list(store._journal.records(0))
    assert "abort" in [record.op for record in records]
    assert [record.op for record in without_aborted(iter(records))] == ["register", "register", "append", "append"]


# --- callers that go away --------------------------------------------------------------------------------------------


def test_a_caller_that_goes_away_cancels_nothing(store: Transport) -> None:
    (future,) = together(store, op.Subscribe(ADA, "a"))
    assert not future.cancel()
    future.result()
    pending = store.submit(op.Subscribe(ADA, "b"))
    pending.cancel()
    del pending
    store.run(op.Subscribe(ADA, "c"))
    assert {"a", "b", "c"} <= set(subscriptions(store))


async def test_commits_from_asyncio(store: Transport) -> None:
    found = await asyncio.gather(*[store.commit(op.Subscribe(ADA, f"f{n}")) for n in range(40)])
    assert found == [True] * 40
    with pytest.raises(MailError):
        await store.commit(op.DeleteFolder(ADA, "nowhere"))


async def test_a_cancelled_task_does_not_cancel_its_commit(store: Transport) -> None:
    with store._locks.hold(()):
        task = asyncio.create_task(store.commit(op.Subscribe(ADA, "a")))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert "a" not in subscriptions(store)
    await store.commit(op.Subscribe(ADA, "b"))
    assert {"a", "b"} <= set(subscriptions(store))


async def test_a_time_limit_does_not_cancel_its_commit(store: Transport) -> None:
    with store._locks.hold(()), pytest.raises(TimeoutError):
        await asyncio.wait_for(store.commit(op.CreateFolder(ADA, "a")), 0.01)
    await store.commit(op.Subscribe(ADA, "b"))
    assert "a" in folder_names(store)


def test_an_event_loop_that_ends_does_not_harm_the_writer(store: Transport) -> None:
    async def leave() -> None:
        _task = asyncio.create_task(store.commit(op.Subscribe(ADA, "a")))
        await asyncio.sleep(0)
        _task.cancel()

    with store._locks.hold(()):
        asyncio.run(leave())
    store.run(op.Subscribe(ADA, "b"))
    assert {"a", "b"} <= set(subscriptions(store))


def test_closing_finishes_what_is_queued(tmp_path: Path) -> None:
    store = Transport.open(_made(tmp_path))
    futures = together(store, *[op.Subscribe(ADA, f"f{n}") for n in range(100)])
    store.close()
    assert outcomes(futures) == ["done"] * 100
    with pytest.raises(MailError) as caught:
        store.submit(op.Subscribe(ADA, "x"))
    assert caught.value.reason is Reason.MAINTENANCE


def _made(tmp_path: Path) -> Path:
    with new_store(tmp_path / "store", ADA):
        pass
    return tmp_path / "store"


def test_no_answer_before_the_locks_are_free(store: Transport) -> None:
    """Whoever hears that it is done can take the locks at once."""
    free: list[bool] = []

    def look(future: Future[Any]) -> None:
        free.append(store._locks._round.acquire(blocking=False))
        store._locks._round.release()

    future = store.submit(op.Subscribe(ADA, "a"))
    future.add_done_callback(look)
    future.result()
    store.run(op.Subscribe(ADA, "b"))
    assert free == [True]


@pytest.fixture(autouse=True)
def _quick_to_fail() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < 60
