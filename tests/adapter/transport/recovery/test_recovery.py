"""Recovery: the journal is ahead of the index, the files, or both, after a crash or a power loss."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from adapter.store import disk
from adapter.store.disk import Directories
from adapter.store.journal import Journal
from adapter.transport import operations as op
from adapter.transport.recovery import checkpoint, rebuild
from adapter.transport.transport import Transport
from protocol.errors import MailError
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.store.scenario import steps
from tests.support.store.tables import Tables, tables
from tests.support.stores import ADA, BOB, deliver, new_store, rows


class Story:
    """A store after one of every operation, and a copy taken before each."""

    def __init__(self, base: Path) -> None:
        self.copies: list[Path] = []
        self.names: list[str] = []
        self.seqs: list[int] = []
        with new_store(base / "store", ADA, BOB) as store:
            self._keep(base, store)
            for name in steps(store):
                self.names.append(name)
                self._keep(base, store)
        self.root = self.copies.pop()
        self.last_seq = self.seqs.pop()
        self.tables: Tables = tables(self.root / "index.sqlite")

    def _keep(self, base: Path, store: Transport) -> None:
        store.checkpoint()
        self.seqs.append(store.index.applied_seq())
        copy = base / f"before-{len(self.copies)}"
        shutil.copytree(store.root, copy, symlinks=True)
        self.copies.append(copy)

    def with_old_index(self, place: Path, copy: Path) -> Path:
        shutil.copytree(self.root, place, symlinks=True)
        shutil.copy(copy / "index.sqlite", place / "index.sqlite")
        return place

    def with_only_the_journal_new(self, place: Path, copy: Path) -> Path:
        shutil.copytree(copy, place, symlinks=True)
        for segment in (self.root / "journal").glob("*.jsonl"):
            shutil.copy(segment, place / "journal" / segment.name)
        return place


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("story"))


def reopened(root: Path, scratch: Path) -> tuple[int, Tables]:
    """Reopen the store: return the number of operations rolled forward and the tables of the index."""
    with Transport.open(root) as store:
        recovered = store.recovered
        assert deliver(store, "nobody@example.test")  # the store accepts operations
    assert_layers_agree(root, scratch)
    with Transport.open(root) as store:
        assert store.recovered == 0
    return recovered, tables(root / "index.sqlite")


def test_an_old_index_is_rolled_forward(story: Story, tmp_path: Path) -> None:
    """Every file was changed before the process died."""
    for number, copy in enumerate(story.copies):
        root = story.with_old_index(tmp_path / str(number), copy)
        recovered, recovered_tables = reopened(root, tmp_path / "scratch")
        assert recovered == story.last_seq - story.seqs[number]
        assert recovered_tables == story.tables, story.names[number]


def test_old_files_and_an_old_index_are_rolled_forward(story: Story, tmp_path: Path) -> None:
    """No file was changed before the process died."""
    for number, copy in enumerate(story.copies):
        root = story.with_only_the_journal_new(tmp_path / str(number), copy)
        recovered, recovered_tables = reopened(root, tmp_path / "scratch")
        assert recovered == story.last_seq - story.seqs[number]
        assert recovered_tables == story.tables, story.names[number]


def test_after_a_power_loss_the_index_is_rebuilt(story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "boot_id", lambda: "another boot")
    for number, copy in enumerate(story.copies):
        root = story.with_only_the_journal_new(tmp_path / str(number), copy)
        (root / "index.sqlite").write_bytes(b"torn" * 1000)
        _, recovered_tables = reopened(root, tmp_path / "scratch")
        assert recovered_tables == story.tables, story.names[number]
        (kept,) = (root / "maintenance" / "index-backups").iterdir()
        assert kept.read_bytes() == b"torn" * 1000


def test_after_a_power_loss_damaged_content_is_restored(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    shutil.copytree(story.root, root, symlinks=True)
    shutil.copy(story.copies[0] / "journal" / "checkpoint.json", root / "journal" / "checkpoint.json")
    for path in [*(root / "messages").rglob("*.md"), *(root / "attachments").rglob("*")]:
        if path.is_file():
            path.chmod(0o644)
            path.write_bytes(path.read_bytes()[:100] + b"\0" * 50)
    monkeypatch.setattr(disk, "boot_id", lambda: "another boot")
    _, recovered_tables = reopened(root, tmp_path / "scratch")
    assert recovered_tables == story.tables


def test_shared_blob_survives_the_purge_of_its_first_message_and_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the journal record of the first message contains the blob; the second refers to it."""
    root = tmp_path / "store"
    with new_store(root, ADA, BOB) as store:
        store.checkpoint()
        shutil.copy(root / "journal" / "checkpoint.json", tmp_path / "checkpoint.json")
        deliver(store, ADA, octets=message("one", attachments=[b"x" * 5000]))
        deliver(store, BOB, octets=message("two", attachments=[b"x" * 5000]))
        store.run(op.Deregister(ADA, "purge"))
    shutil.copy(tmp_path / "checkpoint.json", root / "journal" / "checkpoint.json")
    for path in (root / "attachments").rglob("*"):
        if path.is_file():
            path.unlink()
    monkeypatch.setattr(disk, "boot_id", lambda: "another boot")
    with Transport.open(root) as store:
        octets = store.content.octets(rows(store, address=BOB)[0].message_id)
        assert octets == message("two", attachments=[b"x" * 5000])
    assert_layers_agree(root, tmp_path / "scratch")


def test_nothing_is_rebuilt_when_the_journal_ends_at_the_checkpoint(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    shutil.copytree(story.root, root, symlinks=True)
    monkeypatch.setattr(disk, "boot_id", lambda: "another boot")
    with Transport.open(root) as store:
        assert store.recovered == 0
    assert os.listdir(root / "maintenance" / "index-backups") == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"seq":"x","boot":1}', None])
def test_unreadable_checkpoint_causes_a_full_rebuild(story: Story, tmp_path: Path, content: bytes | None) -> None:
    root = tmp_path / "store"
    shutil.copytree(story.root, root, symlinks=True)
    (root / "journal" / "checkpoint.json").unlink()
    if content is not None:
        (root / "journal" / "checkpoint.json").write_bytes(content)
    with Transport.open(root):
        pass
    assert len(os.listdir(root / "maintenance" / "index-backups")) == 1
    assert_layers_agree(root, tmp_path / "scratch")
    assert tables(root / "index.sqlite") == story.tables


def test_compacted_journal_without_a_checkpoint_is_recovered(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA) as store:
        for number in range(3):
            deliver(store, ADA, octets=message(str(number)))
            store.snapshot()
    assert not (root / "journal" / "0000000000000001.jsonl").exists()
    (root / "journal" / "checkpoint.json").unlink()
    before = tables(root / "index.sqlite")
    assert reopened(root, tmp_path / "scratch") == (0, before)


def test_rebuilt_index_equals_the_live_index(story: Story, tmp_path: Path) -> None:
    with closing(Directories(str(story.root))) as directories, closing(Journal(directories)) as journal:
        journal.refresh()
        assert rebuild.build(directories, journal, str(tmp_path / "new.sqlite")) == story.last_seq
    assert tables(tmp_path / "new.sqlite") == story.tables


def test_aborted_records_are_not_rolled_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA) as store:
        deliver(store, ADA)
        shutil.copy(root / "index.sqlite", tmp_path / "old.sqlite")
        before = tables(root / "index.sqlite")

        def fail(action: str, fd: int, name: str) -> None:
            if action == "symlink":
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(disk, "on_step", fail)
        with pytest.raises(MailError):
            deliver(store, ADA)
        monkeypatch.setattr(disk, "on_step", None)
        store.run(op.Subscribe(ADA, "x"))
    shutil.copy(tmp_path / "old.sqlite", root / "index.sqlite")
    recovered, recovered_tables = reopened(root, tmp_path / "scratch")
    assert recovered == 1
    assert recovered_tables["mailbox_projections"] == before["mailbox_projections"]


def test_records_of_another_process_are_applied_before_a_commit(tmp_path: Path) -> None:
    """A crashed process left records; an open store applies them before its own."""
    root = tmp_path / "store"
    with new_store(root, ADA, BOB) as store:
        deliver(store, ADA, octets=message("first"))
    dead = tmp_path / "dead"
    shutil.copytree(root, dead, symlinks=True)
    with Transport.open(dead) as other:
        deliver(other, ADA, octets=message("second"))
        other.run(op.CreateFolder(ADA, "Work"))
    with Transport.open(root) as store:
        shutil.copy(dead / "journal" / "0000000000000001.jsonl", root / "journal" / "0000000000000001.jsonl")
        deliver(store, ADA, octets=message("third"))
        assert [row.uid for row in rows(store)] == [1, 2, 3]
        assert rows(store, "Work") == []
    assert_layers_agree(root, tmp_path / "scratch")


def test_operation_that_failed_and_could_not_be_rolled_back_is_synced_and_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal's sync and its truncation failed: the caller gets an error, but the message may still appear."""
    root = tmp_path / "store"
    with new_store(root, ADA) as store:
        deliver(store, ADA, octets=message("first"))

        def fail(action: str, fd: int, name: str) -> None:
            if action in ("fsync", "truncate"):
                raise OSError(5, "Input/output error")

        monkeypatch.setattr(disk, "on_step", fail)
        with pytest.raises(MailError) as caught:
            deliver(store, ADA, octets=message("second"))
        assert caught.value.temporary
        done: list[str] = []
        monkeypatch.setattr(disk, "on_step", lambda action, fd, name: done.append(action))
        store.run(op.Subscribe(ADA, "x"))
        monkeypatch.setattr(disk, "on_step", None)
        journaled = [action for action in done if action in ("append", "fsync")]
        assert journaled[:3] == ["append", "fsync", "append"], "otherwise the unsynced page would be lost"
        assert [row.uid for row in rows(store)] == [1, 2]
    assert_layers_agree(root, tmp_path / "scratch")


# --- checkpoints -----------------------------------------------------------------------------------------------------


def test_checkpoint_records_the_last_sequence_number_and_the_boot_id(tmp_path: Path) -> None:
    with new_store(tmp_path / "store", ADA) as store, closing(Directories(store.root)) as directories:
        deliver(store, ADA)
        store.checkpoint()
        latest = checkpoint.read(directories)
        assert latest == checkpoint.Checkpoint(store.index.applied_seq(), disk.boot_id())
        deliver(store, ADA)
        assert checkpoint.read(directories) == latest
        last = store.index.applied_seq()
    with closing(Directories(str(tmp_path / "store"))) as directories:
        assert checkpoint.read(directories) == checkpoint.Checkpoint(last, disk.boot_id())


def test_closing_writes_a_final_checkpoint_even_if_one_is_in_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint in progress began before the last commit."""
    import threading

    from adapter.transport import transport as module

    monkeypatch.setattr(module, "CHECKPOINT_SECONDS", 0.0)
    begun, proceed = threading.Event(), threading.Event()
    write = checkpoint.write

    def slow(directories: Directories, seq: int) -> None:
        begun.set()
        proceed.wait(10)
        write(directories, seq)

    with new_store(tmp_path / "store", ADA) as store:
        store.checkpoint()
        monkeypatch.setattr(checkpoint, "write", slow)
        deliver(store, ADA)
        assert begun.wait(10)
        deliver(store, ADA)
        last = store.index.applied_seq()
        closer = threading.Thread(target=store.close)
        closer.start()
        proceed.set()
        closer.join()
    with closing(Directories(str(tmp_path / "store"))) as directories:
        latest = checkpoint.read(directories)
    assert latest is not None
    assert latest.seq == last


def test_content_outside_the_journal_stays_in_staging_until_a_checkpoint_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"

    def fail(action: str, fd: int, name: str) -> None:
        if action == "syncfs":
            raise OSError(5, "Input/output error")

    large = message(attachments=[os.urandom(400_000)])
    with new_store(root, ADA) as store:
        monkeypatch.setattr(disk, "on_step", fail)
        deliver(store, ADA, octets=large)
    (session,) = (root / "staging").iterdir()
    assert len(list(session.iterdir())) == 1
    monkeypatch.setattr(disk, "on_step", None)
    for path in (root / "attachments").rglob("*"):
        if path.is_file():
            path.unlink()  # as a power loss might: its directory entry was never synced
    monkeypatch.setattr(disk, "boot_id", lambda: "another boot")
    with Transport.open(root) as store:
        assert store.content.octets(rows(store)[0].message_id) == large
    assert_layers_agree(root, tmp_path / "scratch")
