"""Undo log: inverse steps of file changes, run in reverse when a commit fails half-way.

Irreversible steps (permanent removal of content) wait until the commit is done.
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
        """The commit is done: run the irreversible steps."""
        for step in self._after_commit:
            try:
                step()
            except OSError as error:
                _log.warning("clean-up after a commit failed (%s); repair removes the leftovers", error)

    def add(self, step: Callable[[], None]) -> None:
        self._steps.append(step)

    def run(self) -> bool:
        """Roll back every step; False if one failed (recovery then repairs it)."""
        complete = True
        while self._steps:
            try:
                self._steps.pop()()
            except OSError as error:
                _log.error("rollback of a file change failed (%s); recovery will repair it", error)
                complete = False
        return complete
