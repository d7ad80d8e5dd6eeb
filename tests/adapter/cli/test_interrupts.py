"""Ctrl-C comes where nothing is half done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from adapter.api import Store
from adapter.cli import interrupts
from tests.support.paths import REPOSITORY
from tests.support.waiting import PATIENCE, wait_until


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def _wait_for_nobody() -> None:
    pass


def _steps(*steps: Callable[[], None]) -> list[int]:
    """Take the steps with Ctrl-C held; the numbers of those that came to their end before it came."""
    taken = []
    try:
        with interrupts.held():
            for number, step in enumerate(steps, 1):
                step()
                taken.append(number)
    except KeyboardInterrupt:
        return [*taken, 0]
    return taken


def _wait_for_somebody() -> None:
    with interrupts.allowed():
        pass


def _be_interrupted_while_waiting() -> None:
    with interrupts.allowed():
        _interrupt()


def test_the_first_one_waits_for_a_good_moment() -> None:
    before = signal.getsignal(signal.SIGINT)
    give_way = interrupts.give_way
    assert _steps(give_way, _interrupt, _wait_for_nobody, give_way, _wait_for_nobody) == [1, 2, 3, 0]
    assert _steps(_interrupt, _wait_for_nobody) == [1, 2, 0]  # at the end
    assert _steps(give_way, _wait_for_somebody) == [1, 2]  # what was noted then is done with
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_one_does_not_wait() -> None:
    assert _steps(_interrupt, _interrupt, _wait_for_nobody) == [1, 0]


def test_whoever_waits_for_somebody_is_interrupted_at_once() -> None:
    assert _steps(_be_interrupted_while_waiting, _wait_for_nobody) == [0]
    assert _steps(_interrupt, _wait_for_somebody, _wait_for_nobody) == [1, 0]
    _wait_for_somebody()  # where nothing is held


def test_other_threads_hold_nothing() -> None:
    before = signal.getsignal(signal.SIGINT)
    found = []

    def work() -> None:
        with interrupts.held():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]


def test_a_delivery_that_waits_for_its_message_can_be_interrupted(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with Store.create(root) as store:
        store.add_mailbox("ada@example.test")
    command = ["deliver", "--root", str(root), "--from", "", "--to", "ada@example.test", "-"]
    process = subprocess.Popen(
        [sys.executable, "-m", "adapter.cli", *command],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: any((root / "staging").iterdir()))
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 1
    assert process.stdin is not None
    process.stdin.close()
    assert not any((root / "staging").iterdir())
