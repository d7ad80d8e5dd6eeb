"""The whole examination, which starts Java."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from adapter.backup import create
from adapter.cli import main
from adapter.doctor import filesystem, host
from adapter.doctor.findings import Level
from adapter.store import layout
from tests.support.findings import all_ok, texts
from tests.support.smtpd import make_store
from tests.support.stores import ADA


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_store(tmp_path / "store", ADA)
    return tmp_path / "store"


def _java(directory: Path, output: str) -> dict[str, str]:
    (directory / "bin").mkdir(exist_ok=True)
    program = directory / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{output}' >&2\n")
    program.chmod(0o755)
    return {"JAVA_HOME": str(directory), "PATH": os.environ["PATH"]}


def test_missing_or_old_java_is_reported(tmp_path: Path) -> None:
    assert all_ok(host.java(_java(tmp_path, 'openjdk version "17.0.9" 2023-10-17')))
    assert "version 8; check and repair need 17" in texts(
        host.java(_java(tmp_path, 'java version "1.8.0_292"')), Level.WARN
    )
    assert "does not print its version" in texts(host.java(_java(tmp_path, "hello")), Level.WARN)
    assert "cannot start" in texts(host.java({"JAVA_HOME": str(tmp_path / "none")}), Level.WARN)


def _run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["doctor", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


def test_doctor_command_changes_nothing(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "_FULL_BYTES", 0)  # the machine of the test may have little free space
    before = {path: path.lstat().st_mtime_ns for path in root.rglob("*") if not stat.S_ISDIR(path.lstat().st_mode)}
    config = tmp_path / "markpost.toml"
    config.write_text('[listen]\nimap = ["127.0.0.1:0"]\n')
    status, text = _run("--root", str(root), "--config", str(config))
    assert status == 0, text
    assert "ok    locking: " in text
    assert "bad" not in text
    assert before == {path: path.lstat().st_mtime_ns for path in before}  # no file was changed
    root.joinpath(*layout.CREDENTIALS).chmod(0o755)
    status, text = _run("--root", str(root), "--config", str(config))
    assert status == 1
    assert "bad   permissions: other users can read" in text
    assert "\n      -> chmod -R go= " in text
    status, text = _run("--root", str(root), "--json")
    assert status == 1
    findings = json.loads(text)
    assert {entry["level"] for entry in findings} >= {"ok", "bad"}
    assert all(entry.keys() == {"level", "check", "seen", "advice"} for entry in findings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[listn]\n", "unknown setting 'listn'"),
        ('[tls]\ncertificate = "/nonexistent"\n', "no such file"),
        ('[metrics]\nlisten = "nonsense"\n', "neither host:port"),
    ],
)
def test_mistakes_in_the_configuration_are_findings(root: Path, tmp_path: Path, text: str, expected: str) -> None:
    config = tmp_path / "markpost.toml"
    config.write_text(text)
    status, shown = _run("--root", str(root), "--config", str(config))
    assert status == 1
    assert f"{config}:" in shown
    assert expected in shown
    assert "locking: " in shown  # the other checks run


def test_root_without_a_store_is_reported_with_init_as_advice(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        status, text = _run("--root", str(place))
        assert status == 1
        assert "is not a store" in text
        assert "-> markpost init" in text


def test_backup_is_reported_with_restore_as_advice(root: Path, tmp_path: Path) -> None:
    backup = create.create_backup(str(root), str(tmp_path / "backups"), credentials=True).path
    text = _run("--root", backup)[1]
    assert f"{backup} is not a store but a backup" in text
    assert f"-> markpost restore {backup}" in text


def test_store_of_another_version_is_reported_with_advice(root: Path) -> None:
    for number in (layout.VERSION - 1, layout.VERSION + 1):
        (root / layout.VERSION_FILE).unlink()
        (root / layout.VERSION_FILE).write_text(f"{number}\n")
        assert "-> install the markpost that created the store" in _run("--root", str(root))[1]
