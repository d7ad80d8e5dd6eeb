"""What runs beside the sessions for as long as the store is open: one task for each job.

With several workers each of them runs every job; a job of which there may be only one takes a kernel lock of its own
first, and waits for it, so that it moves over when the process that had it dies.

Invariant: a job returns when ``stop`` is set; one that takes too long is cancelled and must be able to bear that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from adapter.config.schema import Settings
from adapter.hooks import runner as hooks
from adapter.mirror import follow
from adapter.mirror.limits import Limits
from adapter.relay import relay
from adapter.server.reload import run_anew_when_changed
from adapter.sessions.context import OpenStore, ServerContext
from adapter.store.quotas import Quotas

_log = logging.getLogger(__name__)

Job = Callable[[ServerContext, OpenStore, asyncio.Event], Awaitable[None]]


async def _relay(services: ServerContext, store: OpenStore, stop: asyncio.Event) -> None:
    await run_anew_when_changed(
        services,
        stop,
        lambda: (services.settings.relay, services.hostname),
        lambda ended: relay.run(
            store.transport,
            services.settings.relay,
            ended,
            hostname=services.hostname,
            drain=services.settings.server.drain,
        ),
    )


async def _hooks(services: ServerContext, store: OpenStore, stop: asyncio.Event) -> None:
    await run_anew_when_changed(
        services,
        stop,
        lambda: services.settings.hook,
        lambda ended: hooks.run(store.transport, services.settings.hook, ended),
    )


async def _pull(services: ServerContext, store: OpenStore, stop: asyncio.Event) -> None:
    await run_anew_when_changed(
        services,
        stop,
        lambda: _pulled(services.settings),
        lambda ended: follow.run(
            store.transport,
            services.settings.upstream,
            Limits(services.settings.limits.message_size, Quotas(services.settings)),
            ended,
        ),
    )


def _pulled(settings: Settings) -> object:
    """What matters to a pull."""
    return settings.upstream, settings.limits.message_size, settings.quota, settings.account


#: name -> what runs
JOBS: dict[str, Job] = {"relay": _relay, "hooks": _hooks, "pull": _pull}


class Background:
    """The jobs of one open store."""

    def __init__(self, services: ServerContext, store: OpenStore) -> None:
        self._stop = asyncio.Event()
        self._tasks = {
            name: asyncio.ensure_future(self._run(name, job(services, store, self._stop))) for name, job in JOBS.items()
        }

    async def _run(self, name: str, job: Awaitable[None]) -> None:
        try:
            await job
        except Exception:
            _log.exception("the %s ended unexpectedly", name)

    def stop(self) -> None:
        """Ask all to end; :meth:`ended` waits for it."""
        self._stop.set()

    async def ended(self, seconds: float) -> None:
        """What is on its way when the time is up is given up, and done again later."""
        self.stop()
        _, late = await asyncio.wait(self._tasks.values(), timeout=seconds)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
