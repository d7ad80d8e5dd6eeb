"""``markpost autoconfig``: settings for mail clients."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import click

from adapter.cli.failures import CommandError
from adapter.cli.serve_options import read_settings, settings_options
from adapter.config.loader import ConfigError
from adapter.server import autoconfig as formats
from adapter.server.autoconfig import Client

_FORMATS: dict[str, tuple[str, Callable[[Client], str]]] = {
    "thunderbird": (
        "Thunderbird: publish as https://autoconfig.{0}/mail/config-v1.1.xml",
        formats.thunderbird,
    ),
    "apple": ("Apple Mail: save as {0}.mobileconfig and open it on the device", formats.apple),
    "srv": ("DNS: add to the zone {0}", formats.records),
}


@click.command(short_help="What mail clients want to know of this server.")
@click.argument("address")
@click.option("--format", "wanted", type=click.Choice(list(_FORMATS)), help="Only this, with nothing around it.")
@click.option("--host", metavar="NAME", help="What clients call this server. [default: server.hostname]")
@settings_options
def autoconfig(address: str, wanted: str | None, host: str | None, config_file: str | None, **given: Any) -> None:
    """Print what a mail client of ADDRESS needs: Thunderbird's autoconfiguration, Apple's profile, SRV records.

    The ports are those the configuration listens on; where there are none, the usual ones with TLS.
    """
    try:
        settings = read_settings(config_file, given).settings
    except ConfigError as error:
        raise CommandError(str(error)) from None
    host = host or settings.server.hostname or socket.getfqdn()
    made = formats.client(address, settings, host)
    if "." not in host or host.startswith("localhost."):
        click.echo(f"markpost: nobody else finds this server as {host!r}: give its name with --host", err=True)
    if wanted is not None:
        click.echo(_FORMATS[wanted][1](made), nl=False)
        return
    for number, (title, render) in enumerate(_FORMATS.values()):
        click.echo(("\n" if number else "") + f"# {title.format(made.domain)}\n\n" + render(made), nl=False)
