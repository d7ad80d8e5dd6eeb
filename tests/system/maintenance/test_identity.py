"""Choice of the source: the store id of most files, and of two histories the complete one."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from adapter.maintenance.diff import store_identity
from adapter.maintenance.expected.normalise import SetAsideRows
from adapter.maintenance.expected.replay import BASE, Replay
from adapter.maintenance.expected.replay_process import ReplayFacts
from adapter.maintenance.findings import Finding
from adapter.maintenance.repair import messages
from adapter.maintenance.repair.folders import FolderRepair
from adapter.maintenance.repair.links import LinkPlacement
from adapter.maintenance.repair.message_rows import MessageDescriptions
from adapter.maintenance.repair.target import RepairTarget
from adapter.store import disk, folder_identity, index, layout, quarantine, segments, store_id
from adapter.store.disk import Directories
from adapter.store.queries.mailboxes import Folder
from adapter.store.segments import Header
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from tests.support.messages import message
from tests.support.store.tables import tables
from tests.support.stores import ADA, BOB, STORE, deliver, folder, id_of, new_store, placed, rows, tree
from tests.system.maintenance.lab.victims import records, write_records


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return _store(tmp_path / "store")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return _store(tmp_path / "other")


def _store(root: Path) -> Path:
    with new_store(root, ADA, BOB) as store:
        for number in range(4):
            deliver(store, ADA, octets=message(f"Letter {number}"))
        with store.quiesced() as log:
            log.rotate()
        for number in range(4):
            deliver(store, ADA, octets=message(f"Later {number}"))
    return root


def _resolved(root: Path) -> store_identity.StoreIdentity:
    before = tree(root)
    with closing(Directories(str(root))) as directories:
        verdict = store_identity.resolve_store_id(directories)
    assert tree(root) == before
    return verdict


def _write_id(root: Path, store: str) -> None:
    with closing(Directories(str(root))) as directories:
        store_id.write(directories, store)


# --- store id --------------------------------------------------------------------------------------------------------


def test_confirmed_file_in_the_root_wins(root: Path) -> None:
    assert _resolved(root) == store_identity.StoreIdentity(id_of(root), "")


@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_lost_id_is_restored_from_the_other_files(root: Path, content: bytes | None) -> None:
    store = id_of(root)
    (root / layout.STORE_ID_FILE).unlink()
    if content is not None:
        (root / layout.STORE_ID_FILE).write_bytes(content)
    assert _resolved(root) == store_identity.StoreIdentity(store, "is missing or damaged")


def test_id_that_no_other_file_has_is_wrong(root: Path) -> None:
    store = id_of(root)
    _write_id(root, STORE)
    identity = _resolved(root)
    assert identity.store == store
    assert STORE in identity.problem


def _take_index(root: Path, other: Path) -> None:
    shutil.copy(other / layout.INDEX_FILE, root / layout.INDEX_FILE)


def _take_journal(root: Path, other: Path) -> None:
    shutil.rmtree(root / "journal")
    shutil.copytree(other / "journal", root / "journal")


def _take_both(root: Path, other: Path) -> None:
    _take_index(root, other)
    _take_journal(root, other)


@pytest.mark.parametrize("take", [_take_index, _take_journal, _take_both])
@pytest.mark.parametrize("lost", [False, True])
def test_files_of_another_store_do_not_change_the_id(
    root: Path, other: Path, take: Callable[[Path, Path], None], lost: bool
) -> None:
    store = id_of(root)
    take(root, other)
    if lost and take is not _take_both:  # else two kinds of files outvote one
        (root / layout.STORE_ID_FILE).unlink()
    assert _resolved(root).store == store


def test_folders_alone_determine_the_id(root: Path) -> None:
    store = id_of(root)
    (root / layout.STORE_ID_FILE).unlink()
    (root / layout.INDEX_FILE).unlink()
    shutil.rmtree(root / "journal")
    assert _resolved(root).store == store


def test_store_without_any_id_gets_a_new_one(tmp_path: Path) -> None:
    with new_store(tmp_path / "store"):
        pass
    root = tmp_path / "store"
    store = id_of(root)
    (root / layout.STORE_ID_FILE).unlink()
    (root / layout.INDEX_FILE).unlink()
    identity = _resolved(root)
    assert store_id.FORM.match(identity.store)
    assert identity.store != store
    assert identity.problem


# --- expected tables -------------------------------------------------------------------------------------------------


def _replayed(root: Path, scratch: Path) -> ReplayFacts:
    scratch.mkdir()
    before = tree(root)
    replay = Replay(str(root), str(scratch), id_of(root))
    with closing(replay.directories):
        facts = replay.run()
    assert tree(root) == before
    return facts


def _assert_same_tables(scratch: Path, index: Path) -> None:
    assert tables(scratch / BASE) == tables(index)


def test_foreign_index_is_ignored(root: Path, other: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.sqlite"
    shutil.copy(root / layout.INDEX_FILE, own)
    _take_index(root, other)
    facts = _replayed(root, tmp_path / "scratch")
    assert (facts.source, facts.index_kind) == ("journal", "index-foreign")
    _assert_same_tables(tmp_path / "scratch", own)


def test_foreign_segments_are_ignored(root: Path, other: Path, tmp_path: Path) -> None:
    last = sorted((other / "journal").glob("*.jsonl"))[-1]
    shutil.copy(last, root / "journal" / layout.journal_segment(5000))
    header = segments.decode_header(records(last)[0])._replace(first=5000)
    write_records(root / "journal" / layout.journal_segment(5000), [header.encode(), *records(last)[1:]])
    facts = _replayed(root, tmp_path / "scratch")
    assert (facts.source, facts.index_kind) == ("journal", "")
    assert facts.foreign_segments == {layout.journal_segment(5000): id_of(other)}
    assert facts.next_seq < 5000
    _assert_same_tables(tmp_path / "scratch", root / layout.INDEX_FILE)


def _diverged_copy(root: Path, tmp_path: Path) -> Path:
    """Copy the store, then deliver different mail to both under the same record numbers."""
    copy = tmp_path / "copy"
    shutil.copytree(root, copy, symlinks=True)
    for place in (root, copy):
        with Transport.open(place) as store:
            for number in range(2):
                deliver(store, ADA, octets=message(f"{number} for {place.name} only"))
    return copy


def test_complete_journal_wins_over_a_diverged_index(root: Path, tmp_path: Path) -> None:
    copy, own = _diverged_copy(root, tmp_path), tmp_path / "own.sqlite"
    shutil.copy(root / layout.INDEX_FILE, own)
    _take_index(root, copy)
    facts = _replayed(root, tmp_path / "scratch")
    assert (facts.source, facts.index_kind) == ("journal", "index-diverged")
    _assert_same_tables(tmp_path / "scratch", own)


def test_intact_index_wins_over_a_diverged_damaged_journal(root: Path, tmp_path: Path) -> None:
    copy = _diverged_copy(root, tmp_path)
    _take_index(root, copy)
    first, *_ = sorted((root / "journal").glob("*.jsonl"))
    lines = records(first)
    write_records(first, [*lines[:3], b"#" + lines[3][1:], *lines[4:]])
    facts = _replayed(root, tmp_path / "scratch")
    assert (facts.source, facts.index_kind, facts.index_problem) == ("index", "index-diverged", "")
    replayed = tables(tmp_path / "scratch" / BASE)
    assert replayed["messages"] == tables(copy / layout.INDEX_FILE)["messages"]


def test_segment_of_another_history_breaks_the_chain(root: Path, tmp_path: Path) -> None:
    """Numbers and id fit, the checksum chain does not: the intact index wins."""
    copy = _diverged_copy(root, tmp_path)
    for place in (root, copy):
        with Transport.open(place) as store, store.quiesced() as log:
            log.rotate()
        with Transport.open(place) as store:
            deliver(store, ADA, octets=message(f"Last for {place.name}"))
    newest = sorted((root / "journal").glob("*.jsonl"))[-1]
    shutil.copy(copy / "journal" / newest.name, newest)
    with closing(index.connect(str(root / layout.INDEX_FILE), "rw")) as connection:
        (checksum,) = connection.execute("SELECT value FROM meta WHERE key = 'applied_checksum'").fetchone()
    facts = _replayed(root, tmp_path / "scratch")
    assert facts.source == "index"
    assert facts.damaged_segments == {newest.name: f"the header does not continue record {int(newest.stem) - 1}"}
    assert facts.index_kind == "index-diverged"  # index and journal have different last records
    assert checksum in facts.index_detail


def test_outdated_index_is_rebuilt(root: Path, tmp_path: Path) -> None:
    older = (root / layout.INDEX_FILE).read_bytes()
    with Transport.open(root) as store:
        deliver(store, ADA, octets=message("New"))
    newer = tmp_path / "newer.sqlite"
    shutil.copy(root / layout.INDEX_FILE, newer)
    (root / layout.INDEX_FILE).write_bytes(older)
    facts = _replayed(root, tmp_path / "scratch")
    assert (facts.source, facts.index_kind) == ("journal", "index-outdated")
    _assert_same_tables(tmp_path / "scratch", newer)


def test_outdated_journal_loses_no_mail(root: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copytree(root / "journal", older)
    with Transport.open(root) as store:
        deliver(store, ADA, octets=message("New"))
    shutil.rmtree(root / "journal")
    shutil.copytree(older, root / "journal")
    facts = _replayed(root, tmp_path / "scratch")
    assert (facts.source, facts.index_kind) == ("index", "")
    assert "are missing" in facts.gap
    _assert_same_tables(tmp_path / "scratch", root / layout.INDEX_FILE)


def test_damaged_header_is_reported(root: Path, tmp_path: Path) -> None:
    newest = sorted((root / "journal").glob("*.jsonl"))[-1]
    lines = records(newest)
    write_records(newest, [b"#" + lines[0][1:], *lines[1:]])
    facts = _replayed(root, tmp_path / "scratch")
    assert facts.source == "index"
    assert facts.damaged_segments == {newest.name: "the header does not verify"}


def test_header_of_another_segment_is_reported(root: Path, tmp_path: Path) -> None:
    newest = sorted((root / "journal").glob("*.jsonl"))[-1]
    write_records(newest, [Header(id_of(root), 3, "00000000").encode(), *records(newest)[1:]])
    assert _replayed(root, tmp_path / "scratch").damaged_segments.keys() == {newest.name}


def test_index_and_checkpoint_of_another_store_are_ignored(root: Path, other: Path, tmp_path: Path) -> None:
    """Even with the own journal lost, none of their record numbers is used."""
    with Transport.open(other) as store:
        for _ in range(20):
            deliver(store, ADA)
    _take_both(root, other)
    facts = _replayed(root, tmp_path / "scratch")
    assert (facts.source, facts.index_kind, facts.next_seq) == ("nothing", "index-foreign", 1)
    assert tables(tmp_path / "scratch" / BASE)["messages"] == []
    identity = folder_identity.decode((root / "mailboxes" / ADA / "inbox" / layout.IDENTITY_FILE).read_bytes())
    assert identity is not None
    assert identity.store == facts.store


# --- repair without a scan -------------------------------------------------------------------------------------------


@contextmanager
def _repairing(root: Path, scratch: Path) -> Iterator[FolderRepair]:
    """A FolderRepair on the tables of a replay."""
    facts = _replayed(root, scratch)
    with (
        closing(Directories(str(root))) as directories,
        closing(RepairTarget(directories, facts, str(scratch))) as state,
        closing(MessageDescriptions(str(scratch))) as descriptions,
        closing(SetAsideRows(str(scratch))) as set_aside,
    ):
        yield FolderRepair(state, {}, descriptions, set_aside)


def _inbox(repair: FolderRepair) -> Folder:
    inbox = repair.at(ADA, "inbox")
    assert inbox is not None
    return inbox


def _identity(root: Path, entry: str = "inbox") -> folder_identity.Identity:
    identity = folder_identity.decode((root / "mailboxes" / ADA / entry / layout.IDENTITY_FILE).read_bytes())
    assert identity is not None
    return identity


def _damage_record(root: Path, text: bytes) -> None:
    """Damage the record that delivered a message, so that the row of its UID is lost."""
    for segment in sorted((root / "journal").glob("*.jsonl")):
        lines = records(segment)
        write_records(segment, [b"#" + line[1:] if text in line else line for line in lines])


def test_index_of_another_store_is_quarantined(root: Path, other: Path, tmp_path: Path) -> None:
    _take_index(root, other)
    with _repairing(root, tmp_path / "scratch") as repair:
        repair.target.open_journal(replace=True)
        repair.target.finish()
    (kept,) = (root / "maintenance" / "quarantine").glob(f"*-{layout.INDEX_FILE}")
    assert kept.read_bytes() == (other / layout.INDEX_FILE).read_bytes()
    assert not list((root / "maintenance" / "index-backups").iterdir())
    with Transport.open(root) as store:
        assert folder(store).messages == 8
        deliver(store, ADA)


def test_sealed_tables_start_a_new_checksum_chain(root: Path, tmp_path: Path) -> None:
    _damage_record(root, b"Letter 1")
    with _repairing(root, tmp_path / "scratch") as repair:
        assert repair.target.facts.source == "index"
        repair.target.finish()
    with Transport.open(root) as store:
        deliver(store, ADA)
        last = store.index.applied_seq()
    facts = _replayed(root, tmp_path / "again")
    assert (facts.gap, facts.last_seq) == ("", last)
    _assert_same_tables(tmp_path / "again", root / layout.INDEX_FILE)


def test_link_keeps_its_uid_if_its_row_may_be_lost(root: Path, tmp_path: Path) -> None:
    """The link of UID 3 shows an indexed message: a copy of the one under UID 4."""
    with Transport.open(root) as store:
        message_id = rows(store)[3].message_id
    _damage_record(root, b"Letter 2")
    (root / layout.INDEX_FILE).unlink()
    with _repairing(root, tmp_path / "scratch") as repair:
        assert repair.target.facts.source == "salvage"
        inbox = _inbox(repair)
        assert inbox.uidnext == 9
        placement = LinkPlacement(repair)
        placement.project(inbox, message_id, 3)
        placement.flush()
        shown = repair.query("SELECT uid FROM mailbox_projections WHERE message_id = ? ORDER BY uid", message_id)
        assert shown == [(3,), (4,)]


def test_link_without_row_is_a_leftover_if_the_index_is_intact(root: Path, tmp_path: Path) -> None:
    _damage_record(root, b"Letter 2")
    with Transport.open(root) as store:
        gone = rows(store)[2].message_id
        store.run(op.ChangeFlags(ADA, folder(store).id, [3], "add", 8))
        store.run(op.Expunge(ADA, folder(store).id))
    with _repairing(root, tmp_path / "scratch") as repair:
        assert repair.target.facts.source == "index"
        placement = LinkPlacement(repair)
        placement.project(_inbox(repair), gone, 3)
        placement.flush()
        assert repair.query("SELECT uid FROM mailbox_projections WHERE message_id = ?", gone) == [(9,)]


def test_uidnext_starts_at_the_mark_if_index_and_journal_are_damaged(root: Path, tmp_path: Path) -> None:
    _damage_record(root, b"Later 3")
    (root / layout.INDEX_FILE).unlink()
    with _repairing(root, tmp_path / "scratch") as repair:
        validity = _inbox(repair).uidvalidity
        assert _inbox(repair).uidnext == 8  # the last record is lost, and UID 8 was assigned
        repair.raise_uids()
        assert (_inbox(repair).uidvalidity, _inbox(repair).uidnext) == (validity, 1001)
        assert _identity(root).uids_below == 2001
        repair.raise_uids()
        assert _inbox(repair).uidnext == 2001, "again, if the repair is: those between were perhaps given out"


def test_uidvalidity_is_new_if_the_assigned_uids_are_unknown(root: Path, tmp_path: Path) -> None:
    _damage_record(root, b"Later 3")
    (root / layout.INDEX_FILE).unlink()
    identity = _identity(root)
    file = root / "mailboxes" / ADA / "inbox" / layout.IDENTITY_FILE
    file.unlink()
    file.write_bytes(b"torn")
    with _repairing(root, tmp_path / "scratch") as repair:
        done = repair.folder(Finding("folder-identity-damaged", "x", mailbox=ADA, entry="inbox"))
        assert "new UIDVALIDITY" in done.done
        assert _inbox(repair).uidvalidity > identity.uidvalidity
        assert _identity(root).uidvalidity == _inbox(repair).uidvalidity


def test_mark_beyond_uidnext_raises_it_with_a_record(root: Path, tmp_path: Path) -> None:
    """Index and journal agree, but both are older than the folder's identity."""
    file = root / "mailboxes" / ADA / "inbox" / layout.IDENTITY_FILE
    identity = replace(_identity(root), uids_below=5001)
    file.unlink()
    file.write_bytes(identity.encode())
    with _repairing(root, tmp_path / "scratch") as repair:
        assert repair.target.facts.complete
        repair.target.open_journal(replace=False)
        repair.folder(Finding("uidnext-too-low", "x", mailbox=ADA, entry="inbox"))
        repair.target.finish()
    with Transport.open(root) as store:
        assert placed(deliver(store, ADA)).uid == 5001
        assert folder(store).uidvalidity == identity.uidvalidity
    assert _identity(root).uids_below == 6001
    facts = _replayed(root, tmp_path / "again")
    assert facts.complete
    _assert_same_tables(tmp_path / "again", root / layout.INDEX_FILE)


def test_identity_of_another_store_is_ignored(root: Path, other: Path, tmp_path: Path) -> None:
    own = _identity(root)
    file = root / "mailboxes" / ADA / "inbox" / layout.IDENTITY_FILE
    file.unlink()
    shutil.copy(other / file.relative_to(root), file)
    with _repairing(root, tmp_path / "scratch") as repair:
        repair.target.open_journal(replace=False)
        repair.folder(Finding("folder-identity-foreign", "x", mailbox=ADA, entry="inbox"))
        repair.target.finish()
    assert _identity(root) == own
    (kept,) = (root / "maintenance" / "quarantine").glob(f"*-{layout.IDENTITY_FILE}")
    assert kept.read_bytes() == (other / file.relative_to(root)).read_bytes()


def test_lost_message_in_an_unreadable_folder_is_recorded(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with _repairing(root, tmp_path / "scratch") as repair:
        (message_id,) = repair.query("SELECT message_id FROM mailbox_projections ORDER BY uid LIMIT 1")[0]
        monkeypatch.setattr(quarantine, "move", fail)
        outcome = messages.lose(repair, Finding("message-lost", message_id, id=message_id), "its content is lost")
        assert outcome.severity == "loss"
        assert not repair.query("SELECT 1 FROM mailbox_projections WHERE message_id = ?", message_id)
        assert repair.query("SELECT 1 FROM lost_places WHERE message_id = ?", message_id)


def test_healed_message_in_an_unreadable_folder_gets_its_new_uid(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with _repairing(root, tmp_path / "scratch") as repair:
        (row,) = repair.query("SELECT folder_id, uid, message_id FROM mailbox_projections ORDER BY uid LIMIT 1")
        folder, uid, message_id = row
        for name in ("rename", "symlink"):
            monkeypatch.setattr(disk, name, fail)
        assert "complete again" in messages.heal(repair, message_id, [])
        shown = repair.query(
            "SELECT uid FROM mailbox_projections WHERE message_id = ? AND folder_id = ?", message_id, folder
        )
        assert shown
        assert uid not in {new for (new,) in shown}
