"""The supervisor, as a process with scripted workers."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adapter.server.service_manager import StatusReporter
from adapter.server.supervisor import Supervisor, WorkerChannel
from tests.support.processes.tree import children, is_alive
from tests.support.waiting import PATIENCE, wait_until


@contextlib.contextmanager
def _supervised(
    work: Callable[[WorkerChannel], None],
    count: int = 1,
    heartbeat_timeout: float = 60.0,
    stopped: float = 60.0,
    hung: float = 60.0,
    holds_lock: Callable[[int], bool] = lambda _: False,
) -> Iterator[int]:
    """Run a supervisor in a process of its own; yields its id."""
    process = os.fork()
    if process == 0:
        try:
            Supervisor(
                count,
                work,
                StatusReporter(),
                close_listeners=lambda: None,
                on_exit=lambda _: None,
                max_close_seconds=lambda: 0.2,
                heartbeat_timeout=heartbeat_timeout,
                stopped=stopped,
                hung=hung,
                holds_lock=holds_lock,
            ).run()
        finally:
            os._exit(0)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def test_worker_that_exits_early_is_restarted_with_back_off(tmp_path: Path) -> None:
    births = tmp_path / "births"

    def dies(channel: WorkerChannel) -> None:
        channel.ready()
        with births.open("a") as file:
            file.write(f"{time.monotonic()}\n")

    with _supervised(dies):
        wait_until(lambda: births.exists() and len(births.read_text().split()) >= 5)
    moments = [float(each) for each in births.read_text().split()][:5]
    pauses = [after - before for before, after in itertools.pairwise(moments)]
    assert all(pause >= least for pause, least in zip(pauses, (0.1, 0.2, 0.4, 0.8), strict=True)), pauses


def test_worker_without_heartbeat_is_replaced(tmp_path: Path) -> None:
    births = tmp_path / "births"

    def hangs(channel: WorkerChannel) -> None:
        with births.open("a") as file:
            file.write("x\n")
        channel.ready()
        time.sleep(60)

    with _supervised(hangs, heartbeat_timeout=0.5):
        wait_until(lambda: births.exists() and len(births.read_text().split()) >= 2)


def test_stopped_worker_is_killed_and_its_lock_released(tmp_path: Path) -> None:
    lock, stopped, taken = tmp_path / "lock", tmp_path / "stopped", tmp_path / "taken"
    lock.touch()

    def work(channel: WorkerChannel) -> None:
        file = lock.open()
        if not stopped.exists() and channel.number == 0:
            fcntl.flock(file, fcntl.LOCK_EX)
            stopped.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            channel.alive()
            with contextlib.suppress(BlockingIOError):
                if stopped.exists():
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    taken.touch()
            time.sleep(0.1)

    with _supervised(work, count=2, stopped=0.5):
        wait_until(stopped.exists)
        began = time.monotonic()
        wait_until(taken.exists)
        assert time.monotonic() - began < 10


def test_hanging_worker_is_killed_early_only_if_it_holds_the_lock(tmp_path: Path) -> None:
    births = tmp_path / "births"
    births.touch()

    def born(number: int) -> list[int]:
        lines = [line.split() for line in births.read_text().splitlines()]
        return [int(process) for place, process in lines if int(place) == number]

    def work(channel: WorkerChannel) -> None:
        with births.open("a") as file:
            file.write(f"{channel.number} {os.getpid()}\n")
        while channel.number == 2:  # holds the lock too, but uses the processor
            pass
        time.sleep(PATIENCE)

    with _supervised(work, count=3, stopped=0.5, hung=1.0, holds_lock=lambda process: process not in born(1)):
        wait_until(lambda: len(born(0)) == 3)
        assert (len(born(1)), len(born(2))) == (1, 1)


def test_suspended_supervisor_does_not_count_as_missing_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-Z, which stops workers and supervisor."""
    now, killed = 1000.0, []
    monkeypatch.setattr("adapter.server.supervisor.time.monotonic", lambda: now)
    monkeypatch.setattr("adapter.server.supervisor.os.kill", lambda process, _: killed.append(process))
    supervisor = Supervisor(
        1, print, StatusReporter(), close_listeners=print, on_exit=print, max_close_seconds=lambda: 0.0
    )
    supervisor._slots[0].process = os.getpid()
    now += 3600.0
    supervisor._check_heartbeats()
    assert killed == []
    for _ in range(121):
        now += 0.5
        supervisor._check_heartbeats()
    assert killed == [os.getpid()]


def test_worker_that_does_not_exit_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("adapter.server.supervisor._COMMIT_SECONDS", 0.3)
    born = tmp_path / "born"

    def stays(channel: WorkerChannel) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        born.write_text("")
        while True:
            time.sleep(1)

    with _supervised(stays) as supervisor:
        wait_until(born.exists)
        worker = children(supervisor)[0]
        os.kill(supervisor, signal.SIGTERM)
        wait_until(lambda: not is_alive(supervisor) and not is_alive(worker))


def test_failed_fork_is_retried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("adapter.server.supervisor._MAX_BACKOFF_SECONDS", 0.3)
    born = tmp_path / "born"
    fork, failures = os.fork, iter([False, True, True])  # the fork of the supervisor itself succeeds

    def no_more() -> int:
        if next(failures, False):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    def works(channel: WorkerChannel) -> None:
        born.write_text("")
        time.sleep(60)

    monkeypatch.setattr(os, "fork", no_more)
    with _supervised(works) as supervisor:
        wait_until(born.exists)
        os.kill(supervisor, signal.SIGTERM)
        wait_until(lambda: not is_alive(supervisor))
