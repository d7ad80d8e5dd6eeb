"""Settings of a server: load and validate them, load them again, and decide which changes need a restart.

Invariant: settings are taken over completely or not at all.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from adapter.accounts import password_schemes
from adapter.config import loader, validate
from adapter.config.loader import CommandFlag, ConfigError, Loaded
from adapter.config.locations import SettingPath
from adapter.config.schema import Settings
from adapter.config.validate import Problem, ValueRules
from adapter.store import names

_log = logging.getLogger(__name__)

VALUE_RULES = ValueRules(names.normalise_address, names.normalise_folder, password_schemes.is_supported)

#: Sections that can change while running; everything else, but for the settings of ``_LIVE``, needs a restart.
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
        "retention",
        "account",
        "relay",
        "upstream",
        "hook",
    }
)
_LIVE = frozenset({("server", "hostname"), ("server", "drain"), ("server", "log_level")})
_NEEDS_RESTART = frozenset({("login", "threads")})


def problems(settings: Settings) -> Iterator[Problem]:
    """Yield what is wrong with well-formed settings."""
    return validate.problems(settings, VALUE_RULES)


def load_valid(path: str | None, flags: Mapping[SettingPath, CommandFlag] | None = None) -> Loaded[Settings]:
    """Load the configuration file, the environment and flags. Raises ConfigError with every problem."""
    loaded = loader.read(Settings, path, flags=flags)
    error = loaded.error(problems(loaded.settings))
    if error is not None:
        raise error
    return loaded


class SettingsSource:
    """The settings at the start, and how to load them again: ``load`` validates them, and raises ConfigError."""

    def __init__(self, load: Callable[[], Settings]) -> None:
        self.load = load
        self.at_start = load()

    def latest(self) -> Settings:
        """Return the current settings for a new worker, without the changes that need a restart of the server."""
        try:
            loaded = self.load()
        except ConfigError as error:
            _log.error("reload failed; new worker keeps the start-up settings: %s", error)
            return self.at_start
        live = [path for path in changed_settings(self.at_start, loaded) if is_live(path)]
        return merge_settings(self.at_start, loaded, live)


def changed_settings(before: Settings, after: Settings) -> Iterator[SettingPath]:
    """Yield the paths that differ: ``section`` for tables with names of the user's own, else ``section.setting``."""
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


def is_live(path: SettingPath) -> bool:
    """Return whether a setting can change without a restart."""
    return path in _LIVE or (path[0] in _LIVE_SECTIONS and path not in _NEEDS_RESTART)


def merge_settings(before: Settings, after: Settings, paths: Iterable[SettingPath]) -> Settings:
    """Return ``before`` with the settings of these paths taken from ``after``."""
    sections: dict[str, Any] = {}
    for path in paths:
        name = path[0]
        if len(path) == 1:
            sections[name] = getattr(after, name)
        else:
            value = getattr(getattr(after, name), path[1])
            section = sections.get(name, getattr(before, name))
            sections[name] = dataclasses.replace(section, **{path[1]: value})
    return dataclasses.replace(before, **sections)
