"""Foreign entries in a store: each is reported and quarantined, and affects nothing else."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from adapter.maintenance.expected import tables
from adapter.maintenance.expected.replay import Replay
from adapter.maintenance.expected.replay_process import ReplayFacts
from adapter.maintenance.repair.apply import Apply
from adapter.store import folder_identity, layout, names, quarantine
from adapter.store.disk import Directories
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError
from tests.support import processes
from tests.support.messages import message
from tests.support.stores import ADA, BOB, append, deliver, id_of, new_store, rows, tree
from tests.system.maintenance.lab import lab, lab_stores

pytestmark = pytest.mark.timeout(900)  # Spark is slow on a busy machine

_LONG = "ü" * 127  # the maximum length of a name
_NO_DAY = "msg-20269999T999999Z-" + "0" * 20


def _folder(root: Path, name: str, address: str = ADA) -> Path:
    return lab.path(root, *layout.folder_directory(names.address_entry(address), name))


def _first_link(place: Path) -> Path:
    return next(each for each in sorted(place.iterdir()) if each.is_symlink())


def _clutter(root: Path) -> Counter[str]:
    """Create entries with meaningless names, and entries that are not what their names promise."""
    day = next(lab.path(root, *layout.MESSAGES).iterdir())
    (day / _LONG).write_text("a note")
    (day / f"{_NO_DAY}.md").mkdir()
    blobs = (each for each in lab.path(root, *layout.ATTACHMENTS).rglob("*") if each.is_file())
    blob = min(blobs, key=lambda each: each.stat().st_size)  # the journal contains it as well
    blob.unlink()
    blob.mkdir()
    letter = _first_link(_folder(root, "INBOX"))
    for entry in ("%FF", "~", "100%"):  # invalid UTF-8, invalid name, invalid escape
        place = _folder(root, "INBOX").parent / entry
        place.mkdir()
        (place / letter.name).symlink_to(os.readlink(letter))
    place = lab.path(root, *layout.mailbox_directory("x%FF@y")) / "inbox"
    place.mkdir(parents=True)
    (place / letter.name).symlink_to(os.readlink(letter))
    file = _folder(root, "Archive") / layout.IDENTITY_FILE
    file.unlink()
    os.mkfifo(file)
    link = _first_link(_folder(root, "Projects"))
    link.unlink()
    link.mkdir()
    lab.path(root, *layout.SNAPSHOTS, "7").mkdir()
    lab.path(root, *layout.STAGING, _LONG).write_text("not even a directory")
    return Counter(
        {
            "message-stray": 1,
            "message-corrupt": 1,
            "blob-corrupt": 1,
            "folder-unidentified": 4,
            "registration-missing": 1,
            "folder-identity-damaged": 1,
            "projection-wrong-target": 1,
            "staging-leftover": 1,
            "stray-entry": 1,
        }
    )


def test_foreign_entries_are_quarantined(tmp_path: Path) -> None:
    root = tmp_path / "store"
    lab_stores.build(root, snapshot=True)
    before = lab.seen(root)
    expected = _clutter(root)
    assert lab.check(root).kinds == expected
    repaired = lab.repair(root)
    assert repaired.kinds == expected
    assert repaired.report["verified"], repaired.report.get("left")
    (lost,) = [item["subject"] for item in repaired.report["items"] if item["severity"] == "loss"]
    assert lost == _NO_DAY, "it was never a message"
    after = lab.seen(root)
    assert {place: after[place] for place in before} == before
    new = [name for owner, name in after.keys() - before.keys() if owner == ADA]
    assert len([name for name in new if name.startswith("recovered-")]) == 3
    kept = [each.name for each in lab.path(root, *layout.QUARANTINE).iterdir()]
    assert len([name for name in kept if name[13:] and _LONG.startswith(name[13:])]) == 2
    assert lab.check(root).kinds == {}


@pytest.mark.parametrize("what", ["directory", "pipe", "link"])
def test_entry_in_place_of_index_or_journal_is_replaced(tmp_path: Path, what: str) -> None:
    root = tmp_path / "store"
    lab_stores.build(root)
    before = lab.seen(root)
    for place in (lab.path(root, layout.INDEX_FILE), *lab.path(root, *layout.JOURNAL).glob("*.jsonl")):
        place.unlink()
        if what == "directory":
            place.mkdir()
        elif what == "pipe":
            os.mkfifo(place)
        else:
            place.symlink_to("/etc/passwd")
    repaired = lab.repair(root)
    assert repaired.kinds.items() >= {"index-unreadable": 1, "journal-damaged": 1}.items()
    assert repaired.report["verified"], repaired.report.get("left")
    after = lab.seen(root)
    assert after.keys() == before.keys()
    assert all(shown.keys() <= after[place].keys() for place, shown in before.items())
    with Transport.open(root) as transport:
        deliver(transport, ADA)


def test_missing_directories_are_not_needed_and_other_entries_are_reported(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA):
        pass
    for place in (layout.SNAPSHOTS, layout.STAGING, layout.ATTACHMENTS, layout.MESSAGES):
        shutil.rmtree(lab.path(root, *place))
    assert lab.check(root).kinds == {}
    lab.path(root, *layout.SNAPSHOTS).write_text("a file")
    with pytest.raises(MailError, match="snapshots is not a directory"):
        lab.check(root)


def test_link_with_an_impossible_uid_gets_a_new_one(tmp_path: Path) -> None:
    """In salvage a link keeps its UID only if the UID is valid."""
    root = tmp_path / "store"
    with new_store(root, ADA, BOB) as transport:
        append(transport, "INBOX", *(message(f"{number}") for number in range(3)))
        append(transport, "Sent", message("Another"))
        last = rows(transport)[-1].message_id
    for name, old in (("INBOX", 3), ("Sent", 1)):
        place = _folder(root, name)
        (link,) = place.glob(f"{old}-*.md")
        link.rename(place / f"9999999999-{link.name.partition('-')[2]}")
    shutil.rmtree(lab.path(root, *layout.JOURNAL))
    lab.path(root, layout.INDEX_FILE).unlink()
    repaired = lab.repair(root)
    assert repaired.report["verified"], repaired.report.get("left")
    seen = lab.seen(root)
    fresh = 1 + folder_identity.UID_STEP  # beyond the mark: any UID below it may have been assigned
    assert seen[ADA, "INBOX"].keys() == {0, 1, 2, fresh}
    assert seen[ADA, "INBOX"][fresh][0] == last
    assert seen[ADA, "Sent"].keys() == {0, fresh}


def test_long_names_fit_in_quarantine(tmp_path: Path) -> None:
    (tmp_path / "maintenance").mkdir()
    for name in (_LONG, "x" * 255, "short"):
        (tmp_path / name).write_text(name)
        directories = Directories(str(tmp_path))
        try:
            moved = quarantine.move(directories, (), name, "a test")
        finally:
            directories.close()
        assert (tmp_path / moved).read_text() == name


# --- changes during a repair ---------------------------------------------------------------------------------------


def test_repair_reads_the_current_state_before_each_step(tmp_path: Path) -> None:
    """A process that ignores the service lock repairs some entries between the inspection and the repair."""
    root = tmp_path / "store"
    with new_store(root, ADA, BOB) as transport:
        for name in ("Gone", "Forged", "Copied"):
            transport.run(op.CreateFolder(ADA, name))
            append(transport, name, message(name), flags=1)
    before = lab.seen(root)
    mailbox = _folder(root, "INBOX").parent
    aside = tmp_path / "aside"
    shutil.copytree(mailbox, aside, symlinks=True)
    bob = lab.path(root, *layout.mailbox_directory(names.address_entry(BOB)))
    shutil.copytree(bob, tmp_path / "bob", symlinks=True)
    half = lab.path(root, *layout.mailbox_directory("half@made.test"))
    passwords = lab.path(root, *layout.CREDENTIALS, layout.CREDENTIALS_FILE)
    passwords.parent.mkdir(mode=0o700, exist_ok=True)
    passwords.touch(mode=0o600)

    shutil.rmtree(mailbox / "Gone")
    forged = mailbox / "Forged" / layout.IDENTITY_FILE
    own = forged.read_bytes()
    forged.unlink()
    forged.write_bytes(folder_identity.Identity(id_of(root), 12345, "reg-0000000000000000", 42, "").encode())
    shutil.copytree(mailbox / "Copied", mailbox / "Copy", symlinks=True)
    shutil.rmtree(bob)
    half.mkdir()
    passwords.write_text("dora@example.test:{ARGON2ID}x::::::\n")
    with lab.run(root, "repair") as (run, report, held):
        inspection = run.inspect()
        assert inspection.kinds.keys() == {
            "folder-row-without-path",
            "folder-two-ids",
            "folder-id-at-two-paths",
            "registration-directory-missing",
            "registration-directory-orphan",
            "credentials-orphan",
        }
        shutil.copytree(aside / "Gone", mailbox / "Gone", symlinks=True)
        forged.unlink()
        forged.write_bytes(own)
        shutil.rmtree(mailbox / "Copy")
        shutil.copytree(tmp_path / "bob", bob, symlinks=True)
        letter = _first_link(mailbox / "Copied")
        (half / "inbox").mkdir()
        (half / "inbox" / letter.name).symlink_to(os.readlink(letter))
        passwords.write_text("")
        now = tree(mailbox)
        Apply(held, inspection, {}, report.add).run()
        assert tree(mailbox) == now
    seen = lab.seen(root)
    assert {place: seen[place] for place in before} == before
    assert not [place for place in seen if place[0] == "dora@example.test"]
    assert half.exists(), "it has mail now"
    assert lab.repair(root).report["verified"]
    assert lab.seen(root)["half@made.test", "INBOX"].keys() == {0, 1}


def test_snapshot_after_the_copy_of_the_index_restarts_the_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot is ahead of the copy; an index that does not advance is one that a crashed repair left."""
    root, scratch = tmp_path / "store", tmp_path / "scratch"
    lab_stores.build(root)
    scratch.mkdir()
    copied = tables.copy_index
    starts: list[str] = []

    def copy_index(place: str, target: str) -> str:
        problem = copied(place, target)
        starts.append(problem)
        if len(starts) < 3:
            with Transport.open(root) as transport:
                deliver(transport, ADA)
                transport.snapshot()
        return problem

    monkeypatch.setattr(tables, "copy_index", copy_index)
    facts = _replayed(root, scratch)
    assert len(starts) == 3
    assert (facts.index_problem, facts.gap, facts.source) == ("", "", "journal")


def _replayed(root: Path, scratch: Path) -> ReplayFacts:
    replay = Replay(str(root), str(scratch), id_of(root))
    try:
        return replay.run()
    finally:
        replay.directories.close()


def test_snapshot_during_an_inspection_restarts_the_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction removes the journal while it is being read."""
    root = tmp_path / "store"
    lab_stores.build(root, snapshot=True)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    listed = Replay._segments
    taken: list[int] = []

    def segments(self: Replay) -> list[int]:
        segments = listed(self)
        if not taken:
            with Transport.open(root) as transport:
                for _ in range(2):
                    deliver(transport, ADA)
                    taken.append(transport.snapshot())
        return segments

    monkeypatch.setattr(Replay, "_segments", segments)
    facts = _replayed(root, scratch)
    assert taken
    assert facts.source == "journal"
    assert not facts.gap
    assert not facts.damaged_segments
    assert facts.last_seq >= taken[-1]


# --- content only in staging -----------------------------------------------------------------------------------------


def _deliver_and_crash(root: str) -> None:
    """Deliver content too large for the journal, which stays in staging until the next checkpoint."""
    transport = Transport.open(root)
    deliver(transport, ADA, octets=message("Large", "".join(f"{number} bottles\r\n" for number in range(200_000))))
    os.kill(os.getpid(), signal.SIGKILL)


def test_content_only_in_staging_is_restored(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA):
        pass
    with processes.running(_deliver_and_crash, str(root), ends_with=-signal.SIGKILL):
        pass
    for place in (layout.MESSAGES, layout.ATTACHMENTS):
        for file in lab.path(root, *place).rglob("*"):
            if file.is_file():
                file.unlink()
    checked, repaired = lab.check(root), lab.repair(root)
    for result in (checked, repaired):
        assert result.kinds["staging-leftover"] == 1
        assert result.report["severities"]["loss"] == 0, result.report["items"]
    assert repaired.report["verified"], repaired.report.get("left")
    ((_, shown),) = [item for item in lab.seen(root).items() if item[0] == (ADA, "INBOX")]
    assert shown.keys() == {0, 1}
