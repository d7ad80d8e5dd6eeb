"""``markpost serve``: mail over the network."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Collection
from typing import Any

import click

from adapter.cli.failures import CommandError
from adapter.cli.options import root_option
from adapter.cli.serve_options import LISTENER_KINDS, read_settings, settings_options
from adapter.config.loader import ConfigError
from adapter.config.schema import Settings
from adapter.net import endpoints
from adapter.net.endpoints import Endpoint
from adapter.net.tls import TlsError
from adapter.observability import logging
from adapter.server import serve as runtime
from adapter.server import socket_activation
from adapter.server.listeners import IMPLICIT_TLS
from adapter.server.metrics_http import HEALTH
from adapter.server.reload import SettingsSource
from adapter.transport.recovery import opening, ownership


@click.command(short_help="Serve the store: IMAP, submission, SMTP, LMTP.")
@root_option
@settings_options
def serve(root: str, config_file: str | None, **given: Any) -> None:
    """Serve the store until SIGTERM. Prints one line for each listener, and "ready".

    SIGHUP reads the configuration again.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # while it begins there is nothing to be read again
    with contextlib.closing(opening.open_root(root)) as directories:
        opening.check_version(directories)
        ownership.refuse_superuser(directories)
    try:
        source = SettingsSource(lambda: read_settings(config_file, given).settings)
        handed = socket_activation.take([*LISTENER_KINDS, HEALTH])
        wanted = _wanted(source.started_with, {listener.endpoint.kind for listener in handed})
        logging.to_stderr(source.started_with.server)
        runtime.run(root, source, wanted, click.echo, handed)
    except (ConfigError, TlsError) as error:
        raise CommandError(str(error)) from None


def _wanted(settings: Settings, handed: Collection[str]) -> list[Endpoint]:
    """What has to be opened: kinds of listeners that were handed to us are there already."""
    for kind in IMPLICIT_TLS.intersection(handed):
        if not settings.tls.certificate:
            raise ConfigError(f"{kind} needs a certificate: set certificate and key in [tls]")
    listed = {kind: getattr(settings.listen, kind) for kind in LISTENER_KINDS}
    if not any(listed.values()) and not set(handed) & set(LISTENER_KINDS):
        raise ConfigError(f"nothing to serve: give one of {', '.join(f'--{kind}' for kind in LISTENER_KINDS)}")
    if settings.metrics.listen:
        listed[HEALTH] = (settings.metrics.listen,)
    return [endpoints.parse(kind, text) for kind, texts in listed.items() if kind not in handed for text in texts]
