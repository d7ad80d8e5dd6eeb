"""``markpost init``, ``snapshot`` and ``maintenance``: create a store, compact its journal, take mail offline."""

from __future__ import annotations

import json
import os

import click

from adapter.cli.failures import EX_REFUSED, CommandError
from adapter.cli.options import open_store, root_option
from adapter.maintenance import gate
from adapter.transport.transport import create_store


@click.command()
@root_option
def init(root: str) -> None:
    """Create an empty store in a new or empty directory."""
    if os.path.isdir(root) and os.listdir(root):
        raise CommandError(f"{root} is not empty: give a new or empty directory")
    create_store(root)
    click.echo(f"created a store in {root}; next: markpost account add ADDRESS --root {root}")


@click.command(short_help="Write a snapshot and compact the journal.")
@root_option
def snapshot(root: str) -> None:
    """Write the mutable tables to a Parquet snapshot and drop the journal files that it replaces.

    Prints the number of the last record in the snapshot. A running server does this by itself when the journal has
    grown.
    """
    with open_store(root) as transport:
        click.echo(transport.snapshot())


_deadline_option = click.option(
    "--deadline",
    metavar="SECONDS",
    default=gate.DRAIN_SECONDS,
    show_default=True,
    help="How long to wait for servers to shut down.",
)


def _not_offline(error: gate.NotOffline) -> CommandError:
    return CommandError(f"mail is not offline: {error}; stop it, or give it a longer --deadline", EX_REFUSED)


@click.group()
def maintenance() -> None:
    """Take mail offline, bring it back, or show the status."""


@maintenance.command(short_help="Take mail offline.")
@root_option
@click.option("--reason", default="maintenance", show_default=True, help="Shown to clients and other operators.")
@click.option("--until", default="", metavar="TIME", help="When mail is expected back; shown to people.")
@_deadline_option
def on(root: str, reason: str, until: str, deadline: float) -> None:
    """Take mail offline; returns when no process has the store open."""
    try:
        marker = gate.turn_on(root, reason=reason, until=until, deadline=deadline)
    except gate.NotOffline as error:
        raise _not_offline(error) from None
    click.echo(f"offline: {marker}")


@maintenance.command()
@root_option
def off(root: str) -> None:
    """Bring mail back."""
    click.echo("mail is back" if gate.turn_off(root) else "mail was not offline")


@maintenance.command(short_help="Show the status.")
@root_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(root: str, as_json: bool) -> None:
    """Show whether mail is offline and which processes have the store open."""
    marker, holders = gate.status(root)
    if as_json:
        click.echo(json.dumps({"offline": marker is not None, "marker": str(marker or ""), "open_by": holders}))
        return
    click.echo(f"offline: {marker}" if marker else "online")
    for holder in holders:
        click.echo(f"open by {holder}")
