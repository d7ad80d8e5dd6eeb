"""``markpost check`` and ``markpost repair``."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

import click

from adapter.cli.failures import TEMPORARY, CommandError
from adapter.cli.options import root_option
from protocol.errors import MailError

_log = logging.getLogger(__name__)

CONFIRMATION = "ALL-SERVICES-ARE-OFFLINE"
CLEAN, FOUND, REFUSED = 0, 1, 3
#: Takes the line of progress off the terminal.
_CLEAR = "\r\033[K" if sys.stderr.isatty() else ""


def _master_option(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option("--master", default="local[*]", show_default=True, metavar="URL", help="The Spark master.")(
        command
    )
    command = click.option(
        "--scratch", type=click.Path(exists=True, file_okay=False), help="Where temporary files go; default: the store."
    )(command)
    return click.option("--json", "as_json", is_flag=True, help="The report as JSON.")(command)


@click.command(short_help="Look for damage, change nothing (Java 17).")
@root_option
@_master_option
def check(root: str, master: str, scratch: str | None, as_json: bool) -> None:
    """Look for everything that is wrong with the store, and change nothing. Mail may go on.

    Exit status: 0 nothing is wrong, 1 findings, a loss, a conflict or an unreadable file among them.
    """
    from adapter.maintenance import pipeline

    with _unfinished(), pipeline.running(root, "check", master, _progress(), elsewhere=scratch) as (run, report, _):
        run.check(report)
        _show(report.json() if as_json else None, report.table)
        status = FOUND if report.total else CLEAN
    sys.exit(status)


@click.command(short_help="Mend a damaged store (Java 17).")
@root_option
@_master_option
@click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
@click.option("--decide", "decided", multiple=True, metavar="KIND:ID=CHOICE", help="Decide a conflict.")
@click.option(
    "--deadline", type=float, metavar="SECONDS", default=60.0, show_default=True, help="Servers get so long to finish."
)
@click.option("--i-know-what-im-doing", "confirmation", metavar=CONFIRMATION, help="Nobody else uses the store.")
def repair(
    root: str,
    master: str,
    scratch: str | None,
    as_json: bool,
    dry_run: bool,
    decided: tuple[str, ...],
    deadline: float,
    confirmation: str | None,
) -> None:
    """Take mail offline, mend everything that is wrong with the store, and bring mail back.

    Exit status: 0 repaired without loss and verified; 1 content is lost, a conflict needs --decide, a file cannot be
    read, or findings are left (with --dry-run: would be); 3 refused, nothing was repaired.
    """
    from adapter.maintenance import gate, pipeline
    from adapter.maintenance.repair.decisions import BadDecision

    if not dry_run and confirmation != CONFIRMATION:
        raise CommandError(
            f"repair changes the store and must be its only user: say so with --i-know-what-im-doing {CONFIRMATION}",
            REFUSED,
        )
    decisions = dict(_decision(text) for text in decided)
    with _unfinished(), pipeline.running(root, "repair", master, _progress(), elsewhere=scratch) as (run, report, _):
        try:
            if dry_run:
                run.check(report, decisions)
                kept = ""
            else:
                with gate.offline(root, reason="markpost repair", deadline=deadline) as held:
                    run.repair(held, report, decisions)
                    kept = report.keep(held) if report.total else ""
        except gate.NotOffline as error:
            raise CommandError(f"the store is not offline, {error}", REFUSED) from error
        except BadDecision as error:
            raise CommandError(f"{error}; nothing was repaired", REFUSED) from error
        if kept:
            click.echo(f"{_CLEAR}the report is kept in {root}/{kept}", err=True)
        _show(report.json() if as_json else None, report.table)
        status = FOUND if report.needs_attention else CLEAN
    sys.exit(status)


@contextlib.contextmanager
def _unfinished() -> Iterator[None]:
    """A failure that nobody thought of, of Spark perhaps, must not end with the status that says: findings."""
    try:
        yield
    except (MailError, CommandError, OSError):
        raise
    except Exception as error:
        _log.exception("the work came to a sudden end")
        raise CommandError(f"not finished ({type(error).__name__}): run it again", TEMPORARY) from error


def _decision(text: str) -> tuple[str, str]:
    from adapter.maintenance.repair import decisions

    try:
        return decisions.parse(text)
    except decisions.BadDecision as error:
        raise click.BadParameter(str(error)) from None


def _progress() -> Callable[[str], None]:
    """A line on the terminal that is overwritten; nothing elsewhere."""
    if not _CLEAR:
        return lambda _: None

    def say(line: str) -> None:
        click.echo(f"{_CLEAR}markpost: {line}", err=True, nl=line.startswith("done"))

    return say


def _show(pieces: Iterator[bytes] | None, table: Callable[..., None]) -> None:
    click.echo(_CLEAR, err=True, nl=False)
    if pieces is None:
        table(sys.stdout)
        return
    out = sys.stdout.buffer
    for piece in pieces:
        out.write(piece)
    out.flush()
