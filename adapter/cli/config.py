"""``markpost config``: is the configuration right, and what is in force?"""

from __future__ import annotations

from typing import Any

import click

from adapter.cli.failures import FAILED, CommandError
from adapter.cli.serve_options import read_settings, settings_options
from adapter.config import render
from adapter.config.loader import ConfigError


@click.group(name="config", short_help="Check the configuration, or show what is in force.")
def configuration() -> None:
    """Check the configuration, or show what is in force.

    File, environment and flags are read as "markpost serve" reads them.
    """


@configuration.command()
@settings_options
@click.pass_context
def check(context: click.Context, /, config_file: str | None, **given: Any) -> None:
    """Name every mistake with its file and line. Exit status 0: there is none."""
    try:
        read_settings(config_file, given)
    except ConfigError as error:
        for line in error.problems:
            click.echo(line, err=True)
        context.exit(FAILED)
    click.echo(f"{config_file or 'the defaults and the environment'}: no mistakes")


@configuration.command()
@settings_options
def show(config_file: str | None, **given: Any) -> None:
    """Print every setting and where it comes from, as TOML. Passwords are masked."""
    try:
        loaded = read_settings(config_file, given)
    except ConfigError as error:
        raise CommandError(str(error)) from None
    click.echo(render.render(loaded), nl=False)
