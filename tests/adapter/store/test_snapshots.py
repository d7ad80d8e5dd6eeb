"""Snapshots and compaction: tables are loaded as written, and one damaged snapshot loses nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from adapter.store import index, snapshots
from adapter.store.disk import Directories
from adapter.store.journal import Journal, JournalDamaged
from adapter.transport import operations as op
from adapter.transport.recovery import rebuild
from adapter.transport.transport import Transport
from protocol.errors import MailError
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.store.scenario import steps
from tests.support.store.tables import Tables, tables
from tests.support.stores import ADA, BOB, deliver, id_of, new_store, snapshot_seqs
from tests.support.waiting import PATIENCE


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three snapshots at different points, and records after the last one."""
    root = tmp_path_factory.mktemp("snapshots") / "store"
    with new_store(root, ADA, BOB) as store:
        for number, _ in enumerate(steps(store)):
            if number in (6, 14, 21):
                store.snapshot()
    return root


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "store", symlinks=True))


def rebuilt(root: Path) -> Tables:
    path = root.parent / "rebuilt.sqlite"
    path.unlink(missing_ok=True)
    with closing(Directories(str(root))) as directories, closing(Journal(directories)) as journal:
        journal.refresh()
        rebuild.build(directories, journal, str(path))
    return tables(path)


def segments(root: Path) -> list[int]:
    return sorted(int(path.stem) for path in (root / "journal").glob("*.jsonl"))


def test_loaded_snapshot_equals_the_index(root: Path, tmp_path: Path) -> None:
    with Transport.open(root) as store:
        seq = store.snapshot()
        assert seq == store.index.applied_seq()
    with (
        closing(Directories(str(root))) as directories,
        closing(index.create(str(tmp_path / "loaded.sqlite"), id_of(root))) as connection,
    ):
        assert snapshots.load_latest(directories, connection) == seq
    assert tables(tmp_path / "loaded.sqlite") == tables(root / "index.sqlite")


def test_two_snapshots_and_the_journal_since_the_older_are_kept(root: Path) -> None:
    older, _ = snapshot_seqs(root)
    assert segments(root)[0] <= older + 1
    assert len([first for first in segments(root) if first <= older + 1]) == 1
    assert rebuilt(root) == tables(root / "index.sqlite")


@pytest.mark.parametrize("damage", ["flip", "cut", "remove a table", "remove the manifest", "empty manifest", "remove"])
def test_rebuild_uses_the_older_snapshot_if_the_newer_is_damaged(root: Path, damage: str) -> None:
    older, newer = snapshot_seqs(root)
    directory = root / "snapshots" / f"{newer:016d}"
    table, manifest = directory / "messages.parquet", directory / "manifest.json"
    for path in (table, manifest):
        path.chmod(0o644)
    if damage == "flip":
        data = bytearray(table.read_bytes())
        data[len(data) // 2] ^= 1
        table.write_bytes(data)
    elif damage == "cut":
        os.truncate(table, 10)
    elif damage == "remove a table":
        table.unlink()
    elif damage == "remove the manifest":
        manifest.unlink()
    elif damage == "empty manifest":
        manifest.write_bytes(b"{}")
    else:
        shutil.rmtree(directory)
    with closing(Directories(str(root))) as directories:
        assert not snapshots.verify(directories, newer)
        assert snapshots.verify(directories, older)
    assert rebuilt(root) == tables(root / "index.sqlite")


def test_any_changed_octet_of_a_manifest_is_detected(root: Path) -> None:
    newest = snapshot_seqs(root)[-1]
    manifest = root / "snapshots" / f"{newest:016d}" / "manifest.json"
    manifest.chmod(0o644)
    raw = manifest.read_bytes()
    with closing(Directories(str(root))) as directories:
        for at in range(len(raw) - 1):  # all but the final line end
            manifest.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
            assert not snapshots.verify(directories, newest), raw[at - 10 : at + 10]
        manifest.write_bytes(raw)
        assert snapshots.verify(directories, newest)


def test_rebuild_from_a_compacted_journal_without_a_snapshot_is_refused(root: Path) -> None:
    """A partial index must never be mistaken for a complete one."""
    for seq in snapshot_seqs(root):
        (root / "snapshots" / f"{seq:016d}" / "folders.parquet").unlink()
    with pytest.raises(JournalDamaged, match="missing"):
        rebuilt(root)


def test_snapshot_without_new_records_changes_nothing(root: Path) -> None:
    with Transport.open(root) as store:
        store.snapshot()
        before = (snapshot_seqs(root), segments(root))
        store.snapshot()
        assert (snapshot_seqs(root), segments(root)) == before
        deliver(store, ADA)
    assert rebuilt(root) == tables(root / "index.sqlite")


def test_empty_store_can_be_snapshotted(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        assert store.snapshot() == 0
        store.run(op.Register(ADA))
        store.snapshot()
    assert rebuilt(tmp_path / "store") == tables(tmp_path / "store" / "index.sqlite")


def test_unfinished_snapshot_of_a_dead_process_is_removed(root: Path) -> None:
    unfinished = root / "snapshots" / ".0000000000000999.new"
    unfinished.mkdir()
    (unfinished / "folders.parquet").write_bytes(b"half")
    with closing(Directories(str(root))) as directories:
        assert 999 not in snapshots.available(directories)
    Transport.open(root).close()
    assert not unfinished.exists()


def test_snapshot_waits_for_a_short_use_of_its_lock_and_refuses_after_a_time_limit(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Transport.open(root) as store, closing(Directories(str(root))) as directories:
        with snapshots.writing_alone(directories):
            monkeypatch.setattr(snapshots, "_PATIENCE", 0.0)
            with pytest.raises(MailError, match="another process is taking a snapshot or a backup"):
                store.snapshot()
        snapshot_lock = snapshots.writing_alone(directories)
        assert snapshot_lock.__enter__()
        monkeypatch.setattr(snapshots, "_PATIENCE", PATIENCE)
        threading.Timer(0.05, snapshot_lock.__exit__, (None, None, None)).start()
        assert store.snapshot() == store.index.applied_seq()


def test_uidvalidity_never_decreases(tmp_path: Path) -> None:
    """The highest UIDVALIDITY ever assigned may belong to a folder deleted before the snapshot."""
    root = tmp_path / "store"
    with new_store(root, ADA) as store:
        last = 0
        for number in range(4):
            last = store.run(op.CreateFolder(ADA, f"f{number}")).uidvalidity
            store.run(op.DeleteFolder(ADA, f"f{number}"))
        store.snapshot()
        store.snapshot()
    assert ("last_uidvalidity", last) in rebuilt(root)["meta"]


def test_unusual_values_survive_a_snapshot(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA) as store:
        deliver(store, ADA, octets=message("Grüße \U0001f600 \u2028", body=""), sender="")
        store.run(op.CreateFolder(ADA, "nul\x00 and more/\U0001f600"))
        store.run(op.ChangeFlags(ADA, placed_folder(store), [1], "add", 8))
        store.run(op.Expunge(ADA, placed_folder(store)))
        store.snapshot()
    assert rebuilt(root) == tables(root / "index.sqlite")


def placed_folder(store: Transport) -> int:
    with store.reading() as connection:
        return int(connection.execute("SELECT folder_id FROM folders WHERE name = 'INBOX'").fetchone()[0])


def test_snapshots_taken_during_writes_are_consistent(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA, BOB) as store, Transport.open(root) as other:
        stop = threading.Event()
        delivered: list[str] = []

        def work(transport: Transport, address: str) -> None:
            while not stop.is_set():
                delivered.append(deliver(transport, address).message_id)

        threads = [threading.Thread(target=work, args=work_of) for work_of in ((store, ADA), (other, BOB))]
        for thread in threads:
            thread.start()
        seqs = [store.snapshot() for _ in range(4)]
        stop.set()
        for thread in threads:
            thread.join()
        assert seqs == sorted(seqs)
        assert len(snapshot_seqs(root)) == min(2, len(set(seqs)))
    assert_layers_agree(root, tmp_path / "scratch")
    with closing(sqlite3.connect(root / "index.sqlite")) as connection:
        assert connection.execute("SELECT count(*) FROM messages").fetchone() == (len(delivered),)
