"""``markpost maintenance``: take mail offline and back. ``markpost migrate``: what is done to a store of old."""

from __future__ import annotations

import json

import click

from adapter.cli.failures import CommandError
from adapter.cli.options import root_option
from adapter.maintenance import gate

REFUSED = 3


_deadline_option = click.option(
    "--deadline", metavar="SECONDS", default=gate.DEADLINE, show_default=True, help="What is in flight gets so long."
)


@click.command(short_help="Bring an older store up to date.")
@root_option
@_deadline_option
def migrate(root: str, deadline: float) -> None:
    """Bring a store that an older program made up to date; mail goes offline for that, and comes back by itself."""
    from adapter.transport.recovery import migrate as migration

    done: list[str] = []
    try:
        with gate.offline(root, reason="markpost migrate", deadline=deadline, older=True) as held:
            migration.migrate(held, done.append)
    except gate.NotOffline as error:
        raise CommandError(f"mail is not offline: {error}; stop it, or give it a longer --deadline", REFUSED) from None
    click.echo("\n".join(done) or "nothing to do")


@click.group()
def maintenance() -> None:
    """Take mail offline, bring it back, or say how it stands."""


@maintenance.command(short_help="Take mail offline.")
@root_option
@click.option("--reason", default="maintenance", show_default=True, help="What clients and colleagues are told.")
@click.option("--until", default="", metavar="TIME", help="When mail is expected back; for people.")
@_deadline_option
def on(root: str, reason: str, until: str, deadline: float) -> None:
    """Take mail offline: returns when no process has the store open any more."""
    try:
        marker = gate.turn_on(root, reason=reason, until=until, deadline=deadline)
    except gate.NotOffline as error:
        raise CommandError(f"mail is not offline: {error}; stop it, or give it a longer --deadline", REFUSED) from None
    click.echo(f"offline: {marker}")


@maintenance.command()
@root_option
def off(root: str) -> None:
    """Let mail back in."""
    click.echo("mail is back" if gate.turn_off(root) else "mail was not offline")


@maintenance.command()
@root_option
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(root: str, as_json: bool) -> None:
    """Say whether mail is offline, and who has the store open."""
    marker, holders = gate.status(root)
    if as_json:
        click.echo(json.dumps({"offline": marker is not None, "marker": str(marker or ""), "open_by": holders}))
        return
    click.echo(f"offline: {marker}" if marker else "online")
    for holder in holders:
        click.echo(f"open by {holder}")
