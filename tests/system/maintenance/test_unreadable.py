"""Unreadable files and directories: each is a finding, and nothing is removed because of it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.maintenance.findings import unreadable_cause
from adapter.maintenance.scan import executor
from adapter.store import disk, layout
from tests.support.messages import message
from tests.support.processes.other_users import as_unprivileged, only_for_root
from tests.support.stores import ADA, append, new_store, tree
from tests.system.maintenance.lab import failing, lab, lab_stores

pytestmark = pytest.mark.timeout(900)  # Spark is slow on a busy machine


@pytest.fixture(autouse=True)
def _readable_afterwards() -> Iterator[None]:
    yield
    failing.clear()


def _mail(root: Path) -> dict[str, object]:
    """All files of the store, without maintenance, locks and staging."""
    aside = ("maintenance", "locks", "staging")
    return {name: value for name, value in tree(root).items() if not name.startswith(aside)}


def test_io_error_is_distinguished_from_damage() -> None:
    with open("/proc/self/mem", "rb") as file:  # reading its first octet fails for every user
        for read in (executor._read, executor._digest):
            with pytest.raises(OSError, match="Input/output error"):
                read(file.fileno())


@only_for_root
def test_file_of_another_user_is_unreadable_and_a_missing_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "closed").write_bytes(b"x")
    (tmp_path / "closed").chmod(0o600)

    def causes(place: Path) -> str:
        directory = os.open(place, os.O_RDONLY)
        causes = []
        for name in ("closed", "missing"):
            try:
                disk.read_file(directory, name)
            except OSError as error:
                causes.append(unreadable_cause(error))
        return "|".join(causes)

    tmp_path.chmod(0o755)
    closed, missing = as_unprivileged(tmp_path, causes).split("|")
    assert closed.startswith("Permission denied: ")
    assert missing == ""


def test_unreadable_directories_lose_nothing(tmp_path: Path) -> None:
    root = tmp_path / "store"
    lab_stores.build(root)
    before, seen = _mail(root), lab.seen(root)
    day = next(each for each in lab.path(root, *layout.MESSAGES).iterdir())
    prefix = next(each for each in lab.path(root, *layout.ATTACHMENTS).iterdir() if any(each.iterdir()))
    mailbox = lab.path(root, *layout.mailbox_directory("bob@example.test"))
    assert mailbox.is_dir()
    closed = {day: errno.EACCES, prefix: errno.EIO, mailbox: errno.EACCES}
    for path, error in closed.items():
        failing.fail(path, error)
    checked, repaired = lab.check(root), lab.repair(root)
    for result in (checked, repaired):
        assert {item["subject"] for item in result.items("unreadable")} == {
            str(path.relative_to(root)) for path in closed
        }
        assert result.kinds == {"unreadable": 3}
        details = {item["subject"]: item["detail"] for item in result.items("unreadable")}
        assert "Permission denied" in details[str(day.relative_to(root))]
        assert "chmod" in details[str(day.relative_to(root))]
        assert "Input/output error" in details[str(prefix.relative_to(root))]
    assert repaired.needs_attention
    failing.clear()
    assert _mail(root).keys() == before.keys()
    assert lab.seen(root) == seen
    assert lab.check(root).kinds == {}


def test_nothing_is_repaired_while_the_journal_is_unreadable(tmp_path: Path) -> None:
    """Another fault stays until the journal can be read."""
    root = tmp_path / "store"
    with new_store(root, ADA) as transport:
        append(transport, "INBOX", message("one"), flags=5, keywords=("k",))
    seen = lab.seen(root)
    (link,) = (each for each in lab.path(root, *layout.MAILBOXES).rglob("*.md"))
    link.unlink()
    before = _mail(root)
    segment = lab.path(root, *layout.JOURNAL, layout.journal_segment(1))
    failing.fail(segment, errno.EACCES)
    assert lab.check(root).kinds == {"unreadable": 1}
    repaired = lab.repair(root)
    assert repaired.kinds == {"unreadable": 1}
    assert repaired.report["verified"] is False
    assert repaired.needs_attention
    failing.clear()
    assert _mail(root) == before
    assert lab.repair(root).kinds == {"projection-missing": 1}
    assert lab.seen(root) == seen


def test_message_known_only_from_an_unreadable_file_is_shown_later(tmp_path: Path) -> None:
    """With index and journal lost, the file, its blobs and its links stay."""
    root = tmp_path / "store"
    with new_store(root, ADA) as transport:
        append(transport, "INBOX", message("one", attachments=[b"its part"]), message("two"))
        append(transport, "Archive", message("three"))
    before = lab.seen(root)
    lab.path(root, layout.INDEX_FILE).unlink()
    for place in (layout.JOURNAL, layout.SNAPSHOTS):
        shutil.rmtree(lab.path(root, *place))
        lab.path(root, *place).mkdir()
    files = lab.path(root, *layout.MESSAGES).rglob("*.md")
    file = next(each for each in files if "\nattachments:" in each.read_text())
    failing.fail(file, errno.EIO)
    first = lab.repair(root)
    assert [item["subject"] for item in first.items("unreadable")] == [os.path.relpath(file, root)]
    assert first.report["verified"], first.report
    assert first.report["severities"]["loss"] == 0
    failing.clear()
    second = lab.repair(root)
    assert second.report["verified"], second.report
    assert not second.needs_attention
    after = lab.seen(root)
    for name in ("INBOX", "Archive"):
        octets = [{row[3] for uid, row in seen[ADA, name].items() if uid} for seen in (before, after)]
        assert octets[0] == octets[1]
