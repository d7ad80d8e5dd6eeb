"""Serving: open the sockets, then run one process or several that accept from them.

``run`` opens the sockets and announces them. With one worker this process serves by itself; with several, a supervisor
forks and watches them (:mod:`adapter.server.supervisor`). A serving process opens the store, accepts connections, and
reports that it is ready. On SIGTERM or SIGINT it stops accepting, drains its sessions within a deadline, and closes the
store. When the store is taken offline for maintenance, sessions are drained and the store is closed the same way, but
the listeners stay and turn clients away until it is back. SIGHUP reloads the settings (:mod:`adapter.server.reload`).
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

from adapter.config.loader import ConfigError
from adapter.config.schema import METRICS_LISTENER, Settings
from adapter.net import endpoints
from adapter.net.endpoints import Endpoint, Listener, ListenError
from adapter.net.shared_counts import SharedCounts
from adapter.net.tls import Certificates
from adapter.observability import logging as logs
from adapter.server import malloc
from adapter.server.listeners import Acceptor, ConnectionFactory
from adapter.server.metrics_collector import MetricsCollector
from adapter.server.metrics_http import MonitoringPages
from adapter.server.metrics_shm import SharedMetrics
from adapter.server.reload import Reloader
from adapter.server.service_manager import Announce, StatusReporter, SystemdNotifier
from adapter.server.settings import SettingsSource
from adapter.server.store_lifecycle import StoreLifecycle, max_close_seconds
from adapter.server.supervisor import Supervisor, WorkerChannel
from adapter.sessions import budgets
from adapter.sessions.admission import Admission
from adapter.sessions.context import ServerContext
from adapter.store import locks
from adapter.store.disk import Directories
from protocol.errors import MailError

_log = logging.getLogger(__name__)

_HEARTBEAT_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class SharedState:
    """The state that all workers of a server share; created before they are forked."""

    root: str
    source: SettingsSource
    listeners: Sequence[Listener]
    counts: SharedCounts
    metrics: SharedMetrics
    connections_per_process: int  # as descriptors allow

    def kinds(self) -> set[str]:
        """Return the connection budgets that the listeners need."""
        kinds = (each.endpoint.kind for each in self.listeners)
        return {budgets.budget_kind(kind) for kind in kinds if kind != METRICS_LISTENER}

    def set_worker(self, number: int) -> None:
        """Make this process the worker of that number."""
        self.counts.column = self.metrics.number = number

    def drop_worker(self, number: int) -> None:
        """Remove the counts and metrics of a dead worker."""
        self.counts.drop_worker(number)
        self.metrics.clear(number)

    def holds_index_lock(self, process: int) -> bool:
        try:
            with contextlib.closing(Directories(self.root)) as directories:
                return locks.holds_index_lock(directories, process)
        except (MailError, OSError):
            return False

    def close_listeners(self) -> None:
        """Close the listening sockets of this process."""
        for listener in self.listeners:
            listener.close()


def run(
    root: str,
    source: SettingsSource,
    endpoints_to_open: Sequence[Endpoint],
    announce: Announce,
    inherited: Sequence[Listener] = (),
) -> None:
    """Serve until a signal says to stop. Raises MailError, ConfigError or TlsError if serving cannot begin."""
    settings = source.at_start
    count = settings.server.workers
    per_process = budgets.raise_descriptor_limit()
    budgets.log_lowered(settings.limits, count, per_process)
    listeners = list(inherited)
    shared = SharedState(root, source, listeners, SharedCounts(count), SharedMetrics(count), per_process)
    try:
        for endpoint in endpoints_to_open:
            listeners.append(open_listener(endpoint, settings))
        for listener in listeners:
            announce(f"{listener.endpoint.kind} {listener.endpoint}")
        notifier = SystemdNotifier(announce)
        if count == 1:
            _serve(shared, settings, notifier)
            return

        if any(listener.endpoint.kind.startswith("imap") for listener in listeners):
            importlib.import_module("adapter.imap.server")  # once: workers share the memory of what is loaded here

        def work(channel: WorkerChannel) -> None:
            shared.set_worker(channel.number)
            _serve(shared, source.latest(), channel)

        Supervisor(
            count,
            work,
            notifier,
            close_listeners=shared.close_listeners,
            on_exit=shared.drop_worker,
            max_close_seconds=lambda: max_close_seconds(source.latest().server.drain),
            holds_lock=shared.holds_index_lock,
        ).run()
    finally:
        shared.close_listeners()
        endpoints.remove_paths(listeners)


def open_listener(endpoint: Endpoint, settings: Settings) -> Listener:
    """Open an endpoint as ``[listen]`` says. Raises ConfigError."""
    listen = settings.listen
    try:
        return endpoints.listen(endpoint, backlog=listen.backlog, socket_mode=listen.socket_mode)
    except ListenError as error:
        raise ConfigError(str(error)) from None


def _serve(shared: SharedState, settings: Settings, reporter: StatusReporter) -> None:
    malloc.keep_memory()
    logs.write_behind()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve_until_stopped(shared, settings, reporter))


async def serve_until_stopped(shared: SharedState, settings: Settings, reporter: StatusReporter) -> None:
    """Open the store, serve all listeners until SIGTERM or SIGINT, drain, and close the store."""
    context = ServerContext(
        settings=settings,
        hostname=settings.server.hostname or socket.getfqdn(),
        certificates=Certificates(settings.tls),
        admission=Admission(
            settings.limits, shared.counts, kinds=shared.kinds(), per_process=shared.connections_per_process
        ),
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    reloader = Reloader(context, shared.source, reporter)
    loop.add_signal_handler(signal.SIGHUP, reloader.request)
    with contextlib.closing(Directories(shared.root)) as directories:
        lifecycle = StoreLifecycle(shared.root, context, directories, reporter)
        acceptors: list[Acceptor] = []
        monitoring: list[Acceptor] = []
        until_exit = [asyncio.create_task(heartbeat(reporter))]  # before the store, which may take long to open
        try:
            await lifecycle.open()
            connections = ConnectionFactory(context)
            for listener in shared.listeners:
                if listener.endpoint.kind == METRICS_LISTENER:
                    collector = MetricsCollector(context, shared.metrics, directories)
                    until_exit.append(asyncio.create_task(collector.run()))
                    pages = MonitoringPages(context, shared.metrics, collector.publish)
                    monitoring.append(Acceptor(listener, pages.connection))
                else:
                    connection = connections.for_listener(listener.endpoint.kind)
                    acceptors.append(Acceptor(listener, connection, should_yield=has_more_connections(context)))
            reporter.ready()
            _log.info("ready")
            watching = asyncio.create_task(lifecycle.watch(stop))
            reloading = asyncio.create_task(reloader.run())
            await stop.wait()
            _log.info("stopping")
            reporter.stopping()
            context.ending = True
            reloading.cancel()
            await asyncio.wait([watching, reloading])
        finally:
            for acceptor in acceptors:
                acceptor.close()
            await lifecycle.close()
            for acceptor in monitoring:
                acceptor.close()
            for task in until_exit:
                task.cancel()
    _log.info("stopped")


def has_more_connections(context: ServerContext) -> Callable[[], bool] | None:
    """Return a function that says whether another worker has fewer connections; None: this is the only worker."""
    column = context.admission.counts.column

    def compare() -> bool:
        by_worker = context.admission.by_worker
        return by_worker[column] > min(by_worker)

    return compare if context.admission.counts.workers > 1 else None


async def heartbeat(reporter: StatusReporter) -> None:
    """Report heartbeats while the event loop runs."""
    while True:
        reporter.alive()
        await asyncio.sleep(_HEARTBEAT_SECONDS)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
