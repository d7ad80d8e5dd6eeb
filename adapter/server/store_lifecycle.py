"""Store lifecycle: open and close the store below the listeners, for maintenance and at shutdown."""

from __future__ import annotations

import asyncio
import logging
import sqlite3

from adapter.config.schema import Settings
from adapter.hooks import runner as hooks
from adapter.net.shared_counts import SharedCounts
from adapter.server.jobs import StoreJobs
from adapter.server.service_manager import StatusReporter
from adapter.sessions.context import OpenStore, ServerContext, close_store, open_store
from adapter.store.disk import Directories
from adapter.transport.recovery.opening import offline_reason
from protocol.errors import MailError, Reason

_log = logging.getLogger(__name__)

_MARKER_CHECK_SECONDS = 0.25
_ADDRESS_REFRESH_SECONDS = 2.0
_CUT_OFF_SECONDS = 5.0  # for commits in progress, after the deadline for sessions


def max_close_seconds(drain: float) -> float:
    """Return the limit of :meth:`StoreLifecycle.close`, without the store's last commits."""
    return 2 * drain + _CUT_OFF_SECONDS


def open_served_store(root: str, settings: Settings, counts: SharedCounts | None = None) -> OpenStore:
    """Open a store and register the hooks, before any mail is accepted. Blocking. Raises MailError, ConfigError."""
    store = open_store(root, settings, counts)
    try:
        hooks.create_cursors(store.transport, settings.hook)
    except BaseException:
        close_store(store)
        raise
    return store


class StoreLifecycle:
    """Opens the store, closes it for maintenance, and opens it again."""

    def __init__(
        self, root: str, context: ServerContext, directories: Directories, reporter: StatusReporter | None = None
    ) -> None:
        self._root = root
        self._context = context
        self._directories = directories
        self._reporter = reporter or StatusReporter()
        self._store: OpenStore | None = None
        self._jobs: StoreJobs | None = None

    async def open(self) -> None:
        """Open the store; if it is in maintenance, leave that to :meth:`watch`. Raises MailError, ConfigError."""
        context = self._context
        try:
            self._store = await asyncio.to_thread(
                open_served_store, self._root, context.settings, context.admission.counts
            )
        except MailError as error:
            if error.reason is not Reason.MAINTENANCE:
                raise
            _log.warning("%s", error)
            return
        context.store = self._store
        self._jobs = StoreJobs(context, self._store)

    async def close(self) -> None:
        """Drain the sessions, cut off those that remain, then close the store, even if draining fails. Idempotent."""
        context = self._context
        context.store = None
        jobs, self._jobs = self._jobs, None
        if jobs is not None:
            jobs.stop()
        drain = context.settings.server.drain
        try:
            if not await context.connections.drain(drain):
                _log.warning("drain timeout: cutting off %d session(s)", len(context.connections))
                await context.connections.cut_off(_CUT_OFF_SECONDS)
            for close in context.before_close:
                await close()
            if jobs is not None:
                await jobs.wait(drain)
        finally:
            if self._store is not None:
                store, self._store = self._store, None
                await asyncio.to_thread(close_store, store)

    async def watch(self, stop: asyncio.Event) -> None:
        """Poll the maintenance marker and, less often, the registered addresses, until ``stop`` is set.

        Not to be cancelled: that would leave a store half opened or half closed.
        """
        since_refresh = 0.0
        while not await _is_set_within(stop, _MARKER_CHECK_SECONDS):
            since_refresh += _MARKER_CHECK_SECONDS
            try:
                reason = await asyncio.to_thread(offline_reason, self._directories)
                store = self._context.store
                if reason is not None and store is not None:
                    _log.warning("store: going offline (%s)", reason)
                    await self.close()
                    _log.warning("store: offline")
                    self._reporter.status(f"Offline: {reason}")
                elif reason is None and store is None:
                    await self.open()
                    if self._context.store is not None:
                        _log.warning("store: online again")
                        self._reporter.status("Serving mail")
                elif store is not None and since_refresh >= _ADDRESS_REFRESH_SECONDS:
                    since_refresh = 0.0
                    await asyncio.to_thread(store.recipients.refresh)
            except (MailError, OSError, sqlite3.Error) as error:
                _log.error("store: cannot check for maintenance (%s); retrying", error)
            except Exception:  # without this loop the store would never go offline again
                _log.exception("store: unexpected error in the maintenance check; retrying")


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
