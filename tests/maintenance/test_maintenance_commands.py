"""The commands: what they refuse, what they leave alone, and what a repair that dies leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from adapter.cli import main
from adapter.maintenance import spark
from protocol.errors import MailError
from tests.support.stores import ADA, new_store

pytestmark = pytest.mark.timeout(900)  # a look at a store by Spark takes its time on a busy machine


def test_repair_wants_to_be_told(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["repair", "--root", str(tmp_path)])
    assert result.exit_code == 3
    assert "--i-know-what-im-doing ALL-SERVICES-ARE-OFFLINE" in result.output
    assert result.output.count("\n") == 1


def test_repair_refuses_while_the_store_is_open(tmp_path: Path) -> None:
    with new_store(tmp_path / "store", ADA):
        said = ["--i-know-what-im-doing", "ALL-SERVICES-ARE-OFFLINE", "--deadline", "0.2"]
        result = CliRunner().invoke(main, ["repair", "--root", str(tmp_path / "store"), *said])
    assert result.exit_code == 3
    assert "not offline" in result.output


def test_no_java_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(MailError, match="Java 17"):
        spark.check_java()
