"""Validation of well-formed settings: the networks, addresses, endpoints and files they name.

Every problem is reported at once, with the path of its setting, before anything is started or changed.
"""

from __future__ import annotations

import dataclasses
import os
import re
import urllib.parse
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from adapter.config import loader
from adapter.config.locations import SettingPath
from adapter.config.schema import (
    IMPLICIT_TLS_LISTENERS,
    LISTENERS,
    METRICS_LISTENER,
    HookSettings,
    Limits,
    Settings,
    UpstreamSettings,
)
from adapter.net import endpoints, http
from adapter.net.networks import Networks
from adapter.net.tls import check_files
from protocol.errors import MailError
from protocol.sasl import mechanisms

Problem = tuple[SettingPath, str]
#: A problem of one section: its setting (empty: the section itself), and the text.
SectionProblem = tuple[str, str]

_SECTION_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")

#: Settings without which mail would stop, or retries would never pause.
_NEVER_ZERO: dict[str, tuple[str, ...]] = {
    "server": ("workers", "threads"),
    "listen": ("backlog",),
    "tls": ("handshake",),
    "login": ("threads", "waiting", "token_timeout"),
    "dovecot": ("timeout",),
    "limits": (
        "connections",
        "connections_per_ip",
        "connections_per_user",
        "message_size",
        "header_size",
        "recipients",
        "hops",
        "commands_without_mail",
        "busy_login_time",
        "first_command",
        "idle",
        "data_idle",
    ),
    "imap": (
        "login_time",
        "idle",
        "keep_alive",
        "send",
        "progress",
        "bad_commands",
        "append_messages",
        "folders",
        "keyword_length",
    ),
    "relay": (
        "connections",
        "recipients",
        "connect",
        "command",
        "accept",
        "first_retry",
        "longest_retry",
        "expire_after",
    ),
}
#: Lists of networks, besides the settings that end in ``_from``.
_NETWORKS = (("limits", "exempt"), ("lmtp", "trusted"))


@dataclass(frozen=True, slots=True)
class ValueRules:
    """Checks that belong to features. They are passed in, because configuration imports no feature."""

    normalise_address: Callable[[str], str]  # raises MailError
    normalise_folder: Callable[[str], str]  # raises MailError
    is_password_scheme: Callable[[str], bool]

    def is_address(self, text: str) -> bool:
        return _is_accepted(self.normalise_address, text)

    def is_folder(self, text: str) -> bool:
        return _is_accepted(self.normalise_folder, text)


def _is_accepted(normalise: Callable[[str], str], text: str) -> bool:
    try:
        normalise(text)
    except MailError:
        return False
    return True


def problems(settings: Settings, rules: ValueRules) -> Iterator[Problem]:
    """Yield every problem of the settings."""
    yield from _listeners(settings)
    yield from _metrics(settings)
    yield from _networks(settings)
    yield from _budgets(settings)
    yield from _addresses(settings, rules)
    yield from _retention(settings, rules)
    yield from _login(settings)
    for path, text in check_files(settings.tls):
        yield ("tls", *path), text
    yield from _dovecot(settings, rules)
    yield from _relay(settings)
    for name, upstream in settings.upstream.items():
        for key, text in upstream_problems(name, upstream, rules):
            yield ("upstream", name, *([key] if key else [])), text
    for name, hook in settings.hook.items():
        for key, text in hook_problems(name, hook, rules):
            yield ("hook", name, *([key] if key else [])), text
    for section, keys in _NEVER_ZERO.items():
        for key in keys:
            if not getattr(getattr(settings, section), key):
                yield (section, key), "must be more than 0"


def upstream_problems(name: str, settings: UpstreamSettings, rules: ValueRules) -> Iterator[SectionProblem]:
    """Yield the problems of a section ``[upstream.NAME]``."""
    if not _SECTION_NAME.fullmatch(name):
        yield "", "must be named with letters, digits, '_', '-' and '.'"
    for key in ("host", "user", "account"):
        if not getattr(settings, key):
            yield key, "is needed"
    if not 1 <= settings.port <= 65535:
        yield "port", "must be from 1 to 65535"
    for key in ("poll", "timeout", "first_retry", "longest_retry"):
        if not getattr(settings, key):
            yield key, "must be more than 0"
    if bool(settings.password) + bool(settings.password_file) + bool(settings.password_command) != 1:
        yield "password_file", "give one of password, password_file and password_command"
    for key in ("ca_file", "password_file"):
        path: str = getattr(settings, key)
        if path and not os.access(path, os.R_OK):
            yield key, f"{path} cannot be read"
    if settings.account and not rules.is_address(settings.account):
        yield "account", f"{settings.account!r} is not an address"
    for key, folder in (("prefix", settings.prefix), *(("folders", each) for each in settings.folders.values())):
        if (folder or key == "folders") and not rules.is_folder(folder):
            yield key, f"{folder!r} is not the name of a folder"


def hook_problems(name: str, settings: HookSettings, rules: ValueRules) -> Iterator[SectionProblem]:
    """Yield the problems of a section ``[hook.NAME]``."""
    if not _SECTION_NAME.fullmatch(name):
        yield "", "must be named with letters, digits, '_', '-' and '.'"
    if bool(settings.command) == bool(settings.url):
        yield "command", "give one of command and url"
    if settings.url and not http.is_web_address(settings.url):
        yield "url", "must be an http or https URL"
    path = settings.authorization_file
    if path and not os.access(path, os.R_OK):
        yield "authorization_file", f"{path} cannot be read"
    for key in ("concurrency", "timeout", "first_retry", "longest_retry"):
        if not getattr(settings, key):
            yield key, "must be more than 0"
    for address in settings.accounts:
        if not rules.is_address(address):
            yield "accounts", f"{address!r} is not an address"
    for folder in settings.folders:
        if not rules.is_folder(folder):
            yield "folders", f"{folder!r} is not the name of a folder"


def connection_budgets(limits: Limits, kinds: Collection[str]) -> dict[str, int]:
    """Return the explicit budgets of these kinds of listeners. Raises ValueError if they exceed the total."""
    budgets: dict[str, int] = {kind: number for kind in kinds if (number := getattr(limits, f"connections_{kind}"))}
    if sum(budgets.values()) > limits.connections:
        settings = ", ".join(f"connections_{kind}" for kind in budgets)
        raise ValueError(f"limits: {settings} are together more than connections = {limits.connections}")
    return budgets


def _listeners(settings: Settings) -> Iterator[Problem]:
    for kind in LISTENERS:
        texts: tuple[str, ...] = getattr(settings.listen, kind)
        for text in texts:
            try:
                endpoints.parse(kind, text)
            except ValueError as error:
                yield ("listen", kind), str(error)
        if texts and kind in IMPLICIT_TLS_LISTENERS and not settings.tls.certificate:
            yield ("listen", kind), "needs a certificate: set certificate and key in [tls]"


def _metrics(settings: Settings) -> Iterator[Problem]:
    if settings.metrics.listen:
        try:
            endpoints.parse(METRICS_LISTENER, settings.metrics.listen)
        except ValueError as error:
            yield ("metrics", "listen"), str(error)


def _networks(settings: Settings) -> Iterator[Problem]:
    for section in dataclasses.fields(settings):
        values = getattr(settings, section.name)
        for key in loader.fields_of(type(values)) if dataclasses.is_dataclass(values) else ():
            if key.endswith("_from") or (section.name, key) in _NETWORKS:
                try:
                    Networks(getattr(values, key))
                except ValueError as error:
                    yield (section.name, key), str(error)


def _budgets(settings: Settings) -> Iterator[Problem]:
    try:
        connection_budgets(settings.limits, ("imap", "submission", "smtp", "lmtp"))
    except ValueError as error:
        yield ("limits", "connections"), str(error)


def _addresses(settings: Settings, rules: ValueRules) -> Iterator[Problem]:
    listed: list[tuple[SettingPath, str]] = [(("account", address), address) for address in settings.account]
    listed += [(("domains", "catch_all", domain), address) for domain, address in settings.domains.catch_all.items()]
    if settings.domains.postmaster:
        listed.append((("domains", "postmaster"), settings.domains.postmaster))
    for alias, members in settings.aliases.items():
        listed += [(("aliases", alias), each) for each in (alias, *members)]
    for path, address in listed:
        if not rules.is_address(address):
            yield path, f"{address!r} is not an address"


def _retention(settings: Settings, rules: ValueRules) -> Iterator[Problem]:
    for folder in settings.retention.expire:
        if not rules.is_folder(folder):
            yield ("retention", "expire", folder), f"{folder!r} is not the name of a folder"


def _login(settings: Settings) -> Iterator[Problem]:
    login = settings.login
    for name in login.mechanisms:
        if name.upper() not in mechanisms.MECHANISMS:
            yield ("login", "mechanisms"), f"{name!r} is not one of {', '.join(mechanisms.MECHANISMS)}"
    if login.token_url and urllib.parse.urlsplit(login.token_url).scheme not in ("http", "https"):
        yield ("login", "token_url"), "must be an http or https URL"


def _dovecot(settings: Settings, rules: ValueRules) -> Iterator[Problem]:
    dovecot = settings.dovecot
    if dovecot.passwd_file and not os.access(dovecot.passwd_file, os.R_OK):
        yield ("dovecot", "passwd_file"), f"{dovecot.passwd_file} cannot be read"
    if not rules.is_password_scheme(dovecot.scheme):
        yield ("dovecot", "scheme"), f"{dovecot.scheme!r} is not supported"
    for key in ("auth_socket", "userdb_socket"):
        endpoint: str = getattr(dovecot, key)
        if endpoint:
            try:
                endpoints.parse(key, endpoint)
            except ValueError as error:
                yield ("dovecot", key), str(error)
    if dovecot.domain and not rules.is_address(f"postmaster@{dovecot.domain}"):
        yield ("dovecot", "domain"), f"{dovecot.domain!r} is not a domain"


def _relay(settings: Settings) -> Iterator[Problem]:
    relay = settings.relay
    if not 1 <= relay.port <= 65535:
        yield ("relay", "port"), "must be from 1 to 65535"
    for key in ("ca_file", "password_file", "certificate", "key"):
        name: str = getattr(relay, key)
        if name and not os.access(name, os.R_OK):
            yield ("relay", key), f"{name} cannot be read"
