"""The way back: inverse steps of file changes, run in reverse when an operation fails half-way.

What cannot be taken back (removing content for good) waits until the commit is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Undo:
    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []
        self._after_commit: list[Callable[[], None]] = []

    def after_commit(self, step: Callable[[], None]) -> None:
        self._after_commit.append(step)

    def committed(self) -> None:
        """There is no way back any more: do what waited for that."""
        for step in self._after_commit:
            try:
                step()
            except OSError as error:
                _log.warning("clean-up after a commit failed: %s", error)

    def add(self, step: Callable[[], None]) -> None:
        self._steps.append(step)

    def run(self) -> bool:
        """Take everything back; False if a step could not be taken back (recovery then puts it right)."""
        complete = True
        while self._steps:
            try:
                self._steps.pop()()
            except OSError as error:
                _log.error("could not take back a file change: %s", error)
                complete = False
        return complete
