"""Process state from /proc: stopped, waiting or running. It tells a worker that hangs from one that is slow."""

from __future__ import annotations

import os
from typing import NamedTuple

_STOPPED = frozenset("Tt")
#: Runnable, or waiting for the disk: such a thread goes on by itself.
_GOES_ON = frozenset("RD")
#: Of /proc/<pid>/task/<tid>/stat, behind the name: state, user time, system time.
_STATE, _USER, _SYSTEM = 0, 11, 12


class ProcessState(NamedTuple):
    is_stopped: bool  # by SIGSTOP or a debugger, all threads
    goes_on: bool  # a thread is runnable or waits for the disk
    ticks: int  # processor time so far


def read_process_state(process: int) -> ProcessState | None:
    """None if the process is gone."""
    states, ticks = set(), 0
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            states.add(fields[_STATE])
            ticks += int(fields[_USER]) + int(fields[_SYSTEM])
    except (OSError, IndexError):  # a thread has just ended
        return None
    return ProcessState(states <= _STOPPED, bool(states & _GOES_ON), ticks)
