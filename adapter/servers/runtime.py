"""One serving process: the store, the listeners, and how they come and go.

``serve`` opens the store, starts the listeners, says where they are and that they are ready. On SIGTERM or SIGINT it
stops accepting, lets sessions finish what they do within a deadline, and closes the store. When the store is taken
offline for maintenance the sessions end the same way and the store is let go, but the listeners stay and turn clients
away until it is back. SIGHUP reads certificates again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import sqlite3
from collections.abc import Callable, Sequence

from adapter.servers import endpoints
from adapter.servers.admission import Admission
from adapter.servers.endpoints import Endpoint
from adapter.servers.listeners import LISTENERS
from adapter.servers.services import Services, Store, close_store, open_store
from adapter.servers.tls import Certificates, TlsError
from adapter.settings import Settings
from adapter.store.disk import Directories
from adapter.transport.opening import offline_reason
from adapter.upstream import relay
from protocol.errors import MailError, Reason

_log = logging.getLogger(__name__)

_WATCH = 0.25  # seconds between looks at the maintenance marker
_REFRESH = 2.0  # seconds between looks at the registered addresses
_AFTER_ABORT = 5.0  # what is being committed when the deadline passes is waited for

Announce = Callable[[str], None]


def run(root: str, settings: Settings, wanted: Sequence[Endpoint], announce: Announce) -> None:
    """Serve until a signal says to stop. Raises MailError, ConfigError or TlsError if that cannot begin."""
    _raise_file_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve(root, settings, wanted, announce))


async def serve(root: str, settings: Settings, wanted: Sequence[Endpoint], announce: Announce) -> None:
    services = Services(
        settings=settings,
        hostname=settings.server.hostname or socket.getfqdn(),
        certificates=Certificates(settings.tls),
        admission=Admission(settings.limits),
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, _reload, services)
    with contextlib.closing(Directories(root)) as directories:
        supervisor = _Supervisor(root, services, directories)
        await supervisor.open()
        servers: list[asyncio.Server] = []
        try:
            for endpoint in wanted:
                server, actual = await endpoints.listen(
                    endpoint, LISTENERS[endpoint.kind](services), settings.listen.backlog, settings.listen.socket_mode
                )
                servers.append(server)
                announce(f"{actual.kind} {actual}")
            announce("ready")
            _log.info("ready")
            watching = asyncio.create_task(supervisor.watch())
            await stop.wait()
            _log.info("stopping")
            services.ending = True
            watching.cancel()
            await asyncio.wait([watching])
        finally:
            for server in servers:
                server.close()
            await supervisor.close()
    _log.info("stopped")


class _Supervisor:
    """Opens and closes the store below the running listeners."""

    def __init__(self, root: str, services: Services, directories: Directories) -> None:
        self._root = root
        self._services = services
        self._directories = directories
        self._store: Store | None = None
        self._relay: asyncio.Task[None] | None = None
        self._stop_relay = asyncio.Event()

    async def open(self) -> None:
        services = self._services
        try:
            self._store = await asyncio.to_thread(open_store, self._root, services.settings)
        except MailError as error:
            if error.reason is not Reason.MAINTENANCE:
                raise
            _log.warning("%s", error)
            return
        services.store = self._store
        self._stop_relay.clear()
        self._relay = asyncio.create_task(
            relay.run(self._store.transport, services.settings.relay, self._stop_relay, hostname=services.hostname)
        )

    async def close(self) -> None:
        """Let the sessions finish, end those that do not, then let go of the store. May be called again."""
        services = self._services
        services.store = None
        self._stop_relay.set()
        if not await services.connections.drain(services.settings.server.drain):
            _log.warning("ending %d sessions that did not finish in time", len(services.connections))
            await services.connections.abort(_AFTER_ABORT)
        for let_go in services.before_close:
            await let_go()
        await self._end_relay(services.settings.server.drain)
        if self._store is not None:
            store, self._store = self._store, None
            await asyncio.to_thread(close_store, store)

    async def _end_relay(self, seconds: float) -> None:
        """What is on its way to the smarthost when the time is up goes out again later."""
        if self._relay is None:
            return
        task, self._relay = self._relay, None
        _, late = await asyncio.wait([task], timeout=seconds)
        if late:
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:
            _log.error("the relay ended unexpectedly", exc_info=task.exception())

    async def watch(self) -> None:
        """Look at the maintenance marker and, less often, at the registered addresses."""
        since_refresh = 0.0
        while True:
            await asyncio.sleep(_WATCH)
            since_refresh += _WATCH
            try:
                reason = await asyncio.to_thread(offline_reason, self._directories)
                store = self._services.store
                if reason is not None and store is not None:
                    _log.warning("going offline: %s", reason)
                    await self.close()
                    _log.warning("offline")
                elif reason is None and store is None:
                    await self.open()
                    if self._services.store is not None:
                        _log.warning("online again")
                elif store is not None and since_refresh >= _REFRESH:
                    since_refresh = 0.0
                    await asyncio.to_thread(store.recipients.refresh)
            except (MailError, OSError, sqlite3.Error) as error:
                _log.error("the store cannot be looked at: %s", error)


def _reload(services: Services) -> None:
    try:
        services.certificates.reload()
    except TlsError as error:
        _log.error("certificates stay as they are: %s", error)
    else:
        _log.info("certificates read again")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _raise_file_limit() -> None:
    """A connection is a file: use what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
