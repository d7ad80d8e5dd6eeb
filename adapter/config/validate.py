"""What is wrong with settings that are well-formed: networks, addresses, endpoints and files they name.

Everything is told at once, each with the path of the setting, before anything is started or changed.
"""

from __future__ import annotations

import dataclasses
import os
import urllib.parse
from collections.abc import Iterator

from adapter.accounts import password_schemes
from adapter.config import hooks, loader
from adapter.config import mirror as upstreams
from adapter.config.loader import ConfigError
from adapter.config.locations import Path
from adapter.config.schema import Settings
from adapter.net import endpoints
from adapter.net.networks import Networks
from adapter.net.tls import check_files
from adapter.server.listeners import IMPLICIT_TLS, LISTENERS
from adapter.sessions.budgets import WEIGHTS, share_out
from adapter.store import names
from protocol.errors import MailError
from protocol.sasl import mechanisms

Problem = tuple[Path, str]

#: With nothing of it there would be no mail, or no end of trying.
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
#: Besides those whose names end in ``_from``.
_NETWORKS = (("limits", "exempt"), ("lmtp", "trusted"))


def problems(settings: Settings) -> Iterator[Problem]:
    yield from _listeners(settings)
    yield from _metrics(settings)
    yield from _networks(settings)
    yield from _budgets(settings)
    yield from _addresses(settings)
    yield from _login(settings)
    for path, text in check_files(settings.tls):
        yield ("tls", *path), text
    yield from _dovecot(settings)
    yield from _relay(settings)
    for name, upstream in settings.upstream.items():
        for key, text in upstreams.problems(name, upstream):
            yield ("upstream", name, *([key] if key else [])), text
    for name, hook in settings.hook.items():
        for key, text in hooks.problems(name, hook):
            yield ("hook", name, *([key] if key else [])), text
    for section, keys in _NEVER_ZERO.items():
        for key in keys:
            if not getattr(getattr(settings, section), key):
                yield (section, key), "must be more than 0"


def _listeners(settings: Settings) -> Iterator[Problem]:
    for kind in LISTENERS:
        texts: tuple[str, ...] = getattr(settings.listen, kind)
        for text in texts:
            try:
                endpoints.parse(kind, text)
            except ConfigError as error:
                yield ("listen", kind), str(error)
        if texts and kind in IMPLICIT_TLS and not settings.tls.certificate:
            yield ("listen", kind), "needs a certificate: set certificate and key in [tls]"


def _metrics(settings: Settings) -> Iterator[Problem]:
    if settings.metrics.listen:
        try:
            endpoints.parse("metrics", settings.metrics.listen)
        except ConfigError as error:
            yield ("metrics", "listen"), str(error)


def _networks(settings: Settings) -> Iterator[Problem]:
    for section in dataclasses.fields(settings):
        kept = getattr(settings, section.name)
        for key in loader.fields_of(type(kept)) if dataclasses.is_dataclass(kept) else ():
            if key.endswith("_from") or (section.name, key) in _NETWORKS:
                try:
                    Networks(getattr(kept, key))
                except ConfigError as error:
                    yield (section.name, key), str(error)


def _budgets(settings: Settings) -> Iterator[Problem]:
    try:
        share_out(settings.limits, WEIGHTS)
    except ConfigError as error:
        yield ("limits", "connections"), str(error)


def _addresses(settings: Settings) -> Iterator[Problem]:
    listed: list[tuple[Path, str]] = [(("account", address), address) for address in settings.account]
    listed += [(("domains", "catch_all", domain), address) for domain, address in settings.domains.catch_all.items()]
    if settings.domains.postmaster:
        listed.append((("domains", "postmaster"), settings.domains.postmaster))
    for alias, members in settings.aliases.items():
        listed += [(("aliases", alias), each) for each in (alias, *members)]
    for path, address in listed:
        try:
            names.normalise_address(address)
        except MailError:
            yield path, f"{address!r} is not an address"


def _login(settings: Settings) -> Iterator[Problem]:
    login = settings.login
    for name in login.mechanisms:
        if name.upper() not in mechanisms.MECHANISMS:
            yield ("login", "mechanisms"), f"{name!r} is not one of {', '.join(mechanisms.MECHANISMS)}"
    if login.token_url and urllib.parse.urlsplit(login.token_url).scheme not in ("http", "https"):
        yield ("login", "token_url"), "must be an http or https URL"


def _dovecot(settings: Settings) -> Iterator[Problem]:
    dovecot = settings.dovecot
    if dovecot.passwd_file and not os.access(dovecot.passwd_file, os.R_OK):
        yield ("dovecot", "passwd_file"), f"{dovecot.passwd_file} cannot be read"
    if not password_schemes.is_supported(dovecot.scheme):
        yield ("dovecot", "scheme"), f"{dovecot.scheme!r} is not supported"
    for key in ("auth_socket", "userdb_socket"):
        where: str = getattr(dovecot, key)
        if where:
            try:
                endpoints.parse(key, where)
            except ConfigError as error:
                yield ("dovecot", key), str(error)
    if dovecot.domain:
        try:
            names.normalise_address(f"postmaster@{dovecot.domain}")
        except MailError:
            yield ("dovecot", "domain"), f"{dovecot.domain!r} is not a domain"


def _relay(settings: Settings) -> Iterator[Problem]:
    relay = settings.relay
    if not 1 <= relay.port <= 65535:
        yield ("relay", "port"), "must be from 1 to 65535"
    for key in ("ca_file", "password_file", "certificate", "key"):
        name: str = getattr(relay, key)
        if name and not os.access(name, os.R_OK):
            yield ("relay", key), f"{name} cannot be read"
