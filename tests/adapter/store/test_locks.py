"""Kernel locks: exclusion, time limits, order, removed lock files."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from adapter.store import layout, locks
from adapter.store.disk import Directories
from adapter.store.locks import LockOrderError, Locks
from protocol.errors import MailError, Reason
from tests.support.store.locking import impatient
from tests.support.waiting import PATIENCE

ADA, BOB = "ada@example.test", "bob@example.test"


def lock_file(directories: Directories, address: str) -> str:
    return f"{directories.root}/locks/addresses/{address}.lock"


# --- exclusion ------------------------------------------------------------------------------------------------------


def test_two_holders_of_one_address_exclude_each_other(held: Locks, lock_directories: Directories) -> None:
    with held.hold([ADA]), impatient(lock_directories) as other, pytest.raises(MailError) as caught, other.hold([ADA]):
        pytest.fail("both hold it")
    assert caught.value.reason is Reason.LOCK_TIMEOUT
    assert caught.value.temporary


def test_the_index_lock_excludes_even_different_addresses(held: Locks, lock_directories: Directories) -> None:
    with held.hold([ADA]), impatient(lock_directories) as other, pytest.raises(MailError), other.hold([BOB]):
        pytest.fail("both hold the index lock")


def test_released_locks_can_be_taken_by_others(held: Locks, lock_directories: Directories) -> None:
    with impatient(lock_directories) as other:
        for _ in range(3):
            with held.hold([BOB, ADA, ADA]):
                pass
            with other.hold([ADA, BOB]):
                pass


def test_failed_acquisition_releases_all_locks(held: Locks, lock_directories: Directories) -> None:
    """The second address times out, and the first is released."""
    with impatient(lock_directories) as other:
        with FileLock(lock_file(lock_directories, BOB)), pytest.raises(MailError), other.hold([ADA, BOB]):
            pytest.fail("held by a FileLock")
        with held.hold([ADA, BOB]):
            pass
        with other.hold([ADA, BOB]):
            pass


def test_exception_releases_the_locks(held: Locks, lock_directories: Directories) -> None:
    with pytest.raises(ZeroDivisionError), held.hold([ADA]):
        raise ZeroDivisionError
    with impatient(lock_directories) as other, other.hold([ADA]):
        pass


def test_one_time_limit_covers_all_locks_of_an_operation(lock_directories: Directories) -> None:
    with (
        closing(Locks(lock_directories, 0.3)) as other,
        FileLock(lock_file(lock_directories, BOB)),
        FileLock(f"{lock_directories.root}/locks/index.lock"),
    ):
        started = time.monotonic()
        with pytest.raises(MailError), other.hold([ADA, BOB]):
            pytest.fail("held by a FileLock")
        assert time.monotonic() - started > 0.25


@pytest.mark.parametrize("name", [f"addresses/{ADA}.lock", "index.lock"])
def test_filelock_on_the_same_file_excludes_other_holders(
    held: Locks, lock_directories: Directories, name: str
) -> None:
    plain = FileLock(f"{lock_directories.root}/locks/{name}")
    with held.hold([ADA]), pytest.raises(Timeout):
        plain.acquire(timeout=0.05)
    with plain, impatient(lock_directories) as other, pytest.raises(MailError), other.hold([ADA]):
        pytest.fail("held by a FileLock")
    with held.hold([ADA]):
        pass


def test_threads_exclude_each_other(held: Locks) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(50):
            with held.hold([ADA]):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 300


def test_waiting_thread_gets_a_lock_timeout(lock_directories: Directories) -> None:
    with closing(Locks(lock_directories, 0.1)) as shared:
        reasons: list[Reason] = []

        def work() -> None:
            with pytest.raises(MailError) as caught, shared.hold([BOB]):
                pytest.fail("held by another thread")
            reasons.append(caught.value.reason)

        with shared.hold([ADA]):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        assert reasons == [Reason.LOCK_TIMEOUT]


def test_the_kernel_names_the_holder_of_the_index_lock(held: Locks, lock_directories: Directories) -> None:
    assert not locks.holds_index_lock(lock_directories, os.getpid())  # the lock file does not exist yet
    with held.hold(["ada@x"]):
        assert locks.holds_index_lock(lock_directories, os.getpid())
        assert not locks.holds_index_lock(lock_directories, os.getppid())
    assert not locks.holds_index_lock(lock_directories, os.getpid())


# --- order ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0, f"{BOB}.lock"), (0, f"{ADA}.lock")),
        ((0, f"{ADA}.lock"), (0, f"{ADA}.lock")),
        ((1, "index.lock"), (0, f"{ADA}.lock")),
        ((1, "index.lock"), (1, "index.lock")),
    ],
)
def test_taking_a_lock_out_of_order_raises(held: Locks, first: tuple[int, str], second: tuple[int, str]) -> None:
    deadline = time.monotonic() + PATIENCE
    held._take(*first, deadline)
    with pytest.raises(LockOrderError):
        held._take(*second, deadline)
    held._release()
    with held.hold([ADA, BOB]):
        pass


def test_address_locks_are_always_taken_in_sorted_order(held: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    lock_names: list[str] = []
    take = Locks._take

    def recording(self: Locks, rank: int, name: str, deadline: float) -> bool:
        lock_names.append(name)
        return take(self, rank, name, deadline)

    monkeypatch.setattr(Locks, "_take", recording)
    with held.hold(["c@x", "a@x", "b@x", "a@x"]):
        pass
    assert lock_names == ["a@x.lock", "b@x.lock", "c@x.lock", "index.lock"]


# --- lock files -----------------------------------------------------------------------------------------------------


def test_removed_lock_file_is_recreated(held: Locks, lock_directories: Directories) -> None:
    with held.hold([ADA]):
        pass
    os.unlink(lock_file(lock_directories, ADA))
    os.unlink(f"{lock_directories.root}/locks/index.lock")
    with held.hold([ADA]), impatient(lock_directories) as other, pytest.raises(MailError), other.hold([ADA]):
        pytest.fail("both hold it")


def test_waiter_detects_a_replaced_lock_file(lock_directories: Directories) -> None:
    with closing(Locks(lock_directories, PATIENCE)) as one, closing(Locks(lock_directories, PATIENCE)) as two:
        entered = threading.Event()
        done: list[str] = []

        def wait() -> None:
            entered.set()
            with two.hold([ADA]):
                done.append("two")

        with one.hold([ADA]):
            thread = threading.Thread(target=wait)
            thread.start()
            entered.wait()
            time.sleep(0.05)
            os.unlink(lock_file(lock_directories, ADA))
            time.sleep(0.05)
            assert done == []  # the index lock still excludes
        thread.join()
        assert done == ["two"]
        with FileLock(lock_file(lock_directories, ADA)), impatient(lock_directories) as other, pytest.raises(MailError):
            other.hold([ADA]).__enter__()


def test_a_lock_file_that_is_a_symbolic_link_is_refused(
    held: Locks, lock_directories: Directories, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    os.symlink(elsewhere, lock_file(lock_directories, ADA))
    with pytest.raises(OSError, match="symbolic links"), held.hold([ADA]):
        pytest.fail("followed")
    assert not elsewhere.exists()


def test_number_of_cached_lock_descriptors_is_limited(held: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_KEPT_ADDRESS_LOCKS", 8)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(0, 100, 10):
        with held.hold([f"{name}@x" for name in range(number, number + 10)]):
            pass
    with held.hold([f"{name:03}@x" for name in range(50)]):
        assert len(held._held) == 51
    assert len(os.listdir("/proc/self/fd")) <= before + 10


# --- the service lock and the probe -----------------------------------------------------------------------------------


def test_service_lock_is_shared_until_one_process_holds_it_exclusively(
    held: Locks, lock_directories: Directories
) -> None:
    held.share_service()
    with impatient(lock_directories) as other:
        other.share_service()
    alone = os.open(f"{lock_directories.root}/locks/service.lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    held.close()
    fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with impatient(lock_directories) as other, pytest.raises(MailError) as caught:
        other.share_service()
    assert caught.value.reason is Reason.MAINTENANCE
    os.close(alone)


def test_lock_probe_leaves_no_files(lock_directories: Directories) -> None:
    locks.check_exclusion(lock_directories)
    assert os.listdir(f"{lock_directories.root}/locks") == ["addresses"]


@pytest.mark.parametrize("result", [True, False, OSError(95, "not supported")])
def test_locks_that_do_not_exclude_are_refused(
    lock_directories: Directories, monkeypatch: pytest.MonkeyPatch, result: bool | OSError
) -> None:
    def lock(fd: int, *, blocking: bool) -> bool:
        if isinstance(result, OSError):
            raise result
        return result

    monkeypatch.setattr(locks, "lock_descriptor", lock)
    with pytest.raises(MailError, match="locks do not exclude"):
        locks.check_exclusion(lock_directories)
    assert os.listdir(f"{lock_directories.root}/locks") == ["addresses"]


def test_claimed_directory_cannot_be_claimed_until_it_is_released(lock_directories: Directories) -> None:
    with lock_directories.open(layout.LOCKS) as one, lock_directories.open(layout.LOCKS) as two:
        with locks.claim_directory(one) as is_first_holder, locks.claim_directory(two) as is_second_holder:
            assert (is_first_holder, is_second_holder) == (True, False)
        with locks.claim_directory(two) as is_holder:
            assert is_holder
