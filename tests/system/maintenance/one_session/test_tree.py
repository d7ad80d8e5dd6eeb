"""The tree of a store: stray entries, modes and owners, and reports without terminal escapes."""

from __future__ import annotations

import io
import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from adapter.maintenance.findings import Finding, Outcome
from adapter.maintenance.repair import tree
from adapter.maintenance.report import Report
from adapter.maintenance.scan import tree_audit
from adapter.store import layout, names, quarantine
from adapter.store.disk import Directories
from tests.support.stores import ADA, new_store
from tests.system.maintenance.lab import lab, lab_stores

pytestmark = pytest.mark.timeout(900)  # Spark is slow on a busy machine


def _findings(root: Path) -> list[Finding]:
    with closing(Directories(str(root))) as directories:
        return [*tree_audit.audit(directories)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with new_store(tmp_path / "store", ADA):
        pass
    return tmp_path / "store"


def test_new_store_has_no_stray_entries(tmp_path: Path) -> None:
    lab_stores.build(tmp_path / "store", snapshot=True)
    assert _findings(tmp_path / "store") == []


def test_exposed_credentials_are_reported_first(root: Path) -> None:
    lab.path(root, "a note").write_text("mine")
    place = lab.path(root, *layout.CREDENTIALS)
    place.mkdir(mode=0o700)
    (place / layout.CREDENTIALS_FILE).write_text("")
    (place / layout.CREDENTIALS_FILE).chmod(0o604)
    assert [each.kind for each in _findings(root)] == ["credentials-exposed", "stray-entry"]
    report = Report("check", str(root), "local", str(root.parent))
    with closing(report):
        for finding in reversed(_findings(root)):
            report.add(Outcome.expected(finding))
        report.finish()
        out = io.StringIO()
        report.table(out)
    text = out.getvalue()
    assert text.index("credentials-exposed") < text.index("stray-entry")


def test_readable_files_count_only_in_reachable_directories(root: Path) -> None:
    index = lab.path(root, layout.INDEX_FILE)
    index.chmod(0o644)
    assert _findings(root) == []
    root.chmod(0o755)
    (finding,) = _findings(root)
    assert (finding.kind, finding.subject) == ("mode-too-wide", layout.INDEX_FILE)
    with closing(Directories(str(root))) as directories:
        assert tree.close(directories, finding).done == "mode 0640"
    assert _findings(root) == []
    root.chmod(0o770)
    assert [each.subject for each in _findings(root)] == ["."]


def test_group_may_read_the_store(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o050 if path.is_dir() else 0o040))
    assert _findings(root) == []


def test_mode_of_a_link_target_is_not_changed(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o666)
    lab.path(root, *layout.JOURNAL, layout.CHECKPOINT_FILE).chmod(0o666)
    (finding,) = _findings(root)
    lab.path(root, *layout.JOURNAL, layout.CHECKPOINT_FILE).unlink()
    lab.path(root, *layout.JOURNAL, layout.CHECKPOINT_FILE).symlink_to(outside)
    with closing(Directories(str(root))) as directories:
        tree.close(directories, finding)
    assert outside.stat().st_mode & 0o777 == 0o666


def test_invalid_utf8_name_is_escaped_and_quarantined(root: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    lab.path(root, *layout.JOURNAL, name).write_text("mine")
    (finding,) = _findings(root)
    assert finding.subject == r"journal/caf\xe9"
    with closing(Directories(str(root))) as directories:
        done = tree.stray(directories, finding)
        assert tree.stray(directories, finding).done == "already gone"
        assert quarantine.move(directories, layout.JOURNAL, name, "a test") == ""
    assert (root / done.done.removeprefix("moved to ")).read_text() == "mine"
    (reason,) = lab.path(root, *layout.QUARANTINE).glob("*.reason.json")
    assert r"journal/caf\\xe9" in reason.read_text()
    assert _findings(root) == []


def test_report_escapes_control_characters(root: Path, tmp_path: Path) -> None:
    report = Report("check", str(root), "local", str(tmp_path))
    with closing(report):
        report.add(Outcome.expected(Finding("message-stray", "messages/\x1b[2J\u202e\n.md", detail="\x07")))
        report.finish()
        out = io.StringIO()
        report.table(out)
    assert "\x1b" not in out.getvalue()
    assert r"messages/\x1b[2J\u202e\n.md - \x07" in out.getvalue()


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can give files away")
def test_entry_of_another_owner_is_left_to_a_person(root: Path) -> None:
    place = lab.path(root, *layout.JOURNAL, layout.CHECKPOINT_FILE)
    os.chown(place, 12345, -1)
    (finding,) = _findings(root)
    assert (finding.kind, finding.detail) == ("owner-foreign", "owned by user 12345; the store is owned by user 0")
    with closing(Directories(str(root))) as directories:
        outcome = tree.foreign_owner(directories, finding)
    assert (outcome.severity, outcome.decide) == ("conflict", f"chown -h 0 {place}")
    assert place.stat().st_uid == 12345


def test_entry_in_place_of_a_directory_is_quarantined(tmp_path: Path) -> None:
    """Of a mailbox, of a folder and of a day: the entry is quarantined, and the directory is restored."""
    root = tmp_path / "store"
    lab_stores.build(root)
    before = lab.seen(root)
    mailbox = lab.path(root, *layout.mailbox_directory(names.address_entry(lab_stores.CAROL)))
    shutil.rmtree(mailbox)
    mailbox.write_text("a file")
    inbox = lab.path(root, *layout.folder_directory(names.address_entry(ADA), names.INBOX))
    shutil.rmtree(inbox)
    os.mkfifo(inbox)
    repaired = lab.repair(root)
    assert repaired.kinds["stray-entry"] == 2
    assert repaired.report["verified"], repaired.report.get("left")
    assert lab.seen(root) == before
    assert lab.check(root).kinds == {}
