"""What lies where something of ours belongs, and is not ours or is damaged, goes to quarantine: nothing is deleted."""

from __future__ import annotations

import os

from adapter.store import disk, layout
from adapter.store.disk import Directories

_LONGEST = 200


def set_aside(directories: Directories, parent: int, entry: str) -> None:
    with directories.open(layout.QUARANTINE, create=True) as quarantine:
        disk.rename(parent, entry, quarantine, f"{os.urandom(6).hex()}-{entry[:_LONGEST]}")
