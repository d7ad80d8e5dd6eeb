"""Files that cannot be read: permission denied, I/O error. Root may read everything, so the error is injected."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from adapter.store import disk

Result = TypeVar("Result")


class FailingReads:
    """Makes opening chosen files fail with an error of the operating system, in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: dict[str, int] = {}  # name -> errno
        monkeypatch.setattr(disk, "open_read", self._failing(disk.open_read))
        monkeypatch.setattr(disk, "read_file", self._failing(disk.read_file))

    def fail(self, path: Path, error: int) -> None:
        self.errors[path.name] = error

    def _failing(self, read: Callable[[int, str], Result]) -> Callable[[int, str], Result]:
        def wrapped(directory: int, name: str) -> Result:
            if name in self.errors:
                raise OSError(self.errors[name], os.strerror(self.errors[name]), name)
            return read(directory, name)

        return wrapped
