"""``markpost backup`` and ``markpost restore``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from adapter.cli.failures import FAILED
from adapter.cli.options import plural, root_option, size

if TYPE_CHECKING:
    from adapter.backup.restore import Restored


@click.command(short_help="Copy the store, while mail goes on.")
@click.argument("destination", metavar="DEST", type=click.Path(file_okay=False))
@root_option
@click.option("--without-credentials", is_flag=True, help="Leave the passwords out.")
def backup(destination: str, root: str, without_credentials: bool) -> None:
    """Back the store up to a new directory in DEST, while mail goes on.

    A backup is whole and as of one moment. Messages and attachments are hard links: to the store's own if DEST is on
    the same file system, else to those of the backup before. An old backup can be removed at any time.
    """
    from adapter.backup import create

    taken = create.take(root, destination, credentials=not without_credentials)
    click.echo(taken.path)
    click.echo(
        f"record {taken.manifest.seq}, {plural(taken.manifest.files, 'file')}:"
        f" {size(taken.copied)} copied, {size(taken.linked)} linked",
        err=True,
    )
    if taken.missing:
        count = plural(len(taken.missing), "file")
        click.echo(
            f"markpost: {count} of the store could not be read, {taken.missing[0]} for one: run markpost check",
            err=True,
        )
        sys.exit(FAILED)


@click.command(short_help="Make a store from a backup.")
@click.argument("source", metavar="SOURCE", type=click.Path(exists=True, file_okay=False))
@root_option
def restore(source: str, root: str) -> None:
    """Make a store from the backup SOURCE, or from the newest backup in the directory SOURCE.

    Mail that waited to be sent when the backup was taken is sent when the store is served.
    """
    from adapter.backup import restore as restoring

    restored = restoring.restore(source, root)
    held = restored.manifest
    click.echo(f"restored {restored.path}, as of record {held.seq} at {held.taken}, to {root}")
    if not held.credentials:
        click.echo("it holds no passwords: set them with markpost account passwd", err=True)
    if not restored.as_it_was:
        click.echo(f"markpost: {_changed(restored)}; markpost repair --root {root} looks at it", err=True)
        sys.exit(FAILED)


def _changed(restored: Restored) -> str:
    if restored.changed:
        count = plural(len(restored.changed), "file")
        return f"changed since the backup was taken: {count}, {restored.changed[0]} for one"
    return (
        f"the backup has {restored.octets} octets in place of {restored.manifest.octets}, though messages and"
        " attachments are as they were"
    )
