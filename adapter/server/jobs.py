"""Background jobs of an open store, one task for each: relay, hooks, retention, and mirroring of upstream accounts.

Each of several workers runs every job. A job that only one process may do first acquires a kernel lock of its own; it
waits for the lock, and so takes over when the process that held it dies.

Invariant: a job returns when ``stop`` is set; one that takes too long is cancelled, and must tolerate that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from adapter.config.schema import Settings
from adapter.hooks import runner as hooks
from adapter.mirror import follow
from adapter.mirror.limits import MirrorLimits
from adapter.relay import relay
from adapter.server.reload import restart_on_change
from adapter.sessions.context import OpenStore, ServerContext
from adapter.store.quotas import Quotas
from adapter.transport import retention
from adapter.transport.retention import RetentionRules

_log = logging.getLogger(__name__)

Job = Callable[[ServerContext, OpenStore, asyncio.Event], Awaitable[None]]


async def _relay(context: ServerContext, store: OpenStore, stop: asyncio.Event) -> None:
    await restart_on_change(
        context,
        stop,
        lambda: (context.settings.relay, context.hostname),
        lambda ended: relay.run(
            store.transport,
            context.settings.relay,
            ended,
            hostname=context.hostname,
            drain=context.settings.server.drain,
        ),
    )


async def _hooks(context: ServerContext, store: OpenStore, stop: asyncio.Event) -> None:
    await restart_on_change(
        context,
        stop,
        lambda: context.settings.hook,
        lambda ended: hooks.run(store.transport, context.settings.hook, ended),
    )


async def _retention(context: ServerContext, store: OpenStore, stop: asyncio.Event) -> None:
    await restart_on_change(
        context,
        stop,
        lambda: context.settings.retention,
        lambda ended: retention.run(
            store.transport,
            RetentionRules(context.settings.retention.deleted, context.settings.retention.expire),
            ended,
        ),
    )


async def _pull(context: ServerContext, store: OpenStore, stop: asyncio.Event) -> None:
    await restart_on_change(
        context,
        stop,
        lambda: _pull_settings(context.settings),
        lambda ended: follow.run(
            store.transport,
            context.settings.upstream,
            MirrorLimits(context.settings.limits.message_size, Quotas(context.settings)),
            ended,
        ),
    )


def _pull_settings(settings: Settings) -> object:
    """Return the settings that affect a pull."""
    return settings.upstream, settings.limits.message_size, settings.quota, settings.account


JOBS: dict[str, Job] = {"relay": _relay, "hooks": _hooks, "pull": _pull, "retention": _retention}


class StoreJobs:
    """The jobs of one open store."""

    def __init__(self, context: ServerContext, store: OpenStore) -> None:
        self._stop = asyncio.Event()
        self._tasks = {
            name: asyncio.ensure_future(self._run(name, job(context, store, self._stop))) for name, job in JOBS.items()
        }

    async def _run(self, name: str, job: Awaitable[None]) -> None:
        try:
            await job
        except Exception:
            _log.exception("%s: job ended unexpectedly", name)

    def stop(self) -> None:
        """Ask all jobs to end; :meth:`wait` waits for them."""
        self._stop.set()

    async def wait(self, seconds: float) -> None:
        """Wait for all jobs to end, then cancel the others: work in progress is done again later."""
        self.stop()
        _, late = await asyncio.wait(self._tasks.values(), timeout=seconds)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
