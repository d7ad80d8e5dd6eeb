"""``markpost init`` and ``markpost snapshot``."""

from __future__ import annotations

import os

import click

from adapter.cli.failures import CommandError
from adapter.cli.options import open_store, root_option
from adapter.transport.transport import create_store


@click.command()
@root_option
def init(root: str) -> None:
    """Make an empty store in a new or empty directory."""
    if os.path.isdir(root) and os.listdir(root):
        raise CommandError(f"{root} is not empty: a store is made in a new or empty directory")
    create_store(root)
    click.echo(f"made a store in {root}; next: markpost account add ADDRESS --root {root}")


@click.command(short_help="Copy what changes to Parquet; shortens the journal.")
@root_option
def snapshot(root: str) -> None:
    """Copy the mutable tables to Parquet, and drop the part of the journal that becomes needless.

    Prints the number of the last record in it. A server does this by itself from time to time.
    """
    with open_store(root) as transport:
        click.echo(transport.snapshot())
