"""``markpost serve``: mail over the network."""

from __future__ import annotations

import os
from typing import Any

import click

from adapter.cli.failures import CommandError
from adapter.cli.options import root_option
from adapter.cli.settings_options import LISTENER_KINDS, read_settings, settings_options
from adapter.config import ConfigError
from adapter.servers import endpoints, logs, runtime
from adapter.servers.endpoints import Endpoint
from adapter.servers.reload import SettingsSource
from adapter.servers.tls import TlsError
from adapter.settings import Settings
from protocol.errors import MailError, Reason


@click.command()
@root_option
@settings_options
def serve(root: str, config_file: str | None, **given: Any) -> None:
    """Serve the store until SIGTERM. Prints one line for each listener, and "ready".

    SIGHUP reads the configuration again.
    """
    if not os.path.isdir(root):
        raise MailError(Reason.UNKNOWN, f"{root} is not there: make a store with markpost init --root {root}")
    try:
        source = SettingsSource(lambda: read_settings(config_file, given).settings)
        wanted = _wanted(source.started_with)
        logs.to_stderr(source.started_with.server)
        runtime.run(root, source, wanted, click.echo)
    except (ConfigError, TlsError) as error:
        raise CommandError(str(error)) from None


def _wanted(settings: Settings) -> list[Endpoint]:
    wanted = [endpoints.parse(kind, text) for kind in LISTENER_KINDS for text in getattr(settings.listen, kind)]
    if not wanted:
        raise ConfigError(f"nothing to serve: give one of {', '.join(f'--{kind}' for kind in LISTENER_KINDS)}")
    return wanted
