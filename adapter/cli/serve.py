"""``markpost serve``: mail over the network."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from adapter import config
from adapter.cli.failures import CommandError
from adapter.cli.options import root_option
from adapter.config import ConfigError
from adapter.servers import endpoints, logs, runtime
from adapter.servers.endpoints import Endpoint
from adapter.servers.listeners import IMPLICIT_TLS, LISTENERS
from adapter.servers.tls import TlsError
from adapter.settings import Listen, Settings
from protocol.errors import MailError, Reason

_KINDS = {
    "imap": "IMAP, with STARTTLS.",
    "imaps": "IMAP with TLS from the start.",
    "smtp": "SMTP from other servers (MX): for local recipients only.",
    "submission": "Submission by users, with STARTTLS.",
    "submissions": "Submission with TLS from the start.",
    "lmtp": "LMTP from a mail server that is trusted; also the path of a unix socket.",
}

Command = TypeVar("Command", bound=Callable[..., Any])


def _listener_options(command: Command) -> Command:
    for kind, text in reversed(_KINDS.items()):
        command = click.option(f"--{kind}", multiple=True, metavar="HOST:PORT", help=text)(command)
    return command


@click.command()
@root_option
@click.option(
    "--config", "config_file", metavar="FILE", envvar="MARKPOST_CONFIG", type=click.Path(), help="The configuration."
)
@_listener_options
@click.option("--allow-plaintext-auth", is_flag=True, help="Let clients log in without TLS from anywhere.")
def serve(root: str, config_file: str | None, allow_plaintext_auth: bool, **listeners: Sequence[str]) -> None:
    """Serve the store until SIGTERM. Prints one line for each listener, and "ready"."""
    if not os.path.isdir(root):
        raise MailError(Reason.UNKNOWN, f"{root} is not there: make a store with markpost init --root {root}")
    try:
        settings = config.load(Settings, config_file)
        if allow_plaintext_auth:
            settings = dataclasses.replace(
                settings, login=dataclasses.replace(settings.login, allow_plaintext=allow_plaintext_auth)
            )
        wanted = _wanted(settings, listeners)
        logs.to_stderr(settings.server)
        runtime.run(root, settings, wanted, click.echo)
    except (ConfigError, TlsError) as error:
        raise CommandError(str(error)) from None


def _wanted(settings: Settings, flags: dict[str, Sequence[str]]) -> list[Endpoint]:
    configured = {field.name: getattr(settings.listen, field.name) for field in dataclasses.fields(Listen)}
    chosen = flags if any(flags.values()) else {kind: configured[kind] for kind in _KINDS}
    wanted = [endpoints.parse(kind, text) for kind, texts in chosen.items() for text in texts]
    if not wanted:
        raise ConfigError(f"nothing to serve: give one of {', '.join(f'--{kind}' for kind in _KINDS)}")
    for endpoint in wanted:
        if endpoint.kind not in LISTENERS:
            raise ConfigError(f"{endpoint.kind} is not served by this version")
        if endpoint.kind in IMPLICIT_TLS and not settings.tls.certificate:
            raise ConfigError(f"{endpoint.kind} needs a certificate: set certificate and key in [tls]")
    return wanted
