"""Work that blocks, off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def to_end(function: Callable[..., Result], *arguments: Any) -> Result:
    """Run on a thread. Whoever is cancelled meanwhile waits for its end: the store may be closed after that."""
    work = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise
