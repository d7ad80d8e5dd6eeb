"""``markpost config`` and ``markpost autoconfig``: what the configuration says, and what mail clients need from it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import click

from adapter.cli.failures import EX_FAILURE, CommandError
from adapter.cli.serve_options import read_settings, settings_options
from adapter.config import render
from adapter.config.loader import ConfigError
from adapter.server import autoconfig as formats
from adapter.server.autoconfig import ClientSetup


@click.group(name="config", short_help="Check or show the configuration.")
def configuration() -> None:
    """Check the configuration, or show the settings in force.

    File, environment and flags are read as "markpost serve" reads them.
    """


@configuration.command()
@settings_options
@click.pass_context
def check(context: click.Context, /, config_file: str | None, **flags: Any) -> None:
    """Report every mistake with its file and line. Exit status 0: no mistakes."""
    try:
        read_settings(config_file, flags)
    except ConfigError as error:
        for line in error.problems:
            click.echo(line, err=True)
        context.exit(EX_FAILURE)
    click.echo(f"{config_file or 'the defaults and the environment'}: no mistakes")


@configuration.command()
@settings_options
def show(config_file: str | None, **flags: Any) -> None:
    """Print every setting and where it comes from, as TOML. Passwords are masked."""
    try:
        loaded = read_settings(config_file, flags)
    except ConfigError as error:
        raise CommandError(str(error)) from None
    click.echo(render.render(loaded), nl=False)


_FORMATS: dict[str, tuple[str, Callable[[ClientSetup], str]]] = {
    "thunderbird": (
        "Thunderbird: publish as https://autoconfig.{0}/mail/config-v1.1.xml",
        formats.thunderbird,
    ),
    "apple": ("Apple Mail: save as {0}.mobileconfig and open it on the device", formats.apple),
    "srv": ("DNS: add to the zone {0}", formats.records),
}


@click.command(short_help="Print settings for mail clients.")
@click.argument("address")
@click.option("--format", "only", type=click.Choice(list(_FORMATS)), help="Print only this format, without a title.")
@click.option("--host", metavar="NAME", help="The server's name as clients reach it. [default: server.hostname]")
@settings_options
def autoconfig(address: str, only: str | None, host: str | None, config_file: str | None, **flags: Any) -> None:
    """Print the settings for a mail client of ADDRESS: Thunderbird autoconfiguration, Apple profile, SRV records.

    The ports are those of the configuration; if it has no listener for a protocol, the standard ports with TLS.
    """
    try:
        settings = read_settings(config_file, flags).settings
    except ConfigError as error:
        raise CommandError(str(error)) from None
    host = host or settings.server.hostname or socket.getfqdn()
    client = formats.client_setup(address, settings, host)
    if "." not in host or host.startswith("localhost."):
        click.echo(f"markpost: other machines cannot find this server as {host!r}: give its name with --host", err=True)
    if only is not None:
        click.echo(_FORMATS[only][1](client), nl=False)
        return
    for number, (title, render_format) in enumerate(_FORMATS.values()):
        click.echo(("\n" if number else "") + f"# {title.format(client.domain)}\n\n" + render_format(client), nl=False)
