"""``markpost doctor``: check that this machine is ready to run Markpost."""

from __future__ import annotations

import dataclasses
import json
import sys

import click

from adapter.cli.options import config_option, root_option
from adapter.config import loader
from adapter.config.loader import ConfigError
from adapter.config.schema import Settings
from adapter.doctor.checks import run_checks
from adapter.doctor.findings import Finding, Level, bad
from adapter.server.settings import problems

_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.BAD: "red"}


@click.command(short_help="Check machine, store, ports and certificates.")
@root_option
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def doctor(root: str, config_file: str | None, as_json: bool) -> None:
    """Check the machine, the store, the ports and the certificates. Changes nothing; a server may be running.

    Exit status: 0 no check is bad, 1 at least one is.
    """
    settings, findings = _check_configuration(config_file)
    findings += run_checks(root, settings)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(finding) for finding in findings], ensure_ascii=False))
    else:
        for finding in findings:
            _show(finding)
    sys.exit(1 if any(finding.level is Level.BAD for finding in findings) else 0)


def _check_configuration(config_file: str | None) -> tuple[Settings, list[Finding]]:
    """Return the usable settings and a finding for each mistake."""
    advice = "see conf/markpost.toml, which explains every setting"
    try:
        loaded = loader.read(Settings, config_file)
    except ConfigError as error:
        return Settings(), [bad("configuration", line, advice) for line in error.problems]
    invalid = loaded.error(problems(loaded.settings))
    lines = invalid.problems if invalid is not None else ()
    return loaded.settings, [bad("configuration", line, advice) for line in lines]


def _show(finding: Finding) -> None:
    level = click.style(f"{finding.level:4}", fg=_COLOURS[finding.level])
    click.echo(f"{level}  {finding.check}: {finding.seen}")
    if finding.advice:
        click.echo(f"      -> {finding.advice}")
