"""Options of ``markpost serve`` that override settings, shared by ``config`` and ``autoconfig``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from adapter.cli.options import config_option
from adapter.config.loader import CommandFlag, Loaded
from adapter.config.locations import SettingPath
from adapter.config.schema import Settings
from adapter.server.settings import load_valid

LISTENER_KINDS = {
    "imap": "IMAP with STARTTLS.",
    "imaps": "IMAP with implicit TLS.",
    "smtp": "SMTP from other servers (MX), for local recipients only.",
    "submission": "Submission with STARTTLS.",
    "submissions": "Submission with implicit TLS.",
    "lmtp": "LMTP from a trusted mail server; or the path of a unix socket.",
}

Command = TypeVar("Command", bound=Callable[..., Any])


def settings_options(command: Command) -> Command:
    """Add ``--config`` and every flag of ``serve`` that overrides a setting; pass them to :func:`read_settings`."""
    command = click.option("--allow-plaintext-auth", is_flag=True, help="Allow logins without TLS from any address.")(
        command
    )
    command = click.option("--workers", type=click.IntRange(1), metavar="N", help="Number of worker processes.")(
        command
    )
    for kind, text in reversed(LISTENER_KINDS.items()):
        command = click.option(f"--{kind}", multiple=True, metavar="HOST:PORT", help=text)(command)
    return config_option(command)


def read_settings(config_file: str | None, flags: Mapping[str, Any]) -> Loaded[Settings]:
    """Read file, environment and flags. Raises ConfigError, which lists every mistake."""
    return load_valid(config_file, _overrides(flags))


def _overrides(flags: Mapping[str, Any]) -> dict[SettingPath, CommandFlag]:
    """Map flags to settings; any listener flag replaces all configured listeners."""
    overrides: dict[SettingPath, CommandFlag] = {}
    if any(flags[kind] for kind in LISTENER_KINDS):
        overrides = {("listen", kind): CommandFlag(f"--{kind}", list(flags[kind])) for kind in LISTENER_KINDS}
    if flags["allow_plaintext_auth"]:
        overrides["login", "allow_plaintext"] = CommandFlag("--allow-plaintext-auth", value=True)
    if flags["workers"] is not None:
        overrides["server", "workers"] = CommandFlag("--workers", value=flags["workers"])
    return overrides
