"""The processes a run has started, and those that they have."""

from __future__ import annotations

import contextlib
import os
import signal
import time

_PATIENCE = 5.0  # seconds until one that was killed is gone; the kernel needs a moment for its memory


def descendants(ancestor: int) -> set[int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents[int(name)] = int(parent)
    return {process for process in parents if _descends(process, ancestor, parents)}


def _descends(process: int, ancestor: int, parents: dict[int, int]) -> bool:
    for _ in range(32):
        process = parents.get(process, 0)
        if process in (0, ancestor):
            break
    return process == ancestor


def kill(processes: set[int]) -> None:
    """Returns when they are gone, and write no files any more."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    end = time.monotonic() + _PATIENCE
    while any(map(_lives, processes)) and time.monotonic() < end:
        time.sleep(0.01)


def _lives(process: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{process}/stat") as file:
        return not file.read().rpartition(")")[2].lstrip().startswith(("Z", "X"))
    return False
