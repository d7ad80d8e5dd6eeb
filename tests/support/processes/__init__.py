"""Running a function in another process: a fresh interpreter, nothing inherited."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from typing import Any

from tests.support.waiting import PATIENCE

_spawn = multiprocessing.get_context("spawn")


def channel() -> Queue[Any]:
    """A queue that can be handed to the function."""
    return _spawn.Queue()


@contextlib.contextmanager
def running(function: Callable[..., None], *arguments: Any, ends_with: int = 0) -> Iterator[BaseProcess]:
    """The function runs elsewhere while the block does, and must then end by itself with this exit code."""
    process = _spawn.Process(target=function, args=arguments, daemon=True)
    process.start()
    try:
        yield process
        process.join(PATIENCE)
        assert process.exitcode == ends_with
    finally:
        if process.is_alive():
            process.kill()
            process.join()


def run_elsewhere(function: Callable[..., None], *arguments: Any) -> None:
    with running(function, *arguments):
        pass
