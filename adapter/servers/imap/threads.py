"""Work that blocks, done on threads, with errors as callers expect them."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from protocol.errors import MailError, Reason

_log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Threads:
    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="markpost-imap")

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """The result of a function that blocks. Raises MailError, whatever goes wrong with files or index."""
        return await self.start(function, *arguments)

    def start(self, function: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        return asyncio.get_running_loop().run_in_executor(self._pool, _guarded, function, arguments)

    def close(self) -> None:
        """Blocks until what was begun is finished."""
        self._pool.shutdown()


def _guarded(function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
    try:
        return function(*arguments)
    except (OSError, sqlite3.Error) as error:
        _log.exception("reading the store failed")
        raise MailError(Reason.UNKNOWN, f"{type(error).__name__}: {error}") from error
