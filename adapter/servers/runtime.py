"""Serving: sockets first, then one process or several that accept from them.

``run`` opens the sockets and says where they are. One process then serves by itself; more are made and looked after
(:mod:`adapter.servers.workers`). ``serve`` is what each serving process does: it opens the store, accepts, and says
that it is ready. On SIGTERM or SIGINT it stops accepting, lets sessions finish what they do within a deadline, and
closes the store. When the store is taken offline for maintenance the sessions end the same way and the store is let go,
but the listeners stay and turn clients away until it is back. SIGHUP reads the settings again
(:mod:`adapter.servers.reload`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections.abc import Callable, Sequence

from adapter.servers import endpoints, logs
from adapter.servers.acceptor import Acceptor
from adapter.servers.admission import Admission
from adapter.servers.endpoints import Endpoint, Listener
from adapter.servers.keeper import StoreKeeper, longest_close
from adapter.servers.listeners import LISTENERS
from adapter.servers.overseer import Announce, Overseer, ServiceManager
from adapter.servers.reload import Reloader, SettingsSource
from adapter.servers.services import Services
from adapter.servers.shared_counts import SharedCounts
from adapter.servers.tls import Certificates
from adapter.servers.workers import Supervisor, WorkerLink
from adapter.settings import Settings
from adapter.store.disk import Directories

_log = logging.getLogger(__name__)

_BEAT = 1.0  # seconds between two signs of life


def run(root: str, source: SettingsSource, wanted: Sequence[Endpoint], announce: Announce) -> None:
    """Serve until a signal says to stop. Raises MailError, ConfigError or TlsError if that cannot begin."""
    settings = source.started_with
    _raise_file_limit()
    counts = SharedCounts(settings.server.workers)
    listeners: list[Listener] = []
    try:
        for endpoint in wanted:
            listeners.append(endpoints.listen(endpoint, settings.listen))
            announce(f"{listeners[-1].endpoint.kind} {listeners[-1].endpoint}")
        manager = ServiceManager(announce)
        if settings.server.workers == 1:
            _serve(root, settings, source, listeners, counts, manager)
            return

        def work(link: WorkerLink) -> None:
            counts.column = link.number
            _serve(root, source.latest(), source, listeners, counts, link)

        Supervisor(
            settings.server.workers,
            work,
            manager,
            let_go=lambda: _close(listeners),
            died=counts.drop_worker,
            longest_end=longest_close(settings.server.drain),
        ).run()
    finally:
        _close(listeners)
        endpoints.remove_paths(listeners)


def _close(listeners: Sequence[Listener]) -> None:
    for listener in listeners:
        listener.close()


def _serve(
    root: str,
    settings: Settings,
    source: SettingsSource,
    listeners: Sequence[Listener],
    counts: SharedCounts,
    overseer: Overseer,
) -> None:
    logs.write_behind()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve(root, settings, source, listeners, counts, overseer))


async def serve(
    root: str,
    settings: Settings,
    source: SettingsSource,
    listeners: Sequence[Listener],
    counts: SharedCounts,
    overseer: Overseer,
) -> None:
    services = Services(
        settings=settings,
        hostname=settings.server.hostname or socket.getfqdn(),
        certificates=Certificates(settings.tls),
        admission=Admission(settings.limits, counts),
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    reloader = Reloader(services, source, overseer)
    loop.add_signal_handler(signal.SIGHUP, reloader.ask)
    with contextlib.closing(Directories(root)) as directories:
        keeper = StoreKeeper(root, services, directories)
        await keeper.open()
        acceptors: list[Acceptor] = []
        try:
            for listener in listeners:
                connection = LISTENERS[listener.endpoint.kind](services)
                acceptors.append(Acceptor(listener, connection, yields=_fuller(services)))
            overseer.ready()
            _log.info("ready")
            watching = [asyncio.create_task(job) for job in (keeper.watch(), reloader.run(), _beat(overseer))]
            await stop.wait()
            _log.info("stopping")
            overseer.stopping()
            services.ending = True
            for task in watching[:2]:
                task.cancel()
            await asyncio.wait(watching[:2])
        finally:
            for acceptor in acceptors:
                acceptor.close()
            await keeper.close()
    _log.info("stopped")


def _fuller(services: Services) -> Callable[[], bool] | None:
    """Whether another worker has fewer connections than this one; None: there is no other."""
    column = services.admission.counts.column

    def fuller() -> bool:
        by_worker = services.admission.by_worker
        return by_worker[column] > min(by_worker)

    return fuller if services.admission.counts.workers > 1 else None


async def _beat(overseer: Overseer) -> None:
    """Signs of life, for as long as the event loop has its turns."""
    while True:
        overseer.alive()
        await asyncio.sleep(_BEAT)


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
