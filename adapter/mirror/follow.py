"""Pulling an upstream account once, and following it for as long as the server runs.

One process at a time does that for an upstream (a kernel lock says which; another takes over when it ends). Whatever
goes wrong, the connection is made anew after a pause that grows. It may be cancelled at any time: what was brought was
committed, the rest comes the next time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sqlite3
import time
from collections.abc import Mapping

from adapter.config.schema import UpstreamSettings
from adapter.mirror.account import Mirror
from adapter.mirror.folder_sync import Pulled
from adapter.mirror.limits import Limits
from adapter.mirror.session import UpstreamError, connected
from adapter.store import locks
from adapter.store.disk import Directories
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason

_log = logging.getLogger(__name__)

_TAKE_OVER = 2.0  # seconds between looks whether the process that pulls has ended
_GATHER = 0.5  # seconds between news and a look at all folders: they come in swarms; doubled when it was none
#: So many looks at a server that cannot tell which flags changed go by the number of messages alone.
_THOROUGH_EVERY = 10


async def pull(transport: Transport, name: str, settings: UpstreamSettings, limits: Limits) -> Pulled:
    """Once. Raises :class:`UpstreamError` and :class:`MailError`."""
    with (
        contextlib.closing(Directories(transport.root)) as directories,
        locks.duty_lock(directories, f"pull-{name}") as ours,
    ):
        if not ours:
            raise MailError(Reason.LOCK_TIMEOUT, f"{name} is being pulled already")
        async with connected(settings) as session:
            mirror = Mirror(transport, name, settings, session, limits)
            await mirror.pull()
            return mirror.done


async def run(
    transport: Transport, upstreams: Mapping[str, UpstreamSettings], limits: Limits, stop: asyncio.Event
) -> None:
    """Follow all that want it until ``stop`` is set."""
    following = {
        asyncio.create_task(follow(transport, name, settings, limits))
        for name, settings in upstreams.items()
        if settings.follow
    }
    if not following:
        return
    try:
        await stop.wait()
    finally:
        for task in following:
            task.cancel()
        await asyncio.wait(following)
    for task in following:
        if not task.cancelled() and task.exception() is not None:
            _log.error("following ended unexpectedly", exc_info=task.exception())


async def follow(transport: Transport, name: str, settings: UpstreamSettings, limits: Limits) -> None:
    """Until it is cancelled."""
    with contextlib.closing(Directories(transport.root)) as directories:
        while True:
            with locks.duty_lock(directories, f"pull-{name}") as ours:
                if ours:
                    await _Follower(transport, name, settings, limits).run()
            await asyncio.sleep(_TAKE_OVER)


class _Follower:
    def __init__(self, transport: Transport, name: str, settings: UpstreamSettings, limits: Limits) -> None:
        self._transport = transport
        self._name = name
        self._settings = settings
        self._limits = limits
        self._failures = 0
        self._told: set[str] = set()  # what fails, and was logged when it began to

    async def run(self) -> None:
        while True:
            try:
                async with connected(self._settings) as session:
                    await self._follow(Mirror(self._transport, self._name, self._settings, session, self._limits))
            except (UpstreamError, MailError, OSError, sqlite3.Error) as error:
                pause = self._pause()
                _log.warning("upstream %s: %s; trying again in %.0f s", self._name, error, pause)
            except Exception:
                pause = self._pause()
                _log.exception("upstream %s: unexpected trouble; trying again in %.0f s", self._name, pause)
            await asyncio.sleep(pause)

    def _pause(self) -> float:
        pause = min(self._settings.first_retry * 2.0**self._failures, self._settings.longest_retry)
        self._failures = min(self._failures + 1, 32)
        return pause * random.uniform(0.8, 1.2)  # noqa: S311 - spreads attempts, protects nothing

    async def _follow(self, mirror: Mirror) -> None:
        looks = vain = 0  # vain: looks in a row that were for news, and found nothing
        while True:
            await mirror.pull(thorough=looks % _THOROUGH_EVERY == 0)
            looks += 1
            self._failures = 0
            if self._report(mirror, whole=True):
                vain = 0
            due = time.monotonic() + self._settings.poll
            while (left := due - time.monotonic()) > 0:
                news = await mirror.wait(left)
                if news == "anywhere":
                    await asyncio.sleep(min(_GATHER * 2.0**vain, left))
                    vain = min(vain + 1, 16)
                    break
                if news:
                    await mirror.pull_inbox()
                    self._report(mirror, whole=False)
            else:
                vain = 0

    def _report(self, mirror: Mirror, *, whole: bool) -> bool:
        """Whether anything was done."""
        done, mirror.done = mirror.done, Pulled()
        changed = bool(done.messages or done.claimed or done.flagged or done.removed)
        if changed:
            counts = f"{done.messages} new, {done.flagged} with other flags, {done.removed} removed"
            _log.info("upstream %s: %s", self._name, counts)
        for line in done.failed:
            if line not in self._told:
                _log.warning("upstream %s: %s", self._name, line)
        self._told = {*done.failed} if whole else self._told | {*done.failed}
        return changed
