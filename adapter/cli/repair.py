"""``markpost check`` and ``markpost repair``."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

import click

from adapter.cli.failures import EX_REFUSED, EX_TEMPFAIL, CommandError
from adapter.cli.options import root_option
from protocol.errors import MailError

_log = logging.getLogger(__name__)

CONFIRMATION = "ALL-SERVICES-ARE-OFFLINE"
EX_CLEAN, EX_FINDINGS = 0, 1
#: Erases the progress line on a terminal.
_CLEAR_LINE = "\r\033[K" if sys.stderr.isatty() else ""


def _pipeline_options(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option("--master", default="local[*]", show_default=True, metavar="URL", help="The Spark master.")(
        command
    )
    command = click.option(
        "--scratch",
        type=click.Path(exists=True, file_okay=False),
        help="Directory for temporary files. [default: in the store]",
    )(command)
    return click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")(command)


@click.command(short_help="Report damage, change nothing (Java 17).")
@root_option
@_pipeline_options
def check(root: str, master: str, scratch: str | None, as_json: bool) -> None:
    """Report everything that is wrong with the store and change nothing. Mail may be served.

    Exit status: 0 no findings, 1 findings, including losses, conflicts and unreadable files.
    """
    from adapter.maintenance import pipeline

    with (
        _map_failures(),
        pipeline.open_run(root, "check", master, _progress(), scratch_parent=scratch) as (run, report, _),
    ):
        run.check(report)
        _print_report(report.json() if as_json else None, report.table)
        status = EX_FINDINGS if report.total else EX_CLEAN
    sys.exit(status)


@click.command(short_help="Repair a damaged store (Java 17).")
@root_option
@_pipeline_options
@click.option("--dry-run", is_flag=True, help="Report what repair would do and change nothing.")
@click.option("--decide", "choices", multiple=True, metavar="KIND:ID=CHOICE", help="Resolve a conflict.")
@click.option(
    "--deadline",
    type=float,
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="How long to wait for servers to shut down.",
)
@click.option(
    "--i-know-what-im-doing", "confirmation", metavar=CONFIRMATION, help="Confirm that nothing else uses the store."
)
def repair(
    root: str,
    master: str,
    scratch: str | None,
    as_json: bool,
    dry_run: bool,
    choices: tuple[str, ...],
    deadline: float,
    confirmation: str | None,
) -> None:
    """Take mail offline, repair everything that is wrong with the store, and bring mail back.

    Exit status: 0 repaired without loss and verified; 1 content is lost, a conflict needs --decide, a file cannot be
    read, or findings remain (with --dry-run: would remain); 3 refused, nothing was repaired.
    """
    from adapter.maintenance import gate, pipeline
    from adapter.maintenance.repair.decisions import BadDecision

    if not dry_run and confirmation != CONFIRMATION:
        raise CommandError(
            f"repair changes the store and must be its only user: confirm with --i-know-what-im-doing {CONFIRMATION}",
            EX_REFUSED,
        )
    decisions = dict(_decision(text) for text in choices)
    with (
        _map_failures(),
        pipeline.open_run(root, "repair", master, _progress(), scratch_parent=scratch) as (run, report, _),
    ):
        try:
            if dry_run:
                run.check(report, decisions)
                report_path = ""
            else:
                with gate.offline(root, reason="markpost repair", deadline=deadline) as held:
                    run.repair(held, report, decisions)
                    report_path = report.save(held) if report.total else ""
        except gate.NotOffline as error:
            raise CommandError(
                f"the store is not offline: {error}; stop it, or give it a longer --deadline", EX_REFUSED
            ) from error
        except BadDecision as error:
            raise CommandError(f"{error}; nothing was repaired", EX_REFUSED) from error
        if report_path:
            click.echo(f"{_CLEAR_LINE}the report is kept in {root}/{report_path}", err=True)
        _print_report(report.json() if as_json else None, report.table)
        status = EX_FINDINGS if report.needs_attention else EX_CLEAN
    sys.exit(status)


@contextlib.contextmanager
def _map_failures() -> Iterator[None]:
    """Map unexpected failures (e.g. from Spark) to EX_TEMPFAIL so they are not mistaken for findings (exit 1)."""
    try:
        yield
    except (MailError, CommandError, OSError):
        raise
    except Exception as error:
        _log.exception("unexpected failure")
        raise CommandError(f"not finished ({type(error).__name__}): run it again", EX_TEMPFAIL) from error


def _decision(text: str) -> tuple[str, str]:
    from adapter.maintenance.repair import decisions

    try:
        return decisions.parse(text)
    except decisions.BadDecision as error:
        raise click.BadParameter(str(error)) from None


def _progress() -> Callable[[str], None]:
    """Return a function that overwrites the progress line on a terminal and prints nothing elsewhere."""
    if not _CLEAR_LINE:
        return lambda _: None

    def print_progress(line: str) -> None:
        click.echo(f"{_CLEAR_LINE}markpost: {line}", err=True, nl=line.startswith("done"))

    return print_progress


def _print_report(json_chunks: Iterator[bytes] | None, print_table: Callable[..., None]) -> None:
    click.echo(_CLEAR_LINE, err=True, nl=False)
    if json_chunks is None:
        print_table(sys.stdout)
        return
    out = sys.stdout.buffer
    for chunk in json_chunks:
        out.write(chunk)
    out.flush()
