"""What the kernel tells of processes: their children, and whether they live."""

from __future__ import annotations

import contextlib
from pathlib import Path


def children(process: int) -> list[int]:
    return sorted(int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split())


def is_alive(process: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    return False
