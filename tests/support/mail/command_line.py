"""The command line, called in the process of the test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from adapter.cli import main


class Cli:
    """The command line on one store."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, *arguments: str, stdin: str | bytes | None = None, status: int = 0) -> Result:
        result = CliRunner().invoke(main, arguments, input=stdin, env={"MARKPOST_ROOT": str(self.root)})
        assert result.exit_code == status, result.output
        assert "Traceback" not in result.output
        return result

    def accounts(self) -> dict[str, dict[str, object]]:
        return {each["address"]: each for each in json.loads(self("account", "list", "--json").stdout)}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The commands of a new store."""
    command = Cli(tmp_path / "store")
    command("init")
    return command
