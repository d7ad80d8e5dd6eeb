"""Opening a store: refusals with one clear line, and files left untouched."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from adapter.store import disk, layout, locks
from adapter.store.disk import Directories
from adapter.store.queries import text_index
from adapter.transport import operations as op
from adapter.transport.recovery import roll_forward
from adapter.transport.transport import Transport, create_store
from protocol.errors import MailError, Reason
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.store.journals import reopened
from tests.support.stores import ADA, BOB, deliver, folder, new_store, rows, tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed store with some mail."""
    with new_store(tmp_path / "store", ADA, BOB) as store:
        deliver(store, ADA, BOB, octets=message(attachments=[b"a" * 5000]))
        store.run(op.Subscribe(ADA, "Later"))
    return tmp_path / "store"


def refusal(root: Path, lock_timeout: float = 30.0) -> MailError:
    """Open the store, and return the error: one line that says what is wrong."""
    with pytest.raises(MailError) as caught:
        Transport.open(root, lock_timeout=lock_timeout)
    assert "\n" not in str(caught.value)
    assert str(root) in str(caught.value) or "index.sqlite" in str(caught.value) or "maintenance" in str(caught.value)
    return caught.value


@contextmanager
def untouched(root: Path) -> Iterator[None]:
    before = tree(root)
    yield
    assert tree(root) == before


# --- not a store ----------------------------------------------------------------------------------------------------


def test_missing_directory_is_refused(tmp_path: Path) -> None:
    assert "markpost init" in str(refusal(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


def test_file_in_place_of_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "not a store" in str(refusal(tmp_path / "file"))


def test_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("x")
    with untouched(tmp_path / "photos"):
        assert "markpost init" in str(refusal(tmp_path / "photos"))
        with pytest.raises(MailError, match="not empty"):
            create_store(str(tmp_path / "photos"))


@pytest.mark.parametrize("version", ["2", "0", "", "1.0", "x" * 1000, "١"])
def test_unknown_version_is_refused_and_nothing_is_changed(root: Path, version: str) -> None:
    (root / "protocol-version.txt").chmod(0o644)
    (root / "protocol-version.txt").write_text(version)
    shutil.rmtree(root / "snapshots")  # opening would recreate it
    with untouched(root):
        assert "this program knows version 1" in str(refusal(root))


def test_unreadable_version_file_is_refused(root: Path) -> None:
    (root / "protocol-version.txt").unlink()
    (root / "protocol-version.txt").symlink_to("/etc/hostname")
    with untouched(root):
        assert "protocol-version.txt" in str(refusal(root))


def test_a_store_can_be_moved(root: Path, tmp_path: Path) -> None:
    shutil.move(root, tmp_path / "elsewhere")
    with Transport.open(tmp_path / "elsewhere") as store:
        assert len(rows(store)) == 1
        assert store.content.octets(rows(store)[0].message_id) == message(attachments=[b"a" * 5000])
    assert_layers_agree(tmp_path / "elsewhere", tmp_path / "scratch")


# --- other users of the machine --------------------------------------------------------------------------------------


def test_store_in_an_existing_directory_is_private_to_its_user(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir(mode=0o755)
    before = os.umask(0o022)
    try:
        with new_store(root, ADA) as store:
            deliver(store, ADA)
            with closing(text_index.connect(str(root))) as cache:
                cache.execute("CREATE TABLE more (x)")
                open_to_others = {
                    entry.name: stat.S_IMODE(entry.lstat().st_mode)
                    for entry in root.iterdir()
                    if entry.lstat().st_mode & 0o077
                }
    finally:
        os.umask(before)
    assert open_to_others == {"protocol-version.txt": 0o444, "README.md": 0o444}


# --- the index -------------------------------------------------------------------------------------------------------


def test_missing_index_is_refused_and_not_recreated(root: Path) -> None:
    (root / "index.sqlite").unlink()
    with untouched(root):
        error = refusal(root)
    assert "index.sqlite is missing" in str(error)
    assert "markpost repair" in str(error)


@pytest.mark.parametrize("content", [b"", b"not a database" * 100, b"SQLite format 3\x00" + bytes(4000)])
def test_unreadable_index_is_refused_and_left_unchanged(root: Path, content: bytes) -> None:
    (root / "index.sqlite").write_bytes(content)
    with untouched(root):
        error = refusal(root)
    assert "markpost repair" in str(error)


def test_index_of_another_schema_is_refused(root: Path) -> None:
    with closing(sqlite3.connect(root / "index.sqlite")) as index:
        index.execute("UPDATE meta SET value = 99 WHERE key = 'schema_version'")
        index.commit()
    with untouched(root):
        error = str(refusal(root))
        assert "99" in error
        assert "markpost repair" in error


def test_index_that_is_a_symbolic_link_is_refused(root: Path, tmp_path: Path) -> None:
    shutil.move(root / "index.sqlite", tmp_path / "index.sqlite")
    (root / "index.sqlite").symlink_to(tmp_path / "index.sqlite")
    assert "not a regular file" in str(refusal(root))


def test_text_index_is_not_opened_through_a_symbolic_link(root: Path, tmp_path: Path) -> None:
    (root / "cache-text.sqlite").symlink_to(tmp_path / "outside.sqlite")
    with pytest.raises(sqlite3.DatabaseError, match="not a regular file"):
        text_index.connect(str(root))
    text_index.drop(str(root))
    text_index.connect(str(root)).close()
    assert not (tmp_path / "outside.sqlite").exists()


def test_damaged_journal_is_refused(root: Path) -> None:
    segment = root / "journal" / "0000000000000001.jsonl"
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    with untouched(root):
        error = refusal_of_journal(root)
    assert "markpost repair" in str(error)


@pytest.mark.parametrize("lost", ["the last records", "the newest file", "all of it", "all, and the index is old"])
def test_journal_without_its_last_records_is_refused(root: Path, lost: str) -> None:
    """Reusing the numbers of the lost records would make repair report their effects as damage."""
    segment = root / "journal" / "0000000000000001.jsonl"
    if lost == "the last records":
        segment.write_bytes(b"".join(segment.read_bytes().splitlines(keepends=True)[:2]))
    else:
        segment.unlink()
    if lost == "all of it":
        (root / "journal" / "checkpoint.json").unlink()
    elif lost == "all, and the index is old":
        with closing(sqlite3.connect(root / "index.sqlite")) as index:
            index.execute("UPDATE meta SET value = 0 WHERE key = 'applied_seq'")
            index.commit()
    with untouched(root):
        error = refusal_of_journal(root)
    assert "to 4 are missing): run markpost repair" in str(error)


def test_journal_lost_while_the_store_is_open_stops_writes(root: Path) -> None:
    with Transport.open(root) as store:
        (root / "journal" / "0000000000000001.jsonl").unlink()
        with pytest.raises(MailError, match="records 1 to 4 are missing") as caught:
            deliver(store, ADA)
        assert caught.value.temporary
        with pytest.raises(MailError, match="are missing"):
            store.snapshot()
        with pytest.raises(MailError, match="are missing"), store.quiesced():
            pytest.fail("the end of the journal is unknown")
        assert [row.uid for row in rows(store)] == [1]
    refusal_of_journal(root)


def refusal_of_journal(root: Path) -> MailError:
    with pytest.raises(MailError, match="journal is damaged") as caught:
        Transport.open(root)
    return caught.value


# --- concurrent processes --------------------------------------------------------------------------------------------


def test_session_directory_locked_by_a_check_at_its_creation_is_claimed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check takes no store lock: it probes the lock of each session directory for a live process."""
    real = disk.make_directory
    probed: list[str] = []

    def probe_new_directory(directory: int, name: str) -> None:
        real(directory, name)
        fd = os.open(name, os.O_RDONLY, dir_fd=directory)
        fcntl.flock(fd, fcntl.LOCK_EX)
        probed.append(name)
        threading.Timer(0.05, os.close, [fd]).start()

    monkeypatch.setattr(disk, "make_directory", probe_new_directory)
    with Transport.open(root):
        assert probed == os.listdir(root / "staging")


# --- links planted in the store --------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", layout.DIRECTORIES, ids="/".join)
def test_directories_that_are_symbolic_links_are_refused(root: Path, tmp_path: Path, parts: tuple[str, ...]) -> None:
    place = root.joinpath(*parts)
    outside = tmp_path / "outside"
    shutil.move(place, outside)
    place.symlink_to(outside)
    with untouched(outside):
        assert "is not a directory" in str(refusal(root))


@pytest.mark.parametrize("place", ["mailboxes/ada@example.test", "mailboxes/ada@example.test/inbox"])
def test_mailbox_is_not_followed_through_a_symbolic_link(root: Path, tmp_path: Path, place: str) -> None:
    outside = tmp_path / "outside"
    shutil.move(root / place, outside)
    (root / place).symlink_to(outside)
    with untouched(outside), Transport.open(root) as store:
        for attempt in (
            lambda: deliver(store, ADA),
            lambda: store.run(op.RenameFolder(ADA, "INBOX", "Old")),
            lambda: store.run(op.Deregister(ADA, "purge")),
        ):
            with pytest.raises(MailError) as caught:
                attempt()
            assert caught.value.temporary
        deliver(store, BOB)  # one bad directory does not affect the others
        assert folder(store, address=BOB).messages == 2


def test_message_directory_is_not_followed_through_a_symbolic_link(root: Path, tmp_path: Path) -> None:
    (day,) = (root / "messages").iterdir()
    outside = tmp_path / "outside"
    shutil.move(day, outside)
    day.symlink_to(outside)
    with untouched(outside), Transport.open(root) as store:
        with pytest.raises(MailError):
            store.content.file(rows(store)[0].message_id)
        with pytest.raises(MailError) as caught:
            deliver(store, ADA)
        assert caught.value.temporary
        store.run(op.ChangeFlags(ADA, folder(store).id, [1], "add", 1))  # the rest of the store still works


# --- maintenance -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "shown"), [("repair since 12:00\n", "repair since 12:00"), ("", "offline")])
def test_maintenance_marker_refuses_opening(root: Path, text: str, shown: str) -> None:
    (root / "maintenance" / "offline").write_text(text)
    error = refusal(root)
    assert error.reason is Reason.MAINTENANCE
    assert shown in str(error)
    (root / "maintenance" / "offline").unlink()
    Transport.open(root).close()


def test_exclusive_service_lock_refuses_opening(root: Path) -> None:
    with open(root / "locks" / "service.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        error = refusal(root)
    assert error.reason is Reason.MAINTENANCE
    Transport.open(root).close()


def test_an_open_store_holds_the_service_lock(root: Path) -> None:
    with open(root / "locks" / "service.lock") as lock:
        with Transport.open(root), Transport.open(root), pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


# --- the file system -------------------------------------------------------------------------------------------------


def test_root_without_write_permission_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with untouched(root):
        assert "not writable" in str(refusal(root))


def test_case_insensitive_file_system_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exists = disk.exists

    def ignoring_case(directory: int, name: str) -> bool:
        return exists(directory, name) or name.lower() in {entry.lower() for entry in os.listdir(directory)}

    monkeypatch.setattr(disk, "exists", ignoring_case)
    assert "ignores case" in str(refusal(root))


def test_file_system_without_working_locks_is_refused(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "lock_descriptor", lambda fd, blocking: True)
    with pytest.raises(MailError, match="locks do not exclude"):
        Transport.open(root)
    with pytest.raises(MailError, match="locks do not exclude"):
        create_store(str(tmp_path / "new"))
    assert not (tmp_path / "new" / "protocol-version.txt").exists()  # so it is not a store


def test_opening_times_out_if_another_process_holds_the_index_lock(root: Path) -> None:
    with (
        closing(Directories(str(root))) as directories,
        closing(locks.Locks(directories, 1.0)) as held,
        held.hold(()),
        pytest.raises(MailError) as caught,
    ):
        Transport.open(root, lock_timeout=0.05)
    assert caught.value.reason is Reason.LOCK_TIMEOUT
    Transport.open(root).close()


# --- staging, closing ------------------------------------------------------------------------------------------------


def test_staging_of_a_dead_process_is_removed_and_that_of_a_live_one_is_kept(root: Path) -> None:
    left = root / "staging" / "4711-0123456789ab"
    left.mkdir()
    (left / "00000001").write_text("x")
    with Transport.open(root) as store:
        staged = store.stage(message())
        with Transport.open(root):
            pass
        store.run(op.Deliver(staged, "x@y.test", [ADA]))
    assert os.listdir(root / "staging") == []


def test_unexpected_entries_in_staging_do_not_prevent_opening(root: Path, tmp_path: Path) -> None:
    odd = root / "staging" / "4711-0123456789ab"
    (odd / "a directory").mkdir(parents=True)
    (root / "staging" / "a file").write_text("x")
    (root / "staging" / "a link").symlink_to(tmp_path)
    with Transport.open(root) as store:
        deliver(store, ADA)
    assert tmp_path.exists()


def test_closing_twice_is_allowed(root: Path) -> None:
    store = Transport.open(root)
    store.close()
    store.close()
    with pytest.raises(MailError) as caught:
        store.run(op.Subscribe(ADA, "x"))
    assert caught.value.temporary


def test_closing_leaves_no_descriptor_and_no_thread(root: Path) -> None:
    import threading

    def use() -> None:
        with Transport.open(root) as store:
            store.changes.subscribe(lambda records: None)
            deliver(store, ADA)

    use()
    before = (len(os.listdir("/proc/self/fd")), threading.active_count())
    for _ in range(3):
        use()
        with pytest.raises(MailError):
            Transport.open(root.parent)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_a_clean_store_has_nothing_to_recover(root: Path) -> None:
    with Transport.open(root) as store:
        assert store.recovered == 0
        with closing(Directories(str(root))) as directories, closing(reopened(directories)) as journal:
            assert roll_forward.find_suspect(directories, journal) is None
