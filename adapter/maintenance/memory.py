"""Peak memory of a run's processes, in kilobytes: this one, the replay, Spark's, and the largest Python worker."""

from __future__ import annotations

import contextlib
import os
import resource

from adapter.maintenance import processes


def peaks() -> dict[str, int]:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # of those that were waited for: the replay
    found = {"driver": _peak(os.getpid()), "replay": ended, "spark": 0, "worker": 0}
    for process in processes.descendants(os.getpid()):
        kind = "spark" if _name(process) == "java" else "worker"
        found[kind] = max(found[kind], _peak(process))
    return found


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
