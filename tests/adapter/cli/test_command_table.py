"""Commands are imported on demand; each one that is listed can be imported and has a help text."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from adapter.cli import main


@pytest.mark.parametrize("name", main.list_commands(click.Context(main)))
def test_every_listed_command_shows_its_help(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage:")
