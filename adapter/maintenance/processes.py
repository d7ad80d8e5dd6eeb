"""Child processes of a run: find them, kill them, and measure their peak memory."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time

_EXIT_SECONDS = 5.0  # how long to wait for a killed process: the kernel needs time to release its memory


def descendants(ancestor: int) -> set[int]:
    """The running descendants of a process."""
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
    """Kill processes and wait until they have exited, so that they write no more files."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    end = time.monotonic() + _EXIT_SECONDS
    while any(map(_is_running, processes)) and time.monotonic() < end:
        time.sleep(0.01)


def peak_memory() -> dict[str, int]:
    """Peak memory in kilobytes of the driver, the replay, Spark's JVMs and the largest Python worker."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # of the children waited for: the replay
    peaks = {"driver": _peak(os.getpid()), "replay": ended, "spark": 0, "worker": 0}
    for process in descendants(os.getpid()):
        kind = "spark" if _name(process) == "java" else "worker"
        peaks[kind] = max(peaks[kind], _peak(process))
    return peaks


def _name(process: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{process}/comm") as file:
        return file.read().strip()
    return ""


def _peak(process: int) -> int:
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{process}/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0


def _is_running(process: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{process}/stat") as file:
        return not file.read().rpartition(")")[2].lstrip().startswith(("Z", "X"))
    return False
