"""Waiting for something that must come about, however busy the machine is.

A test polls for the condition itself and never sleeps in the hope that it holds by then: a fixed pause is too long on
an idle machine and too short on a busy one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

#: Seconds; far more than anything here takes. Only a failing test waits until the end.
PATIENCE = 60.0
_PAUSE = 0.01


def wait_until(condition: Callable[[], object], about: Callable[[], object] = lambda: "it did not come about") -> None:
    """Return when the condition holds; ``about`` says more where it never does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, about()
        time.sleep(_PAUSE)


async def until(condition: Callable[[], object]) -> None:
    """The same, while the event loop goes on."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(_PAUSE)
