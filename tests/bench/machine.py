"""Facts about the machine and the versions, so that two results can be compared."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any


def machine_facts(disk: str) -> dict[str, Any]:
    model = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = [int(line.split()[1]) // 1024 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")]
    return {
        "processor": model[0] if model else platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "memory_mib": memory[0] if memory else None,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "dovecot": _output("dovecot", "--version"),
        "commit": _output("git", "describe", "--always", "--dirty"),
        "disk": disk,
        "load_before": round(os.getloadavg()[0], 2),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if os.path.exists(path) else []


def _output(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
