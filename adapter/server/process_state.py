"""Process state from /proc: memory, descriptors and start of this process; whether another is stopped or hangs."""

from __future__ import annotations

import os
import resource
import time
from typing import NamedTuple

_PAGE_BYTES = resource.getpagesize()
_STOPPED = frozenset("Tt")
#: Runnable, or waiting for the disk: such a thread continues by itself.
_CONTINUES = frozenset("RD")
#: Fields of /proc/<pid>/task/<tid>/stat behind the name: state, user time, system time, start time.
_STATE, _USER, _SYSTEM, _START = 0, 11, 12, 19


class ProcessState(NamedTuple):
    """The scheduling state of a process."""

    is_stopped: bool  # all threads, by SIGSTOP or a debugger
    continues: bool  # a thread is runnable or waits for the disk
    ticks: int  # processor time so far


def read_process_state(process: int) -> ProcessState | None:
    """Return the state of a process, or None if it is gone."""
    states, ticks = set(), 0
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            states.add(fields[_STATE])
            ticks += int(fields[_USER]) + int(fields[_SYSTEM])
    except (OSError, IndexError):  # a thread has just ended
        return None
    return ProcessState(states <= _STOPPED, bool(states & _CONTINUES), ticks)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


def open_descriptors() -> int:
    """Return the number of open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def start_time() -> float:
    """Return the start of this process in seconds since the epoch."""
    with open("/proc/self/stat", encoding="ascii") as file:
        ticks = int(file.read().rpartition(")")[2].split()[_START])
    since_start = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - since_start
