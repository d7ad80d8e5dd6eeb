"""Processes as /proc shows them: their children, and whether they run."""

from __future__ import annotations

import contextlib
from pathlib import Path


def children(process: int) -> list[int]:
    return sorted(int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split())


def is_alive(process: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    return False


def descendants(process: int) -> list[int]:
    """Return the process itself and everything below it that lives now."""
    processes, waiting = [], [process]
    while waiting:
        pid = waiting.pop()
        processes.append(pid)
        for thread in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                waiting += map(int, thread.read_text().split())
    return processes
