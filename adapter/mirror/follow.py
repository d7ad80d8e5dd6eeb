"""Pull an upstream account once, or follow it while the server runs.

One process at a time pulls an upstream: it holds a kernel lock, and another takes over when it ends. After any error
the connection is opened again with exponential back-off. Cancelling is safe at any time: mirrored messages are
committed, and the next pull continues.
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
from adapter.mirror.folder_sync import PullResult
from adapter.mirror.limits import MirrorLimits
from adapter.mirror.session import UpstreamError, connected
from adapter.store import locks
from adapter.store.disk import Directories
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason

_log = logging.getLogger(__name__)

_TAKE_OVER_SECONDS = 2.0  # interval of the check whether the process that pulls has ended
_GATHER_SECONDS = 0.5  # from a notification to a sync, since they come in bursts; doubled if it found nothing
#: Without CONDSTORE, flags are compared in every tenth sync; the others compare message counts only.
_THOROUGH_EVERY = 10


async def pull(transport: Transport, name: str, settings: UpstreamSettings, limits: MirrorLimits) -> PullResult:
    """Pull an account once. Raises :class:`UpstreamError` and :class:`MailError`."""
    with (
        contextlib.closing(Directories(transport.root)) as directories,
        locks.duty_lock(directories, f"pull-{name}") as ours,
    ):
        if not ours:
            raise MailError(Reason.LOCK_TIMEOUT, f"{name}: another process is pulling it")
        async with connected(settings) as session:
            mirror = Mirror(transport, name, settings, session, limits)
            await mirror.pull()
            return mirror.result


async def run(
    transport: Transport, upstreams: Mapping[str, UpstreamSettings], limits: MirrorLimits, stop: asyncio.Event
) -> None:
    """Follow the upstreams with ``follow = true`` until ``stop`` is set."""
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
            _log.error("upstream: follower ended unexpectedly", exc_info=task.exception())


async def follow(transport: Transport, name: str, settings: UpstreamSettings, limits: MirrorLimits) -> None:
    """Follow an account until cancelled."""
    with contextlib.closing(Directories(transport.root)) as directories:
        while True:
            with locks.duty_lock(directories, f"pull-{name}") as ours:
                if ours:
                    await _Follower(transport, name, settings, limits).run()
            await asyncio.sleep(_TAKE_OVER_SECONDS)


class _Follower:
    """Follows one account, with reconnects."""

    def __init__(self, transport: Transport, name: str, settings: UpstreamSettings, limits: MirrorLimits) -> None:
        self._transport = transport
        self._name = name
        self._settings = settings
        self._limits = limits
        self._failures = 0
        self._logged: set[str] = set()  # failures that persist, each logged once

    async def run(self) -> None:
        while True:
            try:
                async with connected(self._settings) as session:
                    await self._follow(Mirror(self._transport, self._name, self._settings, session, self._limits))
            except (UpstreamError, MailError, OSError, sqlite3.Error) as error:
                pause = self._pause()
                _log.warning("upstream %s: %s; retrying in %.0f s", self._name, error, pause)
            except Exception:
                pause = self._pause()
                _log.exception("upstream %s: unexpected error; retrying in %.0f s", self._name, pause)
            await asyncio.sleep(pause)

    def _pause(self) -> float:
        pause = min(self._settings.first_retry * 2.0**self._failures, self._settings.longest_retry)
        self._failures = min(self._failures + 1, 32)
        return pause * random.uniform(0.8, 1.2)  # noqa: S311 - jitter, not security

    async def _follow(self, mirror: Mirror) -> None:
        syncs = fruitless = 0  # fruitless: syncs in a row after notifications that found no change
        while True:
            await mirror.pull(thorough=syncs % _THOROUGH_EVERY == 0)
            syncs += 1
            self._failures = 0
            if self._report(mirror, is_full=True):
                fruitless = 0
            due = time.monotonic() + self._settings.poll
            while (left := due - time.monotonic()) > 0:
                news = await mirror.wait(left)
                if news == "anywhere":
                    await asyncio.sleep(min(_GATHER_SECONDS * 2.0**fruitless, left))
                    fruitless = min(fruitless + 1, 16)
                    break
                if news:
                    await mirror.pull_inbox()
                    self._report(mirror, is_full=False)
            else:
                fruitless = 0

    def _report(self, mirror: Mirror, *, is_full: bool) -> bool:
        """Log the result of a sync; return whether it changed anything."""
        result, mirror.result = mirror.result, PullResult()
        changed = bool(result.messages or result.claimed or result.flagged or result.removed)
        if changed:
            counts = f"{result.messages} new, {result.flagged} with changed flags, {result.removed} removed"
            _log.info("upstream %s: %s", self._name, counts)
        for line in result.failed:
            if line not in self._logged:
                _log.warning("upstream %s: %s", self._name, line)
        self._logged = {*result.failed} if is_full else self._logged | {*result.failed}
        return changed
