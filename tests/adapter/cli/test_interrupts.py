"""Ctrl-C is raised at safe points, where no operation is half done."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from adapter.cli.failures import deferred_interrupts, immediate_interrupts, raise_pending_interrupt


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def _do_nothing() -> None:
    pass


def _steps(*steps: Callable[[], None]) -> list[int]:
    """Run the steps with Ctrl-C deferred; return the numbers of those that finished, and 0 if Ctrl-C was raised."""
    finished = []
    try:
        with deferred_interrupts():
            for number, step in enumerate(steps, 1):
                step()
                finished.append(number)
    except KeyboardInterrupt:
        return [*finished, 0]
    return finished


def _blocking_read() -> None:
    with immediate_interrupts():
        pass


def _interrupted_blocking_read() -> None:
    with immediate_interrupts():
        _interrupt()


def test_first_interrupt_is_raised_at_a_safe_point() -> None:
    safe_point = raise_pending_interrupt
    before = signal.getsignal(signal.SIGINT)
    assert _steps(safe_point, _interrupt, _do_nothing, safe_point, _do_nothing) == [
        1,
        2,
        3,
        0,
    ]
    assert _steps(_interrupt, _do_nothing) == [1, 2, 0]  # at the end
    assert _steps(raise_pending_interrupt, _blocking_read) == [1, 2]  # the recorded interrupt was raised
    assert signal.getsignal(signal.SIGINT) is before


def test_second_interrupt_is_raised_at_once() -> None:
    assert _steps(_interrupt, _interrupt, _do_nothing) == [1, 0]


def test_blocking_read_is_interrupted_at_once() -> None:
    assert _steps(_interrupted_blocking_read, _do_nothing) == [0]
    assert _steps(_interrupt, _blocking_read, _do_nothing) == [1, 0]
    _blocking_read()  # outside of a deferring block


def test_other_threads_do_not_change_the_handler() -> None:
    before = signal.getsignal(signal.SIGINT)
    handlers = []

    def work() -> None:
        with deferred_interrupts():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [before]
