"""Commands: refusals, output and exit statuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from adapter.cli import main
from adapter.maintenance import pipeline
from adapter.maintenance.findings import Finding, Outcome
from adapter.maintenance.report import Report
from adapter.store import layout
from tests.support.stores import ADA, new_store
from tests.system.maintenance.lab import lab


def test_repair_requires_confirmation(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["repair", "--root", str(tmp_path)])
    assert result.exit_code == 3
    assert "--i-know-what-im-doing ALL-SERVICES-ARE-OFFLINE" in result.output
    assert result.output.count("\n") == 1


def test_repair_refuses_while_the_store_is_open(tmp_path: Path) -> None:
    with new_store(tmp_path / "store", ADA):
        confirmation = ["--i-know-what-im-doing", "ALL-SERVICES-ARE-OFFLINE", "--deadline", "0.2"]
        result = CliRunner().invoke(main, ["repair", "--root", str(tmp_path / "store"), *confirmation])
    assert result.exit_code == 3
    assert "not offline" in result.output


def _finish(report: Report, verified: bool | None) -> None:
    report.verified = verified
    report.finish(source="journal", scanned={"messages": 3}, phases={}, seconds={}, memory={})


def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcomes: list[Outcome], verified: bool | None) -> Result:
    """Run the command on a pipeline with these outcomes."""

    def check(self: pipeline.Pipeline, report: Report) -> None:
        for outcome in outcomes:
            report.add(outcome)
        _finish(report, verified)

    def mend(self: pipeline.Pipeline, held: object, report: Report, chosen: object) -> None:
        check(self, report)

    monkeypatch.setattr(pipeline.Pipeline, "check", check)
    monkeypatch.setattr(pipeline.Pipeline, "repair", mend)
    with new_store(tmp_path / "store"):
        pass
    command = ["check"] if verified is None else ["repair", "--i-know-what-im-doing", "ALL-SERVICES-ARE-OFFLINE"]
    return CliRunner().invoke(main, [*command, "--root", str(tmp_path / "store")])


def test_failure_has_another_exit_status_than_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: pipeline.Pipeline, report: Report) -> None:
        raise RuntimeError("an executor was lost")

    monkeypatch.setattr(pipeline.Pipeline, "check", fail)
    with new_store(tmp_path / "store"):
        pass
    result = CliRunner().invoke(main, ["check", "--root", str(tmp_path / "store")])
    assert result.exit_code == 75
    assert "not finished (RuntimeError)" in result.output
    assert not list(lab.path(tmp_path / "store", *layout.MAINTENANCE).glob("run-*"))


_STRAY = Outcome.expected(Finding("message-stray", "messages/notes.txt", detail="not a message by its name"))
_CONFLICT = Outcome(
    Finding("credentials-orphan", ADA), "conflict", "was removed", f"--decide credentials-orphan:{ADA}=…"
)

_LOSS = Outcome(Finding("blob-missing", "ab" * 32), "loss", "a placeholder stands for it")
_UNREADABLE = Outcome.expected(Finding("unreadable", "messages/2026-01-01", detail="Permission denied: chmod"))


@pytest.mark.parametrize(
    ("outcomes", "verified", "status"),
    [
        ([], None, 0),
        ([_STRAY], None, 1),
        ([], True, 0),
        ([_STRAY], True, 0),
        ([_STRAY, _CONFLICT], True, 1),
        ([_STRAY], False, 1),
        ([_LOSS], None, 1),
        ([_LOSS], True, 1),
        ([_UNREADABLE], None, 1),
        ([_UNREADABLE], True, 1),
    ],
)
def test_exit_status_and_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcomes: list[Outcome], verified: bool | None, status: int
) -> None:
    result = _run(tmp_path, monkeypatch, outcomes, verified)
    assert result.exit_code == status
    assert "scanned 3 messages" in result.output
    assert ("no findings" in result.output) == (not outcomes)
    for outcome in outcomes:
        assert outcome.finding.kind in result.output
        assert outcome.decide in result.output
    kept = list(lab.path(tmp_path / "store", *layout.MAINTENANCE).glob("reports/*-repair.json"))
    assert len(kept) == bool(outcomes and verified is not None)
    assert not list(lab.path(tmp_path / "store", *layout.MAINTENANCE).glob("run-*"))


@pytest.mark.parametrize(("verified", "word"), [(None, "repairable"), (True, "repaired")])
def test_check_calls_findings_repairable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verified: bool | None, word: str
) -> None:
    outcome = Outcome.expected(Finding("projection-missing", f"{ADA}/inbox/1-msg.md"))
    output = _run(tmp_path, monkeypatch, [outcome], verified).output
    assert f"  {word:8}  {ADA}/inbox/1-msg.md" in output
    assert f"{word}: 1" in output
    assert ("repaired" in output) is (word == "repaired")
