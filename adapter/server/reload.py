"""Settings and certificates change while the server runs: on SIGHUP, and certificates also when their files do.

Invariants: no session is dropped. Settings are taken over whole or not at all: a mistake in the new ones is told in one
line, and the old ones stay. What can only change with a restart stays as it is and is named. A transaction of SMTP
that has begun goes on under the limits it began with; everything else holds at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from adapter.config.loader import ConfigError
from adapter.config.locations import Path
from adapter.config.schema import Settings
from adapter.net.tls import TlsError
from adapter.observability import logging as logs
from adapter.server.service_manager import Overseer
from adapter.sessions.context import ServerContext

_log = logging.getLogger(__name__)

_LOOK = 5.0  # seconds between looks at the files of certificates

#: Sections that can change while running, and single settings of others; everything else waits for a restart.
_LIVE_SECTIONS = frozenset(
    {
        "tls",
        "login",
        "dovecot",
        "limits",
        "imap",
        "smtp",
        "submission",
        "lmtp",
        "domains",
        "aliases",
        "quota",
        "account",
        "relay",
        "upstream",
        "hook",
    }
)
_LIVE = frozenset({("server", "hostname"), ("server", "drain"), ("server", "log_level")})
_RESTART = frozenset({("login", "threads")})


class SettingsSource:
    """What a server was started with, and how to read it again: ``reread`` checks it too, and raises ConfigError."""

    def __init__(self, reread: Callable[[], Settings]) -> None:
        self.reread = reread
        self.started_with = reread()

    def latest(self) -> Settings:
        """For a worker that replaces another: as they are now, in so far as they can change without a restart."""
        try:
            wanted = self.reread()
        except ConfigError as error:
            _log.error("a worker goes by the settings the server was started with: %s", error)
            return self.started_with
        return _take_over(self.started_with, wanted, filter(_is_live, _changes(self.started_with, wanted)))


class Reloader:
    def __init__(self, services: ServerContext, source: SettingsSource, overseer: Overseer | None = None) -> None:
        self._services = services
        self._source = source
        self._overseer = overseer or Overseer()
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Read the settings again, soon."""
        self._overseer.reloading()
        self._asked.set()

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_LOOK):
                    await self._asked.wait()
            except TimeoutError:
                await self._look_at_certificates()
                continue
            self._asked.clear()
            try:
                await self.reload()
            except Exception:
                _log.exception("the settings could not be taken over")
            self._overseer.reloaded()

    async def _look_at_certificates(self) -> None:
        try:
            if await asyncio.to_thread(self._services.certificates.reload_if_changed):
                _log.info("certificates read again: their files have changed")
        except TlsError as error:
            _log.error("certificates stay as they are: %s", error)

    async def reload(self) -> None:
        services = self._services
        before = services.settings
        try:
            wanted = await asyncio.to_thread(self._source.reread)
            await asyncio.to_thread(services.certificates.apply, wanted.tls)
        except (ConfigError, TlsError) as error:
            _log.error("the settings stay as they are: %s", error)
            return
        changes = list(_changes(before, wanted))
        live = [path for path in changes if _is_live(path)]
        settings = _take_over(before, wanted, live)
        hostname = settings.server.hostname or await asyncio.to_thread(socket.getfqdn)
        apply(services, settings, hostname)
        _log.info("settings and certificates read again: %s", _told(live) if live else "no setting has changed")
        waiting = [path for path in changes if path not in live]
        if waiting:
            _log.warning("a restart is needed for: %s", _told(waiting))


def apply(services: ServerContext, settings: Settings, hostname: str) -> None:
    """Everything goes by these settings from now on. They have been checked."""
    services.hostname = hostname
    services.admission.apply(settings.limits)
    store = services.store
    if store is not None:
        store.newcomers.apply(settings)
        store.recipients.apply(settings)
        store.authenticator.apply(settings)
        store.settings = settings
    services.settings = settings
    logs.set_level(settings.server.log_level)
    for told in list(services.after_reload):
        told()


async def run_anew_when_changed(
    services: ServerContext,
    stop: asyncio.Event,
    concerns: Callable[[], object],
    job: Callable[[asyncio.Event], Awaitable[None]],
) -> None:
    """Run a job until ``stop``; what it gets is also set, and it runs again, when what ``concerns`` it has changed."""
    while not stop.is_set():
        seen, ended = concerns(), asyncio.Event()

        def look(seen: object = seen, ended: asyncio.Event = ended) -> None:
            if concerns() != seen:
                ended.set()

        services.after_reload.append(look)
        stopping = asyncio.create_task(_pass_on(stop, ended))
        try:
            await job(ended)
            if not ended.is_set():  # it has nothing to do as things are
                await ended.wait()
        finally:
            stopping.cancel()
            services.after_reload.remove(look)


async def _pass_on(stop: asyncio.Event, ended: asyncio.Event) -> None:
    await stop.wait()
    ended.set()


def _changes(before: Settings, after: Settings) -> Iterator[Path]:
    """The paths of settings that differ: ``section`` for tables of the user's own names, else ``section.setting``."""
    for section in dataclasses.fields(Settings):
        old, new = getattr(before, section.name), getattr(after, section.name)
        if old == new:
            continue
        if not dataclasses.is_dataclass(new):
            yield (section.name,)
            continue
        for setting in dataclasses.fields(new):
            if getattr(old, setting.name) != getattr(new, setting.name):
                yield section.name, setting.name


def _is_live(path: Path) -> bool:
    return path in _LIVE or (path[0] in _LIVE_SECTIONS and path not in _RESTART)


def _take_over(before: Settings, after: Settings, live: Iterable[Path]) -> Settings:
    sections: dict[str, Any] = {}
    for path in live:
        name = path[0]
        if len(path) == 1:
            sections[name] = getattr(after, name)
        else:
            value = getattr(getattr(after, name), path[1])
            section = sections.get(name, getattr(before, name))
            sections[name] = dataclasses.replace(section, **{path[1]: value})
    return dataclasses.replace(before, **sections)


def _told(paths: list[Path]) -> str:
    return ", ".join(".".join(path) for path in paths)
