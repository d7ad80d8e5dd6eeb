"""Serving: sockets first, then one process or several that accept from them.

``run`` opens the sockets and says where they are. One process then serves by itself; more are made and looked after
(:mod:`adapter.server.supervisor`). Each serving process opens the store, accepts, and says that it is ready. On SIGTERM
or SIGINT it stops accepting, lets sessions finish what they do within a deadline, and closes the store. When the store
is taken offline for maintenance the sessions end the same way and the store is let go, but the listeners stay and turn
clients away until it is back. SIGHUP reads the settings again (:mod:`adapter.server.reload`).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from adapter.config.schema import Settings
from adapter.net import endpoints
from adapter.net.endpoints import Endpoint, Listener
from adapter.net.shared_counts import SharedCounts
from adapter.net.tls import Certificates
from adapter.observability import logging as logs
from adapter.server import malloc
from adapter.server.acceptor import Acceptor
from adapter.server.listeners import LISTENERS
from adapter.server.metrics_collector import Figures
from adapter.server.metrics_http import HEALTH, Health
from adapter.server.metrics_shm import Board
from adapter.server.reload import Reloader, SettingsSource
from adapter.server.service_manager import Announce, Overseer, ServiceManager
from adapter.server.store_lifecycle import StoreKeeper, longest_close
from adapter.server.supervisor import Supervisor, WorkerLink
from adapter.sessions import budgets
from adapter.sessions.admission import Admission
from adapter.sessions.context import ServerContext
from adapter.store import locks
from adapter.store.disk import Directories
from protocol.errors import MailError

_log = logging.getLogger(__name__)

_BEAT = 0.5  # seconds between two signs of life


@dataclass(frozen=True, slots=True)
class _Common:
    """What all workers of a server have in common; made before any of them."""

    root: str
    source: SettingsSource
    listeners: Sequence[Listener]
    counts: SharedCounts
    board: Board
    connections_per_process: int  # as descriptors allow

    def kinds(self) -> set[str]:
        """The budgets that the listeners need."""
        return {budgets.budget_kind(each.endpoint.kind) for each in self.listeners if each.endpoint.kind != HEALTH}

    def become(self, number: int) -> None:
        """This process is that worker."""
        self.counts.column = self.board.number = number

    def forget(self, number: int) -> None:
        """That worker is dead."""
        self.counts.drop_worker(number)
        self.board.clear(number)

    def holds_index_lock(self, process: int) -> bool:
        try:
            with contextlib.closing(Directories(self.root)) as directories:
                return locks.holds_index_lock(directories, process)
        except (MailError, OSError):
            return False

    def let_go(self) -> None:
        """Accept no more in this process."""
        for listener in self.listeners:
            listener.close()


def run(
    root: str,
    source: SettingsSource,
    wanted: Sequence[Endpoint],
    announce: Announce,
    inherited: Sequence[Listener] = (),
) -> None:
    """Serve until a signal says to stop. Raises MailError, ConfigError or TlsError if that cannot begin."""
    settings = source.started_with
    count = settings.server.workers
    per_process = budgets.raise_descriptor_limit()
    budgets.log_lowered(settings.limits, count, per_process)
    listeners = list(inherited)
    common = _Common(root, source, listeners, SharedCounts(count), Board(count), per_process)
    try:
        for endpoint in wanted:
            listeners.append(endpoints.listen(endpoint, settings.listen))
        for listener in listeners:
            announce(f"{listener.endpoint.kind} {listener.endpoint}")
        manager = ServiceManager(announce)
        if count == 1:
            _serve(common, settings, manager)
            return

        if any(listener.endpoint.kind.startswith("imap") for listener in listeners):
            importlib.import_module("adapter.imap.server")  # once: workers share what is there before them

        def work(link: WorkerLink) -> None:
            common.become(link.number)
            _serve(common, source.latest(), link)

        Supervisor(
            count,
            work,
            manager,
            let_go=common.let_go,
            died=common.forget,
            longest_end=lambda: longest_close(source.latest().server.drain),
            holds_lock=common.holds_index_lock,
        ).run()
    finally:
        common.let_go()
        endpoints.remove_paths(listeners)


def _serve(common: _Common, settings: Settings, overseer: Overseer) -> None:
    malloc.keep_memory()
    logs.write_behind()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve_until_told(common, settings, overseer))


async def _serve_until_told(common: _Common, settings: Settings, overseer: Overseer) -> None:
    services = ServerContext(
        settings=settings,
        hostname=settings.server.hostname or socket.getfqdn(),
        certificates=Certificates(settings.tls),
        admission=Admission(
            settings.limits, common.counts, kinds=common.kinds(), per_process=common.connections_per_process
        ),
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    reloader = Reloader(services, common.source, overseer)
    loop.add_signal_handler(signal.SIGHUP, reloader.ask)
    with contextlib.closing(Directories(common.root)) as directories:
        keeper = StoreKeeper(common.root, services, directories, overseer)
        acceptors: list[Acceptor] = []
        health: list[Acceptor] = []
        lasting = [asyncio.create_task(_beat(overseer))]  # until the very end; to open the store may take its time
        try:
            await keeper.open()
            for listener in common.listeners:
                if listener.endpoint.kind == HEALTH:
                    figures = Figures(services, common.board, directories)
                    lasting.append(asyncio.create_task(figures.run()))
                    health.append(Acceptor(listener, Health(services, common.board, figures.put_up).connection))
                else:
                    connection = LISTENERS[listener.endpoint.kind](services)
                    acceptors.append(Acceptor(listener, connection, yields=_fuller(services)))
            overseer.ready()
            _log.info("ready")
            watching = asyncio.create_task(keeper.watch(stop))
            reloading = asyncio.create_task(reloader.run())
            await stop.wait()
            _log.info("stopping")
            overseer.stopping()
            services.ending = True
            reloading.cancel()
            await asyncio.wait([watching, reloading])
        finally:
            for acceptor in acceptors:
                acceptor.close()
            await keeper.close()
            for acceptor in health:
                acceptor.close()
            for task in lasting:
                task.cancel()
    _log.info("stopped")


def _fuller(services: ServerContext) -> Callable[[], bool] | None:
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
