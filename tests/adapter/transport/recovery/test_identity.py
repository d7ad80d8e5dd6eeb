"""Store identity and history: checks when a store is opened, and the UID marks of folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from adapter.backup import create, restore
from adapter.store import folder_identity, index, layout, snapshots, store_id
from adapter.store.disk import Directories
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.stores import ADA, BOB, STORE, append, deliver, folder, id_of, new_store, tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return _store(tmp_path / "store")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another store with the same accounts, and as many records."""
    return _store(tmp_path / "other")


def _store(root: Path) -> Path:
    with new_store(root, ADA, BOB) as store:
        deliver(store, ADA, BOB)
        store.snapshot()
        deliver(store, ADA)
    return root


@contextmanager
def _refused(root: Path, what: str) -> Iterator[None]:
    """Opening fails with one line that names the command to run, and changes nothing."""
    before = tree(root)
    with pytest.raises(MailError, match=what) as caught:
        Transport.open(root)
    assert str(caught.value).endswith("run markpost repair")
    assert "\n" not in str(caught.value)
    assert tree(root) == before
    yield


def test_every_store_has_its_own_id(root: Path, other: Path) -> None:
    assert id_of(root) != id_of(other)
    assert store_id.FORM.match(id_of(root))


@pytest.mark.parametrize("content", [None, b"", b"store: x\n", store_id.encode(STORE)[:-2] + b"!\n"])
def test_store_with_a_missing_or_damaged_id_is_refused(root: Path, content: bytes | None) -> None:
    (root / layout.STORE_ID_FILE).unlink()
    if content is not None:
        (root / layout.STORE_ID_FILE).write_bytes(content)
    with _refused(root, "store-id.txt is missing or damaged"):
        pass


def test_the_index_of_another_store_is_refused(root: Path, other: Path) -> None:
    shutil.copy(other / layout.INDEX_FILE, root / layout.INDEX_FILE)
    with _refused(root, f"index.sqlite is of another store .*{id_of(other)}"):
        pass


def test_the_journal_of_another_store_is_refused(root: Path, other: Path) -> None:
    shutil.rmtree(root / "journal")
    shutil.copytree(other / "journal", root / "journal")
    with _refused(root, f"the journal is of another store .*{id_of(other)}"):
        pass


def test_one_old_segment_of_another_store_is_refused(root: Path, other: Path) -> None:
    old, *_ = sorted((root / "journal").glob("*.jsonl"))
    shutil.copy(other / "journal" / old.name, old)
    with _refused(root, "the journal is of another store"):
        pass


def test_index_of_another_history_is_refused(root: Path, tmp_path: Path) -> None:
    """Two copies of one store both got mail: same id, same sequence numbers, different records."""
    copy = tmp_path / "copy"
    shutil.copytree(root, copy, symlinks=True)
    for place in (root, copy):
        with Transport.open(place) as store:
            deliver(store, ADA, octets=message(f"For {place.name} only"))
    shutil.copy(copy / layout.INDEX_FILE, root / layout.INDEX_FILE)
    with _refused(root, "index.sqlite and the journal are of different histories"):
        pass


def test_older_index_of_another_history_is_refused(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(root, copy, symlinks=True)
    for place, letters in ((root, 4), (copy, 2)):
        with Transport.open(place) as store:
            for number in range(letters):
                deliver(store, ADA, octets=message(f"{number} for {place.name} only"))
    shutil.copy(copy / layout.INDEX_FILE, root / layout.INDEX_FILE)
    with _refused(root, "different histories"):
        pass


def test_snapshot_of_another_store_is_ignored(root: Path, other: Path) -> None:
    """Its higher number is not mistaken for an interrupted repair and evicts no snapshot of this store."""
    with (
        closing(Directories(str(root))) as directories,
        closing(index.connect(str(other / layout.INDEX_FILE), "ro")) as connection,
    ):
        own = snapshots.available(directories)
        snapshots.write(directories, connection, 5000)
        assert snapshots.everything(directories) == [*own, 5000]
        with Transport.open(root) as store:
            deliver(store, ADA)
            taken = store.snapshot()
        assert snapshots.available(directories) == [*own, taken]
        assert snapshots.everything(directories) == [*own, taken, 5000]


def test_restored_store_keeps_its_id(root: Path, tmp_path: Path) -> None:
    taken = create.create_backup(str(root), str(tmp_path / "backups"), credentials=False)
    restored = tmp_path / "restored"
    restore.restore_backup(taken.path, str(restored))
    assert id_of(restored) == id_of(root)
    with Transport.open(restored) as store:
        deliver(store, ADA)
        assert _identity(store).store == id_of(root)
    assert_layers_agree(restored, tmp_path / "scratch")


# --- UID marks -------------------------------------------------------------------------------------------------------


def _identity(store: Transport, name: str = "inbox") -> folder_identity.Identity:
    identity = folder_identity.decode(_file(store, name).read_bytes())
    assert identity is not None
    return identity


def _file(store: Transport, name: str = "inbox") -> Path:
    return Path(store.root, "mailboxes", ADA, name, layout.IDENTITY_FILE)


def test_uid_mark_is_raised_in_steps_ahead_of_uidnext(store: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_identity, "UID_STEP", 4)
    made = store.run(op.CreateFolder(ADA, "Small"))
    marks, files = [], set()
    for _ in range(6):
        append(store, "Small", message())
        marks.append(_identity(store, "Small").uids_below)
        assert folder(store, "Small").uidnext <= marks[-1]
        files.add(os.stat(_file(store, "Small")).st_ino)
    assert marks == [5, 5, 5, 9, 9, 9]
    assert len(files) == 2, "the file is not rewritten for each message"
    store.run(op.Copy(ADA, made.id, range(1, 7), "Small"))
    assert _identity(store, "Small").uids_below == 17
    assert _file(store, "Small").stat().st_mode & 0o777 == 0o444
    assert not list(_file(store, "Small").parent.glob(f"{layout.IDENTITY_FILE}.*"))


def test_recovery_raises_an_outdated_uid_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_identity, "UID_STEP", 4)
    root = tmp_path / "store"
    with new_store(root, ADA) as store:
        store.run(op.CreateFolder(ADA, "Small"))
        append(store, "Small", message())
        store.checkpoint()
        older, file = _identity(store, "Small"), _file(store, "Small")
    index_before = (root / layout.INDEX_FILE).read_bytes()
    with Transport.open(root) as store:
        append(store, "Small", *(message() for _ in range(5)))
    file.unlink()
    file.write_bytes(older.encode())
    file.chmod(0o444)
    (root / layout.INDEX_FILE).write_bytes(index_before)
    with Transport.open(root) as store:
        assert store.recovered
        assert _identity(store, "Small").uids_below == 9
    assert_layers_agree(root, tmp_path / "scratch")


def test_delivery_continues_if_the_identity_of_a_folder_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(folder_identity, "UID_STEP", 2)
    with new_store(tmp_path / "store", ADA) as store:
        store.run(op.CreateFolder(ADA, "Small"))
        _file(store, "Small").unlink()
        _file(store, "Small").write_bytes(b"torn")
        append(store, "Small", *(message() for _ in range(5)))
        assert folder(store, "Small").messages == 5
        assert _file(store, "Small").read_bytes() == b"torn", "only repair rewrites it"
    assert "run markpost repair" in caplog.text
