"""The options that make up a server's settings: a file, the environment, and flags that replace what they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from adapter.cli.options import config_option
from adapter.config import loader, validate
from adapter.config.loader import Flag, Loaded
from adapter.config.locations import Path
from adapter.config.schema import Settings

LISTENER_KINDS = {
    "imap": "IMAP, with STARTTLS.",
    "imaps": "IMAP with TLS from the start.",
    "smtp": "SMTP from other servers (MX): for local recipients only.",
    "submission": "Submission by users, with STARTTLS.",
    "submissions": "Submission with TLS from the start.",
    "lmtp": "LMTP from a mail server that is trusted; also the path of a unix socket.",
}

Command = TypeVar("Command", bound=Callable[..., Any])


def settings_options(command: Command) -> Command:
    """``--config`` and every flag of ``serve`` that stands for a setting; :func:`read_settings` takes them all."""
    command = click.option(
        "--allow-plaintext-auth", is_flag=True, help="Let clients log in without TLS from anywhere."
    )(command)
    command = click.option("--workers", type=click.IntRange(1), metavar="N", help="Processes that serve together.")(
        command
    )
    for kind, text in reversed(LISTENER_KINDS.items()):
        command = click.option(f"--{kind}", multiple=True, metavar="HOST:PORT", help=text)(command)
    return config_option(command)


def read_settings(config_file: str | None, given: Mapping[str, Any]) -> Loaded[Settings]:
    """Raises ConfigError with everything that is wrong."""
    loaded = loader.read(Settings, config_file, flags=_flags(given))
    trouble = loaded.error(validate.problems(loaded.settings))
    if trouble is not None:
        raise trouble
    return loaded


def _flags(given: Mapping[str, Any]) -> dict[Path, Flag]:
    """One listener on the command line replaces all of the configuration's."""
    flags: dict[Path, Flag] = {}
    if any(given[kind] for kind in LISTENER_KINDS):
        flags = {("listen", kind): Flag(f"--{kind}", list(given[kind])) for kind in LISTENER_KINDS}
    if given["allow_plaintext_auth"]:
        flags["login", "allow_plaintext"] = Flag("--allow-plaintext-auth", value=True)
    if given["workers"] is not None:
        flags["server", "workers"] = Flag("--workers", value=given["workers"])
    return flags
