"""``markpost backup`` and ``markpost restore``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from adapter.cli.failures import EX_FAILURE
from adapter.cli.options import plural, root_option, size

if TYPE_CHECKING:
    from adapter.backup.restore import Restored


@click.command(short_help="Back up the store while mail is served.")
@click.argument("destination", metavar="DEST", type=click.Path(file_okay=False))
@root_option
@click.option("--without-credentials", is_flag=True, help="Omit the passwords.")
def backup(destination: str, root: str, without_credentials: bool) -> None:
    """Back up the store to a new directory in DEST, while mail is served.

    A backup is a complete, consistent copy of one point in time. Messages and attachments are hard links: to the
    store's files if DEST is on the same file system, otherwise to those of the previous backup. An old backup can be
    removed at any time.
    """
    from adapter.backup import create

    created = create.create_backup(root, destination, credentials=not without_credentials)
    click.echo(created.path)
    click.echo(
        f"record {created.manifest.seq}, {plural(created.manifest.files, 'file')}:"
        f" {size(created.copied)} copied, {size(created.linked)} linked",
        err=True,
    )
    if created.missing:
        count = plural(len(created.missing), "file")
        click.echo(
            f"markpost: cannot read {count} of the store, for example {created.missing[0]}; run markpost check",
            err=True,
        )
        sys.exit(EX_FAILURE)


@click.command(short_help="Create a store from a backup.")
@click.argument("source", metavar="SOURCE", type=click.Path(exists=True, file_okay=False))
@root_option
def restore(source: str, root: str) -> None:
    """Create a store from the backup SOURCE, or from the newest backup in the directory SOURCE.

    Mail that was queued for other hosts when the backup was taken is sent as soon as the store is served.
    """
    from adapter.backup.restore import restore_backup

    restored = restore_backup(source, root)
    manifest = restored.manifest
    click.echo(f"restored {restored.path}, as of record {manifest.seq} at {manifest.taken}, to {root}")
    if not manifest.credentials:
        click.echo("the backup has no passwords: set them with markpost account passwd", err=True)
    if not restored.is_unchanged:
        click.echo(f"markpost: {_changes(restored)}; run markpost repair --root {root}", err=True)
        sys.exit(EX_FAILURE)


def _changes(restored: Restored) -> str:
    if restored.changed:
        count = plural(len(restored.changed), "file")
        return f"{count} changed since the backup was taken, for example {restored.changed[0]}"
    return (
        f"the backup has {restored.octets} octets instead of {restored.manifest.octets}, though messages and"
        " attachments are unchanged"
    )
