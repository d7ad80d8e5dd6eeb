"""Repair converges in a single run, with scratch files in the store or on another file system."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adapter.maintenance import pipeline
from adapter.maintenance.findings import Finding, Outcome
from adapter.maintenance.report import Report
from adapter.store import layout
from adapter.store.disk import Directories
from tests.support.messages import message
from tests.support.stores import ADA, append, new_store
from tests.system.maintenance.lab import lab, lab_stores

pytestmark = pytest.mark.timeout(900)  # Spark is slow on a busy machine


@pytest.fixture
def another_file_system(tmp_path: Path) -> Iterator[Path]:
    own = tmp_path.stat().st_dev
    for place in ("/dev/shm", "/tmp", "/var/tmp", str(Path.cwd())):
        if os.access(place, os.W_OK) and os.stat(place).st_dev != own:
            path = Path(tempfile.mkdtemp(prefix="markpost-scratch-", dir=place))
            yield path
            shutil.rmtree(path)
            return
    pytest.skip("there is only one file system to write to")


def test_scratch_files_can_be_on_another_file_system(tmp_path: Path, another_file_system: Path) -> None:
    root = tmp_path / "store"
    lab_stores.build(root)
    before, view = lab.seen(root), lab.view(root)
    lab.path(root, layout.INDEX_FILE).unlink()
    repaired = lab.repair(root, scratch_parent=another_file_system)
    assert repaired.kinds == {"index-missing": 1}
    assert repaired.report["verified"], repaired.report.get("left")
    assert (lab.seen(root), lab.view(root)) == (before, view)
    assert lab.path(root, layout.INDEX_FILE).stat().st_mode & 0o777 == 0o600
    assert not [*another_file_system.iterdir()]
    assert not lab.path(root, f"{layout.INDEX_FILE}.new").exists()


def test_second_round_repairs_findings_uncovered_by_the_first(tmp_path: Path) -> None:
    """A message copied from another store lacks one part, and no message here needs its other part."""
    root, other = tmp_path / "store", tmp_path / "other"
    lab_stores.build(root)
    with new_store(other, ADA) as transport:
        append(transport, "INBOX", message("Parts", attachments=[bytes(range(256)) * 1200, bytes(range(255)) * 1300]))
    for top in (layout.MESSAGES, layout.ATTACHMENTS):
        for file in sorted(each for each in lab.path(other, *top).rglob("*") if each.is_file())[:1]:
            target = root / file.relative_to(other)
            target.parent.mkdir(exist_ok=True)
            shutil.copy(file, target)
    repaired = lab.repair(root)
    assert repaired.report["verified"], repaired.report.get("left")
    assert lab.check(root).kinds == {}


class _Inspection:
    """Stub of an inspection with findings for the given subjects."""

    def __init__(self, *subjects: str) -> None:
        self.kinds = Counter({"message-stray": len(subjects)}) if subjects else Counter[str]()
        self._subjects = subjects
        self.counts: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.facts = SimpleNamespace(source="journal", is_blind=False)

    def findings(self, kinds: set[str] | None = None) -> list[Finding]:
        return [Finding("message-stray", subject) for subject in self._subjects]


@pytest.mark.parametrize(
    ("scans", "conflicts", "applied", "left"),
    [
        ([()], "", 0, []),
        ([("a", "b"), ()], "", 1, []),
        ([("a", "b"), ("b",), ("c",), ()], "", 3, []),
        ([("a", "k"), ("b", "k"), ("k",)], "k", 2, []),
        ([("a",)] * 9, "", 4, ["message-stray a"]),
    ],
)
def test_rounds_end_when_only_conflicts_remain(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scans: list[tuple[str, ...]],
    conflicts: str,
    applied: int,
    left: list[str],
) -> None:
    inspections = [_Inspection(*subjects) for subjects in scans]
    rounds: list[_Inspection] = []

    class Applied:
        def __init__(self, _: Directories, inspection: _Inspection, __: dict[str, str], add_outcome: Any) -> None:
            rounds.append(inspection)
            self._inspection, self._add_outcome = inspection, add_outcome

        def run(self) -> None:
            for finding in self._inspection.findings():
                severity = "conflict" if finding.subject in conflicts else "harmless"
                self._add_outcome(Outcome(finding, severity, "done"))  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline, "Apply", Applied)
    monkeypatch.setattr(pipeline.Pipeline, "inspect", lambda _: inspections.pop(0))
    root, scratch = tmp_path / "store", tmp_path / "scratch"
    scratch.mkdir()
    with new_store(root, ADA):
        pass
    report = Report("repair", str(root), lab.MASTER, str(scratch))
    with closing(Directories(str(root))) as directories, closing(report):
        pipeline.Pipeline(str(root), lab.MASTER, str(scratch), lambda _: None).repair(directories, report, {})
        assert len(rounds) == applied
        assert report.verified is not bool(left)
        assert report.head.get("left", []) == left
        assert report.severities["conflict"] == len(conflicts)
