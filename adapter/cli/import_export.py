"""``markpost export`` and ``markpost import``."""

from __future__ import annotations

import sys

import click

from adapter.cli.failures import (
    EX_DATAERR,
    EX_NOINPUT,
    CommandError,
    deferred_interrupts,
    raise_pending_interrupt,
)
from adapter.cli.options import open_store, plural, root_option, size
from adapter.exchange.export import Exporter, Format
from adapter.exchange.import_ import Imported, Importer, find_source
from adapter.exchange.model import SourceError
from adapter.store import names


@click.command(short_help="Export mail as Maildir or mbox.")
@root_option
@click.option("--format", "form", type=click.Choice(["maildir", "mbox"]), required=True)
@click.option("--to", "target", metavar="DIR", required=True, type=click.Path(file_okay=False))
@click.option("--address", metavar="ADDRESS", help="Export only this account. [default: all]")
def export(root: str, form: Format, target: str, address: str | None) -> None:
    """Write the mail of each account to DIR/ADDRESS, as a Maildir with Maildir++ folders or as one mbox per folder."""
    with open_store(root) as transport:
        exporter = Exporter(transport, target, form, address)
        with click.progressbar(
            length=exporter.size, label="Exporting", file=sys.stderr, hidden=not sys.stderr.isatty()
        ) as bar:
            done = exporter.run(bar.update)
    for note in done.notes:
        click.echo(f"markpost: {note}", err=True)
    counts = f"{plural(done.messages, 'message')} ({size(done.octets)}) in {plural(done.folders, 'folder')}"
    click.echo(f"exported {counts} of {plural(done.accounts, 'account')} to {target}")


@click.command(name="import", short_help="Import mail from Maildir, mbox, .eml or .md files.")
@root_option
@click.option("--from", "path", metavar="PATH", required=True, type=click.Path())
@click.option("--address", metavar="ADDRESS", required=True, help="The account to import into.")
@click.option(
    "--folder",
    metavar="FOLDER",
    help="Import INBOX and mail without a folder into FOLDER, and other folders below it. [default: as they are]",
)
def import_(root: str, path: str, address: str, folder: str | None) -> None:
    """Import a Maildir with its folders, an mbox file, a directory of .mbox files, or .eml or .md files.

    Each message is imported completely or not at all. An interrupted import is resumed by running the same command
    again: messages that the folder has already are skipped. A bare LF is read as CRLF.
    """
    address = names.normalise_address(address)
    try:
        source = find_source(path, address)
    except SourceError as error:
        raise CommandError(str(error), EX_NOINPUT) from error
    with deferred_interrupts(), open_store(root) as transport:
        importer = Importer(transport, source, address, folder)
        try:
            with click.progressbar(
                length=source.octets, label="Importing", file=sys.stderr, hidden=not sys.stderr.isatty()
            ) as bar:

                def progress(octets: int) -> None:
                    raise_pending_interrupt()
                    bar.update(octets)

                importer.run(progress)
        except BaseException:
            if importer.done.messages or importer.done.skipped or importer.done.failed:
                _report(importer.done, address)
                click.echo("markpost: not finished; run the same command again to import the rest", err=True)
            raise
    _report(importer.done, address)
    if importer.done.failed:
        count = plural(len(importer.done.failed), "message")
        raise CommandError(f"{count} of {path} could not be imported", EX_DATAERR)


def _report(done: Imported, address: str) -> None:
    for label, reason in done.failed:
        click.echo(f"markpost: {label}: {reason}", err=True)
    counts = f"{plural(done.messages, 'message')} ({size(done.octets)})"
    skipped = f"; skipped {plural(done.skipped, 'message')} that were there already" if done.skipped else ""
    click.echo(f"imported {counts} into {plural(len(done.folders), 'folder')} of {address}{skipped}")
