"""Files that cannot be opened, in every process of the lab: a list of paths with the error that opening them gives.

Every Python process that finds this directory in PYTHONPATH loads the module, executors and replay included.

Root may read everything and a bad sector cannot be made, so ``os.open`` is replaced by one that knows the list. The
product has no hook for this.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

#: Names the file with the list.
VARIABLE = "MARKPOST_LAB_FAILING_FILES"
_open = os.open


def install() -> None:
    if os.environ.get(VARIABLE):
        os.open = _failing_open


def remove() -> None:
    os.open = _open


def _failing_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    name = os.fsdecode(path)
    if dir_fd is not None:
        name = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), name)
    if (error := _listed().get(name)) is not None:
        raise OSError(error, os.strerror(error), path)
    return _open(path, flags, mode, dir_fd=dir_fd)


def _listed() -> dict[str, int]:
    with contextlib.suppress(FileNotFoundError), open(os.environ[VARIABLE], encoding="utf-8") as file:
        listed: dict[str, int] = json.load(file)
        return listed
    return {}


install()
