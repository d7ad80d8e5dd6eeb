"""Whom a repair believes: the id that most files carry, and of two histories the one that is told completely."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from adapter.maintenance.diff import store_identity
from adapter.maintenance.expected.normalise import SetAsideRows
from adapter.maintenance.expected.replay import BASE, Replay
from adapter.maintenance.expected.replay_process import Facts
from adapter.maintenance.findings import Finding
from adapter.maintenance.repair.folders import FolderRepair
from adapter.maintenance.repair.links import LinkPlacement
from adapter.maintenance.repair.message_rows import MessageDescriptions
from adapter.maintenance.repair.target import RepairTarget
from adapter.store import folder_identity, index, layout, segments, store_id
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
        with store.still() as log:
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


# --- the id ----------------------------------------------------------------------------------------------------------


def test_the_file_in_the_root_is_right(root: Path) -> None:
    assert _resolved(root) == store_identity.StoreIdentity(id_of(root), "")


@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_a_lost_id_is_what_the_other_files_agree_on(root: Path, content: bytes | None) -> None:
    store = id_of(root)
    (root / layout.STORE_ID_FILE).unlink()
    if content is not None:
        (root / layout.STORE_ID_FILE).write_bytes(content)
    assert _resolved(root) == store_identity.StoreIdentity(store, "is missing or damaged")


def test_an_id_that_no_other_file_has_is_wrong(root: Path) -> None:
    store = id_of(root)
    _write_id(root, STORE)
    found = _resolved(root)
    assert found.store == store
    assert STORE in found.problem


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
    if lost and take is not _take_both:  # else two kinds of files stand against one
        (root / layout.STORE_ID_FILE).unlink()
    assert _resolved(root).store == store


def test_folders_alone_tell_the_id(root: Path) -> None:
    store = id_of(root)
    (root / layout.STORE_ID_FILE).unlink()
    (root / layout.INDEX_FILE).unlink()
    shutil.rmtree(root / "journal")
    assert _resolved(root).store == store


def test_a_store_without_any_id_gets_one(tmp_path: Path) -> None:
    with new_store(tmp_path / "store"):
        pass
    root = tmp_path / "store"
    store = id_of(root)
    (root / layout.STORE_ID_FILE).unlink()
    (root / layout.INDEX_FILE).unlink()
    found = _resolved(root)
    assert store_id.FORM.match(found.store)
    assert found.store != store
    assert found.problem


# --- the tables ------------------------------------------------------------------------------------------------------


def _replayed(root: Path, scratch: Path) -> Facts:
    scratch.mkdir()
    before = tree(root)
    replay = Replay(str(root), str(scratch), id_of(root))
    with closing(replay.directories):
        facts = replay.run()
    assert tree(root) == before
    return facts


def _same_tables(scratch: Path, wanted: Path) -> None:
    assert tables(scratch / BASE) == tables(wanted)


def test_a_foreign_index_is_passed_over(root: Path, other: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.sqlite"
    shutil.copy(root / layout.INDEX_FILE, own)
    _take_index(root, other)
    facts = _replayed(root, tmp_path / "scratch")
    assert (facts.source, facts.index_kind) == ("journal", "index-foreign")
    _same_tables(tmp_path / "scratch", own)


def test_foreign_segments_are_passed_over(root: Path, other: Path, tmp_path: Path) -> None:
    last = sorted((other / "journal").glob("*.jsonl"))[-1]
    shutil.copy(last, root / "journal" / layout.journal_segment(5000))
    header = segments.decode_header(records(last)[0])._replace(first=5000)
    write_records(root / "journal" / layout.journal_segment(5000), [header.encode(), *records(last)[1:]])
    facts = _replayed(root, tmp_path / "scratch")
    assert (facts.source, facts.index_kind) == ("journal", "")
    assert facts.foreign_segments == {layout.journal_segment(5000): id_of(other)}
    assert facts.next_seq < 5000
    _same_tables(tmp_path / "scratch", root / layout.INDEX_FILE)


def _went_apart(root: Path, tmp_path: Path) -> Path:
    """A copy of the store; both got other mail since, under the same numbers."""
    copy = tmp_path / "copy"
    shutil.copytree(root, copy, symlinks=True)
    for place in (root, copy):
        with Transport.open(place) as store:
            for number in range(2):
                deliver(store, ADA, octets=message(f"{number} for {place.name} only"))
    return copy


def test_of_two_histories_the_complete_journal_is_believed(root: Path, tmp_path: Path) -> None:
    copy, own = _went_apart(root, tmp_path), tmp_path / "own.sqlite"
    shutil.copy(root / layout.INDEX_FILE, own)
    _take_index(root, copy)
    facts = _replayed(root, tmp_path / "scratch")
    assert (facts.source, facts.index_kind) == ("journal", "index-diverged")
    _same_tables(tmp_path / "scratch", own)


def test_of_two_histories_the_index_is_believed_if_the_journal_is_damaged(root: Path, tmp_path: Path) -> None:
    copy = _went_apart(root, tmp_path)
    _take_index(root, copy)
    first, *_ = sorted((root / "journal").glob("*.jsonl"))
    lines = records(first)
    write_records(first, [*lines[:3], b"#" + lines[3][1:], *lines[4:]])
    facts = _replayed(root, tmp_path / "scratch")
    assert (facts.source, facts.index_kind, facts.index_problem) == ("index", "index-diverged", "")
    found = tables(tmp_path / "scratch" / BASE)
    assert found["messages"] == tables(copy / layout.INDEX_FILE)["messages"]


def test_a_segment_of_another_history_does_not_go_with_the_others(root: Path, tmp_path: Path) -> None:
    """Its numbers and its id fit, its chain does not: the index, which is whole, is believed."""
    copy = _went_apart(root, tmp_path)
    for place in (root, copy):
        with Transport.open(place) as store, store.still() as log:
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
    assert facts.index_kind == "index-diverged"  # of the last record there are two
    assert checksum in facts.index_detail


def test_an_older_index_is_built_anew(root: Path, tmp_path: Path) -> None:
    older = (root / layout.INDEX_FILE).read_bytes()
    with Transport.open(root) as store:
        deliver(store, ADA, octets=message("New"))
    newer = tmp_path / "newer.sqlite"
    shutil.copy(root / layout.INDEX_FILE, newer)
    (root / layout.INDEX_FILE).write_bytes(older)
    facts = _replayed(root, tmp_path / "scratch")
    assert (facts.source, facts.index_kind) == ("journal", "index-outdated")
    _same_tables(tmp_path / "scratch", newer)


def test_an_older_journal_does_not_take_mail_away(root: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copytree(root / "journal", older)
    with Transport.open(root) as store:
        deliver(store, ADA, octets=message("New"))
    shutil.rmtree(root / "journal")
    shutil.copytree(older, root / "journal")
    facts = _replayed(root, tmp_path / "scratch")
    assert (facts.source, facts.index_kind) == ("index", "")
    assert "are missing" in facts.gap
    _same_tables(tmp_path / "scratch", root / layout.INDEX_FILE)


def test_a_damaged_header_is_damage(root: Path, tmp_path: Path) -> None:
    newest = sorted((root / "journal").glob("*.jsonl"))[-1]
    lines = records(newest)
    write_records(newest, [b"#" + lines[0][1:], *lines[1:]])
    facts = _replayed(root, tmp_path / "scratch")
    assert facts.source == "index"
    assert facts.damaged_segments == {newest.name: "the header does not verify"}


def test_a_header_of_another_number_is_damage(root: Path, tmp_path: Path) -> None:
    newest = sorted((root / "journal").glob("*.jsonl"))[-1]
    write_records(newest, [Header(id_of(root), 3, "00000000").encode(), *records(newest)[1:]])
    assert _replayed(root, tmp_path / "scratch").damaged_segments.keys() == {newest.name}


def test_the_index_and_the_checkpoint_of_another_store_count_for_nothing(
    root: Path, other: Path, tmp_path: Path
) -> None:
    """With the own journal lost, no number of theirs becomes ours."""
    with Transport.open(other) as store:
        for _ in range(20):
            deliver(store, ADA)
    _take_both(root, other)
    facts = _replayed(root, tmp_path / "scratch")
    assert (facts.source, facts.index_kind, facts.next_seq) == ("nothing", "index-foreign", 1)
    assert tables(tmp_path / "scratch" / BASE)["messages"] == []
    found = folder_identity.decode((root / "mailboxes" / ADA / "inbox" / layout.IDENTITY_FILE).read_bytes())
    assert found is not None
    assert found.store == facts.store


# --- what is done about it, without the scan -------------------------------------------------------------------------


@contextmanager
def _repairing(root: Path, scratch: Path) -> Iterator[FolderRepair]:
    """What applies a plan, on the tables of a replay."""
    facts = _replayed(root, scratch)
    with (
        closing(Directories(str(root))) as directories,
        closing(RepairTarget(directories, facts, str(scratch))) as state,
        closing(MessageDescriptions(str(scratch))) as descriptions,
        closing(SetAsideRows(str(scratch))) as set_aside,
    ):
        yield FolderRepair(state, {}, descriptions, set_aside)


def _inbox(repair: FolderRepair) -> Folder:
    found = repair.at(ADA, "inbox")
    assert found is not None
    return found


def _identity(root: Path, entry: str = "inbox") -> folder_identity.Identity:
    found = folder_identity.decode((root / "mailboxes" / ADA / entry / layout.IDENTITY_FILE).read_bytes())
    assert found is not None
    return found


def _damage_record(root: Path, text: bytes) -> None:
    """The record that brought a message, and with it the row of its UID."""
    for segment in sorted((root / "journal").glob("*.jsonl")):
        lines = records(segment)
        write_records(segment, [b"#" + line[1:] if text in line else line for line in lines])


def test_an_index_of_another_store_goes_to_quarantine(root: Path, other: Path, tmp_path: Path) -> None:
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


def test_tables_that_are_sealed_go_on_in_a_chain_of_their_own(root: Path, tmp_path: Path) -> None:
    _damage_record(root, b"Letter 1")
    with _repairing(root, tmp_path / "scratch") as repair:
        assert repair.target.facts.source == "index"
        repair.target.finish()
    with Transport.open(root) as store:
        deliver(store, ADA)
        last = store.index.applied_seq()
    facts = _replayed(root, tmp_path / "again")
    assert (facts.gap, facts.last_seq) == ("", last)
    _same_tables(tmp_path / "again", root / layout.INDEX_FILE)


def test_a_uid_in_the_name_of_a_link_is_kept_if_the_row_may_be_what_was_lost(root: Path, tmp_path: Path) -> None:
    """The link of UID 3 shows a message whose own record is there, a copy of the one under UID 4."""
    with Transport.open(root) as store:
        wanted = rows(store)[3].message_id
    _damage_record(root, b"Letter 2")
    (root / layout.INDEX_FILE).unlink()
    with _repairing(root, tmp_path / "scratch") as repair:
        assert repair.target.facts.source == "salvage"
        inbox = _inbox(repair)
        assert inbox.uidnext == 9
        placement = LinkPlacement(repair)
        placement.project(inbox, wanted, 3)
        placement.flush()
        shown = repair.query("SELECT uid FROM mailbox_projections WHERE message_id = ? ORDER BY uid", wanted)
        assert shown == [(3,), (4,)]


def test_a_link_is_a_leftover_if_the_index_is_whole(root: Path, tmp_path: Path) -> None:
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


def test_uidnext_starts_at_the_mark_if_neither_index_nor_journal_is_whole(root: Path, tmp_path: Path) -> None:
    _damage_record(root, b"Later 3")
    (root / layout.INDEX_FILE).unlink()
    with _repairing(root, tmp_path / "scratch") as repair:
        validity = _inbox(repair).uidvalidity
        assert _inbox(repair).uidnext == 8  # the last record is lost, and UID 8 was given out
        repair.raise_uids()
        assert (_inbox(repair).uidvalidity, _inbox(repair).uidnext) == (validity, 1001)
        assert _identity(root).uids_below == 2001
        repair.raise_uids()
        assert _inbox(repair).uidnext == 2001, "again, if the repair is: those between were perhaps given out"


def test_uidvalidity_is_new_if_nothing_tells_which_uids_were_given_out(root: Path, tmp_path: Path) -> None:
    _damage_record(root, b"Later 3")
    (root / layout.INDEX_FILE).unlink()
    known = _identity(root)
    file = root / "mailboxes" / ADA / "inbox" / layout.IDENTITY_FILE
    file.unlink()
    file.write_bytes(b"torn")
    with _repairing(root, tmp_path / "scratch") as repair:
        done = repair.folder(Finding("folder-identity-damaged", "x", mailbox=ADA, entry="inbox"))
        assert "new UIDVALIDITY" in done.done
        assert _inbox(repair).uidvalidity > known.uidvalidity
        assert _identity(root).uidvalidity == _inbox(repair).uidvalidity


def test_a_mark_beyond_uidnext_raises_it_by_a_record(root: Path, tmp_path: Path) -> None:
    """Index and journal agree, but both are older than the folder's identity."""
    file = root / "mailboxes" / ADA / "inbox" / layout.IDENTITY_FILE
    known = replace(_identity(root), uids_below=5001)
    file.unlink()
    file.write_bytes(known.encode())
    with _repairing(root, tmp_path / "scratch") as repair:
        assert repair.target.facts.complete
        repair.target.open_journal(replace=False)
        repair.folder(Finding("uidnext-too-low", "x", mailbox=ADA, entry="inbox"))
        repair.target.finish()
    with Transport.open(root) as store:
        assert placed(deliver(store, ADA)).uid == 5001
        assert folder(store).uidvalidity == known.uidvalidity
    assert _identity(root).uids_below == 6001
    facts = _replayed(root, tmp_path / "again")
    assert facts.complete
    _same_tables(tmp_path / "again", root / layout.INDEX_FILE)


def test_an_identity_of_another_store_decides_nothing(root: Path, other: Path, tmp_path: Path) -> None:
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
