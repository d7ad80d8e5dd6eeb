"""Opens and closes the store below listeners that stay: for maintenance, and at the end."""

from __future__ import annotations

import asyncio
import logging
import sqlite3

from adapter.server.jobs import Background
from adapter.server.service_manager import Overseer
from adapter.sessions.context import OpenStore, ServerContext, close_store, open_store
from adapter.store.disk import Directories
from adapter.transport.recovery.opening import offline_reason
from protocol.errors import MailError, Reason

_log = logging.getLogger(__name__)

_WATCH = 0.25  # seconds between looks at the maintenance marker
_REFRESH = 2.0  # seconds between looks at the registered addresses
_AFTER_CUT_OFF = 5.0  # what is being committed when the deadline passes is waited for


def longest_close(drain: float) -> float:
    """Seconds after which :meth:`StoreKeeper.close` is over, but for the store's last commits."""
    return 2 * drain + _AFTER_CUT_OFF


class StoreKeeper:
    def __init__(
        self, root: str, services: ServerContext, directories: Directories, overseer: Overseer | None = None
    ) -> None:
        self._root = root
        self._services = services
        self._directories = directories
        self._overseer = overseer or Overseer()
        self._store: OpenStore | None = None
        self._background: Background | None = None

    async def open(self) -> None:
        """Open the store, or leave that to :meth:`watch` if it is in maintenance. Raises MailError, ConfigError."""
        services = self._services
        try:
            self._store = await asyncio.to_thread(open_store, self._root, services.settings, services.admission.counts)
        except MailError as error:
            if error.reason is not Reason.MAINTENANCE:
                raise
            _log.warning("%s", error)
            return
        services.store = self._store
        self._background = Background(services, self._store)

    async def close(self) -> None:
        """Let the sessions finish, end those that do not, then let go of the store, whatever happens before.

        May be called again.
        """
        services = self._services
        services.store = None
        background, self._background = self._background, None
        if background is not None:
            background.stop()
        drain = services.settings.server.drain
        try:
            if not await services.connections.drain(drain):
                _log.warning("ending %d sessions that did not finish in time", len(services.connections))
                await services.connections.cut_off(_AFTER_CUT_OFF)
            for let_go in services.before_close:
                await let_go()
            if background is not None:
                await background.ended(drain)
        finally:
            if self._store is not None:
                store, self._store = self._store, None
                await asyncio.to_thread(close_store, store)

    async def watch(self, stop: asyncio.Event) -> None:
        """Look at the maintenance marker and, less often, at the registered addresses, until ``stop`` is set.

        Not to be cancelled: a store that is being opened or closed would be left half-way.
        """
        since_refresh = 0.0
        while not await _set_within(stop, _WATCH):
            since_refresh += _WATCH
            try:
                reason = await asyncio.to_thread(offline_reason, self._directories)
                store = self._services.store
                if reason is not None and store is not None:
                    _log.warning("going offline: %s", reason)
                    await self.close()
                    _log.warning("offline")
                    self._overseer.status(f"Offline: {reason}")
                elif reason is None and store is None:
                    await self.open()
                    if self._services.store is not None:
                        _log.warning("online again")
                        self._overseer.status("Serving mail")
                elif store is not None and since_refresh >= _REFRESH:
                    since_refresh = 0.0
                    await asyncio.to_thread(store.recipients.refresh)
            except (MailError, OSError, sqlite3.Error) as error:
                _log.error("the store cannot be looked at: %s", error)
            except Exception:  # whatever it is: without this watch the store would never go offline again
                _log.exception("the watch over the store goes on after unexpected trouble")


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
