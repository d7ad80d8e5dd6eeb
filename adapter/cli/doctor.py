"""``markpost doctor``: is everything as it should be, and if not, what is to be done?"""

from __future__ import annotations

import dataclasses
import json
import sys

import click

from adapter.cli.options import config_option, root_option
from adapter.config import loader, validate
from adapter.config.loader import ConfigError
from adapter.config.schema import Settings
from adapter.doctor.examination import examine
from adapter.doctor.findings import Finding, Level, bad

_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.BAD: "red"}


@click.command(short_help="Is everything as it should be here?")
@root_option
@config_option
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def doctor(root: str, config_file: str | None, as_json: bool) -> None:
    """Look at the machine, the store, the ports and the certificates, and change nothing.

    Exit status 0: nothing is bad. A server may run meanwhile.
    """
    settings, found = _configuration(config_file)
    found += examine(root, settings)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(finding) for finding in found], ensure_ascii=False))
    else:
        for finding in found:
            _show(finding)
    sys.exit(1 if any(finding.level is Level.BAD for finding in found) else 0)


def _configuration(config_file: str | None) -> tuple[Settings, list[Finding]]:
    """What can be used of it, and what is wrong with it."""
    advice = "see conf/markpost.toml, where every setting is explained"
    try:
        loaded = loader.read(Settings, config_file)
    except ConfigError as error:
        return Settings(), [bad("configuration", line, advice) for line in error.problems]
    trouble = loaded.error(validate.problems(loaded.settings))
    problems = trouble.problems if trouble is not None else ()
    return loaded.settings, [bad("configuration", line, advice) for line in problems]


def _show(finding: Finding) -> None:
    level = click.style(f"{finding.level:4}", fg=_COLOURS[finding.level])
    click.echo(f"{level}  {finding.check}: {finding.seen}")
    if finding.advice:
        click.echo(f"      -> {finding.advice}")
