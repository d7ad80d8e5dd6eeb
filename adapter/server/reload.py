"""Reload settings and certificates while the server runs: on SIGHUP, and certificates also when their files change.

Invariants: a reload drops no session. Settings are taken over completely or not at all: an error in the new ones is
logged in one line, and the current ones stay. A setting that needs a restart keeps its value and is named in the log.
An SMTP transaction in progress keeps its limits; everything else follows the new settings at once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

from adapter.config.loader import ConfigError
from adapter.config.locations import SettingPath
from adapter.config.schema import Settings
from adapter.net.tls import TlsError
from adapter.observability import logging as logs
from adapter.server.service_manager import StatusReporter
from adapter.server.settings import SettingsSource, changed_settings, is_live, merge_settings
from adapter.sessions.context import ServerContext

_log = logging.getLogger(__name__)

_CERTIFICATE_CHECK_SECONDS = 5.0


class Reloader:
    """Reloads the settings on request, and certificates when their files change."""

    def __init__(self, context: ServerContext, source: SettingsSource, reporter: StatusReporter | None = None) -> None:
        self._context = context
        self._source = source
        self._reporter = reporter or StatusReporter()
        self._requested = asyncio.Event()

    def request(self) -> None:
        """Reload the settings soon; a signal handler may call this."""
        self._reporter.reloading()
        self._requested.set()

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_CERTIFICATE_CHECK_SECONDS):
                    await self._requested.wait()
            except TimeoutError:
                await self._reload_changed_certificates()
                continue
            self._requested.clear()
            try:
                await self.reload()
            except Exception:
                _log.exception("reload: unexpected error; the settings may be partly applied")
            self._reporter.reloaded()

    async def _reload_changed_certificates(self) -> None:
        try:
            if await asyncio.to_thread(self._context.certificates.reload_if_changed):
                _log.info("certificates: files changed; reloaded")
        except TlsError as error:
            _log.error("certificates: reload failed (%s); keeping the current ones", error)

    async def reload(self) -> None:
        context = self._context
        before = context.settings
        try:
            loaded = await asyncio.to_thread(self._source.load)
            await asyncio.to_thread(context.certificates.apply, loaded.tls)
        except (ConfigError, TlsError) as error:
            _log.error("settings: reload failed (%s); keeping the current ones", error)
            return
        changes = list(changed_settings(before, loaded))
        live = [path for path in changes if is_live(path)]
        settings = merge_settings(before, loaded, live)
        hostname = settings.server.hostname or await asyncio.to_thread(socket.getfqdn)
        apply_settings(context, settings, hostname)
        _log.info("settings and certificates reloaded: %s", _join(live) if live else "no setting has changed")
        pending = [path for path in changes if path not in live]
        if pending:
            _log.warning("settings: restart needed for %s", _join(pending))


def apply_settings(context: ServerContext, settings: Settings, hostname: str) -> None:
    """Apply valid settings to everything in this process."""
    context.hostname = hostname
    context.admission.apply(settings.limits)
    store = context.store
    if store is not None:
        store.provisioner.apply(settings)
        store.recipients.apply(settings)
        store.authenticator.apply(settings)
        store.settings = settings
    context.settings = settings
    logs.set_level(settings.server.log_level)
    for callback in list(context.after_reload):
        callback()


async def restart_on_change(
    context: ServerContext,
    stop: asyncio.Event,
    watched: Callable[[], object],
    job: Callable[[asyncio.Event], Awaitable[None]],
) -> None:
    """Run a job until ``stop`` is set; end and restart it when the ``watched`` settings change."""
    while not stop.is_set():
        value, ended = watched(), asyncio.Event()

        def compare(value: object = value, ended: asyncio.Event = ended) -> None:
            if watched() != value:
                ended.set()

        context.after_reload.append(compare)
        stopping = asyncio.create_task(_set_after(stop, ended))
        try:
            await job(ended)
            if not ended.is_set():  # with these settings the job has nothing to do
                await ended.wait()
        finally:
            stopping.cancel()
            context.after_reload.remove(compare)


async def _set_after(stop: asyncio.Event, ended: asyncio.Event) -> None:
    await stop.wait()
    ended.set()


def _join(paths: list[SettingPath]) -> str:
    return ", ".join(".".join(path) for path in paths)
