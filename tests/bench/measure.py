"""Samples: wall time, processor time of the server's processes, and syncs, per operation.

Processor time is user and system time of the whole process tree, reaped children included. Living processes are read in
nanoseconds; children that ended count in ticks of 10 ms. ``background`` is processor time that the server spends after
its last answer, until it is idle again.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench.peers import Peer
from tests.support.processes.tree import descendants

_TICKS = os.sysconf("SC_CLK_TCK")
_CPU_CLOCK_OF_PROCESS = 2  # CPUCLOCK_SCHED, see clock_getcpuclockid(3)
_IDLE_SECONDS = 0.01  # of processor time within a pause: less is an idle server
_MAX_SETTLE_SECONDS = 900.0
_MAX_REPETITIONS = 25


@dataclass(frozen=True)
class Sample:
    """Per operation: seconds, or MiB for memory; None where the figure does not apply or cannot be measured."""

    value: float
    cpu: float | None = None
    background: float | None = None
    syncs: float | None = None

    def to_json(self) -> dict[str, float | None]:
        return asdict(self)


@dataclass(frozen=True)
class Summary:
    median: float
    low: float  # quartiles
    high: float


def summarise(values: Sequence[float]) -> Summary:
    """Median and quartiles, interpolated between the values."""
    if len(values) == 1:
        return Summary(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Summary(median, low, high)


def cpu_seconds(process: int) -> float:
    spent = 0.0
    for pid in descendants(process):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            spent += time.clock_gettime((~pid << 3) | _CPU_CLOCK_OF_PROCESS)
            spent += (int(fields[13]) + int(fields[14])) / _TICKS
    return spent


def memory_mib(process: int) -> float:
    """PSS of the process tree: shared pages are split among the processes that share them."""
    kilobytes = 0
    for pid in descendants(process):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes / 1024


class SyncCounter:
    """A library to preload into a server, and the number of syncs that its processes have called."""

    def __init__(self, library: str, path: str) -> None:
        self._path = path
        with open(path, "wb") as file:
            file.write(bytes(mmap.PAGESIZE))
        os.chmod(path, 0o666)  # servers run as other users
        self.environment = {"LD_PRELOAD": library, "MARKPOST_BENCH_SYNCS": path}

    def read(self) -> int:
        with open(self._path, "rb") as file:
            return int.from_bytes(file.read(ctypes.sizeof(ctypes.c_ulong)), "little")


def build_sync_counter(directory: str) -> str | None:
    """Compile the library; None without a C compiler and its headers."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    library = f"{directory}/sync_counter.so"
    source = str(Path(__file__).with_name("sync_counter.c"))
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"]
    if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        return None
    os.chmod(library, 0o755)
    return library


class Watch:
    """Measures one sample of one peer; the blocks of ``running`` add up."""

    def __init__(self, peer: Peer, sample_seconds: float = 0.0) -> None:
        self._peer = peer
        self._sample_seconds = sample_seconds
        self._operations = 0
        self._wall = self._cpu = self._background = 0.0
        self._syncs = 0
        self._sample: Sample | None = None

    @contextlib.contextmanager
    def running(self, operations: int = 1, *, writes: bool = False) -> Iterator[None]:
        """Measure the block; with ``writes`` also what the server does about it afterwards."""
        counter, process = self._peer.syncs, self._peer.pid
        syncs = counter.read() if counter else 0
        cpu = cpu_seconds(process)
        began = time.perf_counter()
        yield
        self._wall += time.perf_counter() - began
        answered = cpu_seconds(process)
        self._cpu += answered - cpu
        if writes:
            self.wait_until_idle()
            self._background += cpu_seconds(process) - answered
        self._syncs += counter.read() - syncs if counter else 0
        self._operations += operations

    def repeat(self, command: Callable[[], object]) -> None:
        """Measure a command, again and again within the time of a sample."""
        began = time.perf_counter()
        for _ in range(_MAX_REPETITIONS):
            with self.running():
                command()
            if time.perf_counter() - began > self._sample_seconds:
                break

    def wait_until_idle(self) -> None:
        """Wait until the server is idle."""
        pause = self._peer.settle_seconds
        deadline = time.monotonic() + _MAX_SETTLE_SECONDS
        before = cpu_seconds(self._peer.pid)
        while time.monotonic() < deadline:
            time.sleep(pause)
            now = cpu_seconds(self._peer.pid)
            if now - before < _IDLE_SECONDS:
                return
            before = now

    def record(self, value: float) -> None:
        """Set the value itself: a latency in seconds, or MiB."""
        self._sample = Sample(value)

    def sample(self) -> Sample:
        if self._sample is not None:
            return self._sample
        count = self._operations
        syncs = self._syncs / count if self._peer.syncs else None
        return Sample(self._wall / count, self._cpu / count, self._background / count, syncs)
