"""Turns: while somebody waits to write, the readers of a process let each other out before the next ones go in.

SQLite lets no new reader in while a writer waits, but it asks the kernel for its lock only when the first reader of a
process comes, and gives it back when the last one goes. Readers of one process that overlap without end would keep the
writers of all other processes out for ever.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

_LONGEST = 0.005  # seconds that readers may overlap without asking whether somebody waits


class Turns:
    def __init__(self, is_wanted: Callable[[], bool]) -> None:
        """``is_wanted`` tells whether somebody, anywhere, is about to write."""
        self._is_wanted = is_wanted
        self._changed = threading.Condition()
        self._inside = 0
        self._began = 0.0
        self._mine = threading.local()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Be inside for the length of the block; a block within a block of the same thread is part of it."""
        if getattr(self._mine, "inside", False):
            yield
            return
        self._enter()
        self._mine.inside = True
        try:
            yield
        finally:
            self._mine.inside = False
            self._leave()

    def _enter(self) -> None:
        with self._changed:
            while self._inside and time.monotonic() - self._began > _LONGEST and self._is_wanted():
                self._changed.wait()
            if not self._inside:
                self._began = time.monotonic()
            self._inside += 1

    def _leave(self) -> None:
        with self._changed:
            self._inside -= 1
            if not self._inside:
                self._changed.notify_all()
