"""Ctrl-C while a command works with a store.

Python raises KeyboardInterrupt anywhere, also between taking a lock and what would let go of it: a store that is closed
after that waits for ever. So the first Ctrl-C is noted, and raised where nothing is half done. The second one does not
wait.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_noted = False


def _note(number: int, frame: FrameType | None) -> None:
    global _noted
    if _noted:
        raise KeyboardInterrupt
    _noted = True


@contextlib.contextmanager
def held() -> Iterator[None]:
    """In the block Ctrl-C comes at :func:`give_way`, at the end, or with the second attempt."""
    global _noted
    if threading.current_thread() is not threading.main_thread():  # which no signal interrupts
        yield
        return
    _noted = False
    before = signal.signal(signal.SIGINT, _note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    give_way()


def give_way() -> None:
    """Nothing is half done here."""
    if _noted:
        raise KeyboardInterrupt


@contextlib.contextmanager
def allowed() -> Iterator[None]:
    """In the block, part of one in which it is held, Ctrl-C comes at once: somebody is waited for."""
    if signal.getsignal(signal.SIGINT) is not _note:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        give_way()
        yield
    finally:
        signal.signal(signal.SIGINT, _note)
