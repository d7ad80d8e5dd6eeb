"""Running a function in another process: a fresh interpreter, nothing inherited."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from typing import Any

_spawn = multiprocessing.get_context("spawn")
_PATIENCE = 60.0


def channel() -> Queue[Any]:
    """A queue that can be handed to the function."""
    return _spawn.Queue()


@contextlib.contextmanager
def running(function: Callable[..., None], *arguments: Any) -> Iterator[BaseProcess]:
    """The function runs elsewhere while the block does; at its end it must end by itself, without an error."""
    process = _spawn.Process(target=function, args=arguments, daemon=True)
    process.start()
    try:
        yield process
        process.join(_PATIENCE)
        assert process.exitcode == 0
    finally:
        if process.is_alive():
            process.kill()
            process.join()


def run_elsewhere(function: Callable[..., None], *arguments: Any) -> None:
    with running(function, *arguments):
        pass
