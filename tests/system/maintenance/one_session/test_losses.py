"""Losses beyond the journal: index and journal, everything except the messages, content."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import get_args

import pytest

from adapter.content import front_matter
from adapter.maintenance.repair.message_rows import MessageDescriptions
from adapter.store import layout, snapshots
from adapter.store.effects import OPERATOR, Actor
from adapter.transport import operations as op
from adapter.transport.operations.registration import DeregisterMode
from adapter.transport.transport import Transport
from protocol.errors import MailError
from tests.support.messages import message
from tests.support.store.journals import actors
from tests.support.store.tables import tables as rows_of
from tests.support.stores import ADA, BOB, append, deliver, folder, new_store, rows
from tests.system.maintenance.lab import lab, lab_stores
from tests.system.maintenance.lab.victims import records, write_records

pytestmark = pytest.mark.timeout(900)  # Spark is slow on a busy machine


def _remove(root: Path, *places: layout.Parts) -> None:
    for place in places:
        shutil.rmtree(lab.path(root, *place))
        lab.path(root, *place).mkdir()


def _random_store(root: Path) -> None:
    lab_stores.build_random(root, random.Random(7))


def _without_flags(shown: lab.Folder) -> dict[int, tuple[str, str]]:
    """UID -> message and octets; under 0 the UIDVALIDITY."""
    return {uid: (row[0] if uid else row[0].split()[0], row[3]) for uid, row in shown.items()}


def _assert_same_folders(before: lab.Seen, after: lab.Seen) -> None:
    """Assert that every message has its folder and UID; new ones only if no folder showed them."""
    messages_before = {row[0] for shown in before.values() for uid, row in shown.items() if uid}
    assert after.keys() == before.keys()
    for place, shown in before.items():
        now = _without_flags(after[place])
        then = _without_flags(shown)
        assert {uid: now.get(uid) for uid in then} == then, place
        assert not [uid for uid in now.keys() - then.keys() if now[uid][0] in messages_before], place


def _with_history(root: Path) -> None:
    """Create a history: part of it in the newer of two snapshots without its journal, the rest in the journal."""
    accounts = {mode: f"{mode}@example.test" for mode in get_args(DeregisterMode)}
    lab_stores.build(root, snapshot=True)
    with Transport.open(root) as transport:
        for number, (mode, address) in enumerate(accounts.items()):
            transport.run(op.Register(address))
            deliver(transport, address, BOB, octets=message(f"To {mode}", to=address))
            transport.run(op.Deregister(address, mode))
            if number < 2:
                transport.snapshot()
        transport.run(op.Subscribe(BOB, "Nowhere"))
        transport.run(op.ChangeFlags(BOB, folder(transport, address=BOB).id, [1], "add", 3, ["late"]))


def test_lost_index_is_rebuilt(tmp_path: Path) -> None:
    """Every row of every table is restored: registrations with their status, UIDs, flags, mod-sequences, history."""
    root = tmp_path / "store"
    _with_history(root)
    before, seen = rows_of(lab.path(root, layout.INDEX_FILE)), lab.seen(root)
    assert {row[2] for row in before["mailbox_registrations"]} == {"active", "inactive", "stashed", "purged"}
    empty = {"bookmarks", "damaged_parts", "lost_places"}
    assert all(before[table] for table in snapshots.TABLES if table not in empty)
    assert not lab.path(root, *layout.JOURNAL, layout.journal_segment(1)).exists(), "the first segment was compacted"
    lab.path(root, layout.INDEX_FILE).unlink()
    repaired = lab.repair(root)
    assert repaired.kinds == {"index-missing": 1}
    assert repaired.report["source"] == "journal"
    assert repaired.report["verified"], repaired.report.get("left")
    after = rows_of(lab.path(root, layout.INDEX_FILE))
    for table in snapshots.TABLES:
        assert after[table] == before[table], table
    assert lab.seen(root) == seen


@pytest.mark.parametrize("build", [lab_stores.build, _random_store])
def test_lost_index_and_journal_are_rebuilt_from_links(tmp_path: Path, build: Callable[[Path], None]) -> None:
    root = tmp_path / "store"
    build(root)
    before, registrations = lab.seen(root), lab.view(root)["registrations"]
    lab.path(root, layout.INDEX_FILE).unlink()
    _remove(root, layout.JOURNAL, layout.SNAPSHOTS)
    repaired = lab.repair(root)
    assert repaired.report["verified"], repaired.report
    assert repaired.report["source"] == "nothing"
    assert repaired.report["severities"]["loss"] == 0
    assert "default flags" in repaired.items("folder-path-without-row")[0]["outcome"]
    assert lab.view(root)["registrations"] == registrations
    _assert_same_folders(before, lab.seen(root))
    with Transport.open(root) as transport:  # new mail reuses no UID
        assert folder(transport).uidnext > max((row.uid for row in rows(transport)), default=0)


def _uidnext(shown: lab.Folder) -> int:
    return int(shown[0][0].split()[1])


def test_journal_of_another_store_without_index(tmp_path: Path) -> None:
    """It restores nothing, and UIDVALIDITY stays. The highest UID was expunged: it is not assigned again."""
    root, other = tmp_path / "store", tmp_path / "other"
    lab_stores.build(root)
    with Transport.open(root) as transport:
        inbox = folder(transport)
        highest = max(row.uid for row in rows(transport))
        transport.run(op.ChangeFlags(ADA, inbox.id, [highest], "add", 8))
        transport.run(op.Expunge(ADA, inbox.id))
    with new_store(other, ADA, "eve@example.test") as transport:
        foreign = deliver(transport, ADA, octets=message("Not ours", message_id="<not-ours@x>")).message_id
        transport.snapshot()
        deliver(transport, ADA)
    before, registrations = lab.seen(root), lab.view(root)["registrations"]
    lab.path(root, layout.INDEX_FILE).unlink()
    for place in (layout.JOURNAL, layout.SNAPSHOTS):
        shutil.rmtree(lab.path(root, *place))
        shutil.copytree(lab.path(other, *place), lab.path(root, *place))
    with pytest.raises(MailError, match="run markpost repair"):
        Transport.open(root)
    repaired = lab.repair(root)
    assert repaired.report["verified"], repaired.report
    assert repaired.report["source"] == "nothing"
    assert repaired.kinds["journal-foreign"] == 2
    assert repaired.kinds["snapshot-foreign"] == 1
    assert repaired.report["severities"]["loss"] == 0
    assert lab.view(root)["registrations"] == registrations
    after = lab.seen(root)
    _assert_same_folders(before, after)
    assert all(_uidnext(after[place]) >= _uidnext(shown) for place, shown in before.items())
    assert not [row for shown in after.values() for row in shown.values() if row[0] == foreign]
    kept = [each.name for each in lab.path(root, *layout.QUARANTINE).iterdir()]
    assert len([name for name in kept if name.endswith(".jsonl")]) == 2
    assert len([name for name in kept if name.partition("-")[2].isdigit()]) == 1
    assert lab.check(root).kinds == {}
    with Transport.open(root) as transport:
        append(transport, "INBOX", message("Life goes on"))
        assert max(row.uid for row in rows(transport)) > highest


def test_damaged_journal_without_index(tmp_path: Path) -> None:
    """A link keeps the UID in its name: its row may be among the damaged records.

    A folder with a damaged identity has unknown assigned UIDs, so it gets a new UIDVALIDITY.
    """
    root = tmp_path / "store"
    with new_store(root, ADA) as transport:
        transport.run(op.CreateFolder(ADA, "Torn"))
        append(transport, "Torn", message("torn"))
        for number in range(12):
            append(transport, "INBOX", message(f"Letter {number}"))
        transport.run(op.ChangeFlags(ADA, folder(transport).id, [12], "add", 8))
        transport.run(op.Expunge(ADA, folder(transport).id))
        torn = folder(transport, "Torn")
    before = lab.seen(root)
    lab.path(root, layout.INDEX_FILE).unlink()
    segment = lab.path(root, *layout.JOURNAL, layout.journal_segment(1))
    lines = records(segment)
    damaged_line = next(number for number, line in enumerate(lines) if b"Letter 6" in line)
    lines[damaged_line] = lines[damaged_line].replace(b'"', b"'", 1)
    write_records(segment, lines)
    identity_file = lab.path(root, *layout.folder_directory(torn.directory, "Torn"), layout.IDENTITY_FILE)
    identity_file.unlink()
    identity_file.write_bytes(b"torn")
    repaired = lab.repair(root)
    assert repaired.report["verified"], repaired.report
    assert repaired.report["source"] == "salvage"
    assert repaired.report["severities"]["loss"] == 0
    after = lab.seen(root)
    numbers, now = before.pop((ADA, "Torn")), after.pop((ADA, "Torn"))
    assert numbers[1] == now[1]
    assert numbers[0][0].split()[0] != now[0][0].split()[0]
    assert "new UIDVALIDITY" in repaired.items("folder-identity-damaged")[0]["outcome"]
    _assert_same_folders(before, after)
    assert _uidnext(after[ADA, "INBOX"]) >= _uidnext(before[ADA, "INBOX"]) == 13


def test_truncated_journal_loses_to_the_index(tmp_path: Path) -> None:
    """A journal cut between two records, like an old copy: it is undamaged, and the index is newer."""
    root = tmp_path / "store"
    with new_store(root, ADA) as transport:
        append(transport, "INBOX", message("one"), message("two"), flags=5, keywords=("k",))
        transport.run(op.Copy(ADA, folder(transport).id, [2], "Archive"))
    before = lab.seen(root)
    segment = lab.path(root, *layout.JOURNAL, layout.journal_segment(1))
    segment.write_bytes(b"".join(segment.read_bytes().splitlines(keepends=True)[:2]))
    with pytest.raises(MailError, match="records 2 to 3 are missing"):
        Transport.open(root)
    repaired = lab.repair(root)
    assert repaired.report["verified"], repaired.report
    assert repaired.report["source"] == "index"
    assert repaired.report["severities"] == {"harmless": 0, "repaired": 1, "conflict": 0, "loss": 0, "unreadable": 0}
    assert lab.seen(root) == before
    with Transport.open(root) as transport:
        append(transport, "INBOX", message("three"))
        assert [row.uid for row in rows(transport)] == [1, 2, 3]


def test_messages_without_records_are_described_by_executors(tmp_path: Path) -> None:
    """Executors extract the index entries of messages known only from their files, even with part of a journal."""
    root = tmp_path / "store"
    _with_history(root)
    before = lab.seen(root)
    lab.path(root, layout.INDEX_FILE).unlink()
    _remove(root, layout.SNAPSHOTS)
    with lab.run(root, "check") as (run, _, _):
        inspection = run.inspect()
        assert inspection.facts.source == "salvage"
        with closing(MessageDescriptions(inspection.scratch)) as descriptions:
            unknown = [each.id for each in inspection.findings({"message-not-indexed"})]
            assert len(unknown) > 10
            assert all(descriptions.get(message_id) for message_id in unknown)
    repaired = lab.repair(root)
    assert repaired.report["verified"], repaired.report
    assert repaired.report["severities"]["loss"] == 0
    after = lab.seen(root)
    active = {place: shown for place, shown in before.items() if place[0] in lab_stores.ACCOUNTS}
    _assert_same_folders(active, {place: after[place] for place in active})


def test_damaged_index_without_journal_is_salvaged(tmp_path: Path) -> None:
    """Readable rows are salvaged, flags included; the rest comes from links."""
    root = tmp_path / "store"
    with new_store(root, ADA) as transport:
        letters = [message(f"Letter {number}", attachments=[b"%d" % number]) for number in range(40)]
        append(transport, "INBOX", *letters, flags=5, keywords=("k",))
        for _ in range(10):
            transport.run(op.Copy(ADA, folder(transport).id, range(1, 41), "Archive"))
    before = lab.seen(root)
    place = lab.path(root, layout.INDEX_FILE)
    with closing(sqlite3.connect(place)) as connection:
        leaves = connection.execute(
            "SELECT pageno FROM dbstat WHERE name = 'mailbox_state' AND pagetype = 'leaf' ORDER BY path"
        ).fetchall()
    raw = bytearray(place.read_bytes())
    for page in (1, leaves[1][0]):
        raw[(page - 1) * 4096 : page * 4096] = random.Random(page).randbytes(4096)
    place.write_bytes(raw)
    _remove(root, layout.JOURNAL, layout.SNAPSHOTS)
    repaired = lab.repair(root)
    assert repaired.report["verified"], repaired.report
    assert repaired.report["source"] == "salvage"
    assert repaired.report["severities"]["loss"] == 0
    after = lab.seen(root)
    _assert_same_folders(before, after)
    flags = [row[1] & 31 for shown in after.values() for uid, row in shown.items() if uid]
    assert set(flags) == {0, 5}
    assert flags.count(5) > flags.count(0)


def test_accounts_are_rebuilt_from_messages_alone(tmp_path: Path) -> None:
    root = tmp_path / "store"
    lab_stores.build(root)
    lab.path(root, layout.INDEX_FILE).unlink()
    _remove(root, layout.JOURNAL, layout.SNAPSHOTS, layout.MAILBOXES)
    expected: dict[str, set[str]] = {}
    for file in lab.path(root, *layout.MESSAGES).rglob("*.md"):
        matter = front_matter.read(file.read_bytes())
        for person in (*matter.to, *matter.cc):
            expected.setdefault(person.address, set()).add(file.stem)
    repaired = lab.repair(root)
    assert repaired.report["verified"], repaired.report
    assert repaired.report["severities"]["loss"] == 0
    seen = lab.seen(root)
    inboxes = {owner: {row[0] for uid, row in shown.items() if uid} for (owner, name), shown in seen.items()
               if name == "INBOX"}  # fmt: skip
    assert inboxes == expected


def test_unrecoverable_part_gets_a_placeholder(tmp_path: Path) -> None:
    """With index and journal lost as well, the message stays, with a placeholder of the same size, and is reported."""
    root = tmp_path / "store"
    lab_stores.build(root)
    before = lab.seen(root)
    lab.path(root, layout.INDEX_FILE).unlink()
    _remove(root, layout.JOURNAL, layout.SNAPSHOTS)
    blob = next(each for each in lab.path(root, *layout.ATTACHMENTS).rglob("*") if each.is_file())
    victim = next(each for each in lab.path(root, *layout.MESSAGES).rglob("*.md") if blob.name in each.read_text())
    subject = front_matter.read(victim.read_bytes()).subject
    blob.unlink()
    repaired = lab.repair(root)
    assert repaired.report["verified"], repaired.report
    (lost,) = [item for item in repaired.report["items"] if item["severity"] == "loss"]
    assert lost["subject"] == blob.name
    assert f"'{subject}' from" in lost["outcome"]
    assert repaired.needs_attention
    assert victim.exists()
    with Transport.open(root) as transport:
        octets = transport.content.octets(victim.stem)
        assert transport.index.query("SELECT size FROM messages WHERE message_id = ?", (victim.stem,)) == [
            (len(octets),)
        ]
    for shown in before.values():
        for uid, row in shown.items():
            if row[0] == victim.stem:
                assert row[3] != sha256(octets).hexdigest()
                shown[uid] = (*row[:3], sha256(octets).hexdigest())
    _assert_same_folders(before, lab.seen(root))
    again = lab.check(root)
    assert again.kinds == {}, "a recorded loss is not a finding"
    assert again.report["recorded"]["parts"] == 1
    assert again.report["recorded"]["shown"][0]["message"] == victim.stem


@pytest.mark.parametrize("subject", ["For Carol", "Message 5"])
def test_unrecoverable_message_leaves_its_folders(tmp_path: Path, subject: str) -> None:
    """A message with and without attachments."""
    root = tmp_path / "store"
    lab_stores.build(root, snapshot=True)
    with Transport.open(root) as transport:
        transport.snapshot()
        transport.snapshot()
    for segment in lab.path(root, *layout.JOURNAL).glob("*.jsonl"):
        if len(records(segment)) > 1:
            segment.unlink()
    before = lab.view(root)
    files = lab.path(root, *layout.MESSAGES).rglob("*.md")
    victim = next(each for each in files if f"\nsubject: {subject}\n" in each.read_text())
    content = victim.read_bytes()
    victim.unlink()
    repaired = lab.repair(root)
    assert set(actors(str(root), "repair")) == {Actor(OPERATOR, "markpost repair")}
    assert repaired.kinds == {"message-lost": 1}
    assert repaired.report["severities"]["loss"] == 1
    assert repaired.report["verified"], repaired.report
    assert repaired.needs_attention
    after = lab.view(root)
    assert after["rows"] == [row for row in before["rows"] if row[2] != victim.stem]
    assert after["history"] == before["history"]
    lab.seen(root)
    assert lab.check(root).kinds == {}, "a recorded loss is not a finding"
    victim.write_bytes(content)
    assert lab.repair(root).kinds == {"message-returned": 1}
    own = [row for row in before["rows"] if row[2] == victim.stem]
    back = [row for row in lab.view(root)["rows"] if row[2] == victim.stem]
    assert [(row[0], *row[2:6]) for row in back] == [(row[0], *row[2:6]) for row in own], "with its flags"
    uidnext = {row[0]: row[5] for row in before["folders"]}
    assert all(row[1] >= uidnext[row[0]] for row in back), "clients have seen the old UID expunged"
    lab.seen(root)
    assert lab.check(root).kinds == {}
