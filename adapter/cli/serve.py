"""``markpost serve``: serve the store over the network."""

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
from adapter.config.schema import IMPLICIT_TLS_LISTENERS, METRICS_LISTENER, Settings
from adapter.net import endpoints
from adapter.net.endpoints import Endpoint
from adapter.net.tls import TlsError
from adapter.observability import logging
from adapter.server import serve as runtime
from adapter.server.settings import SettingsSource
from adapter.server.socket_activation import inherited_sockets
from adapter.transport.recovery import opening


@click.command(short_help="Serve the store: IMAP, submission, SMTP, LMTP.")
@root_option
@settings_options
def serve(root: str, config_file: str | None, **flags: Any) -> None:
    """Serve the store until SIGTERM. Prints one line for each listener, then "ready".

    SIGHUP reloads the configuration and the certificates.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nothing to reload before the server has started
    with contextlib.closing(opening.open_root(root)) as directories:
        opening.check_version(directories)
        opening.refuse_superuser(directories)
    try:
        source = SettingsSource(lambda: read_settings(config_file, flags).settings)
        inherited = inherited_sockets([*LISTENER_KINDS, METRICS_LISTENER])
        endpoints_to_open = _endpoints_to_open(source.at_start, {listener.endpoint.kind for listener in inherited})
        server = source.at_start.server
        logging.to_stderr(server.log_level, server.log_format)
        runtime.run(root, source, endpoints_to_open, click.echo, inherited)
    except (ConfigError, TlsError) as error:
        raise CommandError(str(error)) from None


def _endpoints_to_open(settings: Settings, inherited_kinds: Collection[str]) -> list[Endpoint]:
    """Return the configured endpoints, without the kinds of listeners that the service manager has handed over."""
    for kind in IMPLICIT_TLS_LISTENERS.intersection(inherited_kinds):
        if not settings.tls.certificate:
            raise ConfigError(f"{kind} needs a certificate: set certificate and key in [tls]")
    addresses = {kind: getattr(settings.listen, kind) for kind in LISTENER_KINDS}
    if not any(addresses.values()) and not set(inherited_kinds) & set(LISTENER_KINDS):
        raise ConfigError(f"nothing to serve: give one of {', '.join(f'--{kind}' for kind in LISTENER_KINDS)}")
    if settings.metrics.listen:
        addresses[METRICS_LISTENER] = (settings.metrics.listen,)
    return [
        endpoints.parse(kind, text)
        for kind, texts in addresses.items()
        if kind not in inherited_kinds
        for text in texts
    ]
