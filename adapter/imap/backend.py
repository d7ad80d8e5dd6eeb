"""What IMAP sessions need of an open store: it comes and goes with the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from adapter.read_model.mailboxes import CacheLimits, Mailboxes
from adapter.sessions.context import OpenStore
from adapter.transport.transport import Transport

Result = TypeVar("Result")


class Backend:
    def __init__(self, store: OpenStore, limits: CacheLimits) -> None:
        self.store = store
        self.mailboxes = Mailboxes(store.transport, store.commits, limits)

    @property
    def transport(self) -> Transport:
        return self.store.transport

    async def start(self) -> None:
        await self.mailboxes.start()

    async def close(self) -> None:
        """Sessions must be gone."""
        await self.mailboxes.close()

    async def call(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Run what blocks on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.store.pool, function, *arguments)
