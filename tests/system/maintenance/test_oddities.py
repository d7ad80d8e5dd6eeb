"""Whatever somebody put into a store by hand: it is named, it leaves, and it stops nothing but itself."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from adapter.maintenance import quarantine
from adapter.maintenance.expected import tables
from adapter.maintenance.expected.replay import Replay
from adapter.maintenance.expected.replay_process import Facts
from adapter.maintenance.repair.apply import Apply
from adapter.store import folder_identity, layout, names
from adapter.store.disk import Directories
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError
from tests.support import processes
from tests.support.messages import message
from tests.support.stores import ADA, BOB, append, deliver, id_of, new_store, rows, tree
from tests.system.maintenance.lab import lab, lab_stores

pytestmark = pytest.mark.timeout(900)  # Spark is slow on a busy machine

_LONG = "ü" * 127  # as long as a name can be
_NO_DAY = "msg-20269999T999999Z-" + "0" * 20


def _folder(root: Path, name: str, address: str = ADA) -> Path:
    return lab.path(root, *layout.folder_directory(names.address_entry(address), name))


def _first_link(place: Path) -> Path:
    return next(each for each in sorted(place.iterdir()) if each.is_symlink())


def _clutter(root: Path) -> Counter[str]:
    """Names that tell nothing, and things that are not what their names say."""
    day = next(lab.path(root, *layout.MESSAGES).iterdir())
    (day / _LONG).write_text("a note")
    (day / f"{_NO_DAY}.md").mkdir()
    blobs = (each for each in lab.path(root, *layout.ATTACHMENTS).rglob("*") if each.is_file())
    blob = min(blobs, key=lambda each: each.stat().st_size)  # which the journal holds as well
    blob.unlink()
    blob.mkdir()
    letter = _first_link(_folder(root, "INBOX"))
    for entry in ("%FF", "~", "100%"):  # no text, no name, no escape
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


def test_clutter(tmp_path: Path) -> None:
    root = tmp_path / "store"
    lab_stores.build(root, snapshot=True)
    before = lab.seen(root)
    expected = _clutter(root)
    assert lab.check(root).kinds == expected
    repaired = lab.repair(root)
    assert repaired.kinds == expected
    assert repaired.report["verified"], repaired.report.get("left")
    (lost,) = [item["subject"] for item in repaired.report["items"] if item["severity"] == "loss"]
    assert lost == _NO_DAY, "it never was a message"
    after = lab.seen(root)
    assert {place: after[place] for place in before} == before
    new = [name for owner, name in after.keys() - before.keys() if owner == ADA]
    assert len([name for name in new if name.startswith("recovered-")]) == 3
    kept = [each.name for each in lab.path(root, *layout.QUARANTINE).iterdir()]
    assert len([name for name in kept if name[13:] and _LONG.startswith(name[13:])]) == 2
    assert lab.check(root).kinds == {}


@pytest.mark.parametrize("what", ["directory", "pipe", "link"])
def test_no_file_in_the_place_of_the_index_or_the_journal(tmp_path: Path, what: str) -> None:
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


def test_a_look_needs_no_directory_but_says_what_is_in_its_place(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA):
        pass
    for place in (layout.SNAPSHOTS, layout.STAGING, layout.ATTACHMENTS, layout.MESSAGES):
        shutil.rmtree(lab.path(root, *place))
    assert lab.check(root).kinds == {}
    lab.path(root, *layout.SNAPSHOTS).write_text("a file")
    with pytest.raises(MailError, match="snapshots is not a directory"):
        lab.check(root)


def test_a_uid_that_no_client_can_name(tmp_path: Path) -> None:
    """Where links are believed, they are believed within reason."""
    root = tmp_path / "store"
    with new_store(root, ADA, BOB) as transport:
        append(transport, "INBOX", *(message(f"{number}") for number in range(3)))
        append(transport, "Sent", message("Another"))
        last = rows(transport)[-1].message_id
    for name, old in (("INBOX", 3), ("Sent", 1)):
        place = _folder(root, name)
        (found,) = place.glob(f"{old}-*.md")
        found.rename(place / f"9999999999-{found.name.partition('-')[2]}")
    shutil.rmtree(lab.path(root, *layout.JOURNAL))
    lab.path(root, layout.INDEX_FILE).unlink()
    repaired = lab.repair(root)
    assert repaired.report["verified"], repaired.report.get("left")
    seen = lab.seen(root)
    fresh = 1 + folder_identity.UID_STEP  # behind the mark: any UID below it may have been given out
    assert seen[ADA, "INBOX"].keys() == {0, 1, 2, fresh}
    assert seen[ADA, "INBOX"][fresh][0] == last
    assert seen[ADA, "Sent"].keys() == {0, fresh}


def test_names_in_quarantine_fit(tmp_path: Path) -> None:
    (tmp_path / "maintenance").mkdir()
    for name in (_LONG, "x" * 255, "short"):
        (tmp_path / name).write_text(name)
        directories = Directories(str(tmp_path))
        try:
            moved = quarantine.move(directories, (), name, "a test")
        finally:
            directories.close()
        assert (tmp_path / moved).read_text() == name


# --- what changes under repair's hands -------------------------------------------------------------------------------


def test_each_is_read_again_before_it_is_mended(tmp_path: Path) -> None:
    """Somebody who knows nothing of the service lock mends some of it by hand between the look and the repair."""
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
        found = run.inspect()
        assert found.kinds.keys() == {
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
        Apply(held, found, {}, report.add).run()
        assert tree(mailbox) == now
    seen = lab.seen(root)
    assert {place: seen[place] for place in before} == before
    assert not [place for place in seen if place[0] == "dora@example.test"]
    assert half.exists(), "it has mail by now"
    assert lab.repair(root).report["verified"]
    assert lab.seen(root)["half@made.test", "INBOX"].keys() == {0, 1}


def test_a_snapshot_right_after_the_index_was_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds more than the copy; but an index that stands still is one that a dead repair left."""
    root, scratch = tmp_path / "store", tmp_path / "scratch"
    lab_stores.build(root)
    scratch.mkdir()
    copied = tables.copy_index
    starts: list[str] = []

    def copy_index(place: str, target: str) -> str:
        trouble = copied(place, target)
        starts.append(trouble)
        if len(starts) < 3:
            with Transport.open(root) as transport:
                deliver(transport, ADA)
                transport.snapshot()
        return trouble

    monkeypatch.setattr(tables, "copy_index", copy_index)
    facts = _replayed(root, scratch)
    assert len(starts) == 3
    assert (facts.index_problem, facts.gap, facts.source) == ("", "", "journal")


def _replayed(root: Path, scratch: Path) -> Facts:
    replay = Replay(str(root), str(scratch), id_of(root))
    try:
        return replay.run()
    finally:
        replay.directories.close()


def test_a_snapshot_during_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal that it makes needless goes while it is being read."""
    root = tmp_path / "store"
    lab_stores.build(root, snapshot=True)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    listed = Replay._segments
    taken: list[int] = []

    def segments(self: Replay) -> list[int]:
        found = listed(self)
        if not taken:
            with Transport.open(root) as transport:
                for _ in range(2):
                    deliver(transport, ADA)
                    taken.append(transport.snapshot())
        return found

    monkeypatch.setattr(Replay, "_segments", segments)
    facts = _replayed(root, scratch)
    assert taken
    assert facts.source == "journal"
    assert not facts.gap
    assert not facts.damaged_segments
    assert facts.last_seq >= taken[-1]


# --- content that only staging holds ---------------------------------------------------------------------------------


def _deliver_and_die(root: str) -> None:
    """What is too large for the journal stays in staging until the next checkpoint."""
    transport = Transport.open(root)
    deliver(transport, ADA, octets=message("Large", "".join(f"{number} bottles\r\n" for number in range(200_000))))
    os.kill(os.getpid(), signal.SIGKILL)


def test_content_that_only_staging_holds(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA):
        pass
    with processes.running(_deliver_and_die, str(root), ends_with=-signal.SIGKILL):
        pass
    for place in (layout.MESSAGES, layout.ATTACHMENTS):
        for file in lab.path(root, *place).rglob("*"):
            if file.is_file():
                file.unlink()
    looked, repaired = lab.check(root), lab.repair(root)
    for result in (looked, repaired):
        assert result.kinds["staging-leftover"] == 1
        assert result.report["severities"]["loss"] == 0, result.report["items"]
    assert repaired.report["verified"], repaired.report.get("left")
    ((_, shown),) = [item for item in lab.seen(root).items() if item[0] == (ADA, "INBOX")]
    assert shown.keys() == {0, 1}
