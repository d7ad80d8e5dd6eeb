"""Backups: created while mail is served, complete or absent, and equal to the store when restored."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from adapter.backup import create, manifest, restore, writer
from adapter.cli import main
from adapter.store import layout
from adapter.store.queries import bookmarks, contents, outbox
from adapter.transport import operations as op
from adapter.transport.transport import Transport, create_store
from protocol.errors import MailError
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.store.backups import create_backup
from tests.support.store.failing_reads import FailingReads
from tests.support.stores import ADA, deliver, folder, rows
from tests.system.maintenance.lab import lab, lab_stores


def _content(root: Path) -> dict[str, bytes]:
    tops = [lab.path(root, *top) for top in (layout.MESSAGES, layout.ATTACHMENTS)]
    return {str(path.relative_to(root)): path.read_bytes() for top in tops for path in top.rglob("*") if path.is_file()}


def _passwords(root: Path) -> Path:
    return lab.path(root, *layout.CREDENTIALS, layout.CREDENTIALS_FILE)


def test_unreadable_file_is_reported_and_the_rest_is_backed_up(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(source: int, name: str, target: int) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(writer, "hard_link", no_link)
    file = next(lab.path(root, *layout.MESSAGES).rglob("*.md"))
    FailingReads(monkeypatch).fail(file, errno.EACCES)
    created = create.create_backup(str(root), str(tmp_path / "backups"), credentials=True)
    assert created.missing == [str(file)]
    whole = _content(root)
    del whole[str(file.relative_to(root))]
    assert _content(Path(created.path)) == whole


def test_restored_store_equals_the_original(root: Path, tmp_path: Path) -> None:
    with Transport.open(root) as transport:
        transport.run(op.SetBookmarks("hook agent", {"cursor": "7"}))
    kept = Path(*layout.QUARANTINE, "some", "thing")
    (root / kept).parent.mkdir(parents=True)
    (root / kept).write_bytes(b"set aside")
    backup = create_backup(root, tmp_path / "backups")
    restored = tmp_path / "restored"
    assert restore.restore_backup(str(tmp_path / "backups"), str(restored)).path == str(backup)
    assert (restored / kept).read_bytes() == b"set aside"
    shutil.rmtree((restored / kept).parent)
    assert_layers_agree(restored, tmp_path / "scratch")
    assert lab.view(restored) == lab.view(root)
    assert lab.links(restored) == lab.links(root)
    assert _content(restored) == _content(root)
    for name in layout.CREDENTIAL_FILES:
        assert _passwords(restored).with_name(name).read_bytes() == _passwords(root).with_name(name).read_bytes()
        assert stat.S_IMODE(_passwords(restored).with_name(name).stat().st_mode) == 0o600
    assert stat.S_IMODE(_passwords(restored).parent.stat().st_mode) == 0o700
    assert lab.seen(restored) == lab.seen(root)
    with Transport.open(restored) as transport:  # and the restored store continues
        with transport.reading() as connection:
            assert bookmarks.value(connection, "hook agent", "cursor") == "7"
            assert outbox.queued(connection)
        deliver(transport, ADA)
    assert_layers_agree(restored, tmp_path / "scratch")


def test_restored_store_is_private(root: Path, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        backup = create_backup(root, tmp_path / "backups")
        (tmp_path / "again").mkdir(mode=0o755)
        restore.restore_backup(str(backup), str(tmp_path / "again"))
    finally:
        os.umask(before)
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in (tmp_path / "again").iterdir()}
    assert {name for name, mode in modes.items() if mode & 0o077} == {layout.VERSION_FILE, layout.README_FILE}


def test_journal_of_a_backup_rebuilds_the_same_store(root: Path, tmp_path: Path) -> None:
    """Snapshots and journal are complete, so the index of a backup may be lost as well."""
    create_backup(root, tmp_path / "backups")
    restored = tmp_path / "restored"
    restore.restore_backup(str(tmp_path / "backups"), str(restored))
    lab.path(restored, *layout.JOURNAL, layout.CHECKPOINT_FILE).write_text('{"seq": 0, "boot": "another"}')
    assert lab.seen(restored) == lab.seen(root)  # as after a power loss: the index is rebuilt
    assert lab.view(restored) == lab.view(root)


@pytest.mark.parametrize("seed", range(4))
def test_any_store_can_be_restored(tmp_path: Path, seed: int) -> None:
    root, restored = tmp_path / "store", tmp_path / "restored"
    lab_stores.build_random(root, random.Random(seed))
    create_backup(root, tmp_path / "backups")
    restore.restore_backup(str(tmp_path / "backups"), str(restored))
    assert_layers_agree(restored, tmp_path / "scratch")
    assert lab.view(restored) == lab.view(root)
    assert lab.links(restored) == lab.links(root)


def _inode(backup: Path, name: str) -> int:
    return (backup / name).stat().st_ino


def test_content_is_linked_on_the_same_file_system(root: Path, tmp_path: Path) -> None:
    first, second = create_backup(root, tmp_path / "backups"), create_backup(root, tmp_path / "backups")
    assert first != second
    for name in _content(root):
        assert _inode(first, name) == _inode(second, name) == _inode(root, name)
    shutil.rmtree(first)
    restore.restore_backup(str(second), str(tmp_path / "restored"))
    assert all(_inode(tmp_path / "restored", name) != _inode(root, name) for name in _content(root))


def test_content_is_copied_once_to_another_file_system(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(source: int, name: str, target: int) -> None:
        if os.readlink(f"/proc/self/fd/{source}").startswith(str(root)):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        hard_link(source, name, target)

    hard_link = writer.hard_link
    monkeypatch.setattr(writer, "hard_link", elsewhere)
    first = create.create_backup(str(root), str(tmp_path / "backups"), credentials=True)
    with Transport.open(root) as transport:
        deliver(transport, ADA, octets=message("New", attachments=[b"x" * 100_000]))
    second = create.create_backup(str(root), str(tmp_path / "backups"), credentials=True)
    content = {name: len(data) for name, data in _content(root).items()}
    assert first.linked == 0
    assert second.linked >= sum(content.values()) - 110_000
    old = [name for name in content if (Path(first.path) / name).exists()]
    assert len(old) == len(content) - 2
    for name in old:
        assert _inode(Path(first.path), name) == _inode(Path(second.path), name) != _inode(root, name)
        assert (Path(first.path) / name).stat().st_mtime_ns == (root / name).stat().st_mtime_ns
    restore.restore_backup(second.path, str(tmp_path / "restored"))
    assert lab.view(tmp_path / "restored") == lab.view(root)
    assert_layers_agree(tmp_path / "restored", tmp_path / "scratch")


@pytest.mark.parametrize("step", ["link_or_copy", "copy", "write", "publish"])
def test_interrupted_backup_is_not_a_backup(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(writer if step == "publish" else writer.TreeWriter, step, killed)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a killed process does not clean up
        with pytest.raises(Killed):
            create_backup(root, tmp_path / "backups")
    left = list((tmp_path / "backups").iterdir())
    assert [path.name[0] for path in left] == ["."]
    assert manifest.backup_names(str(tmp_path / "backups")) == []
    with pytest.raises(MailError, match="is not a backup and contains none"):
        restore.restore_backup(str(tmp_path / "backups"), str(tmp_path / "restored"))
    assert not (tmp_path / "restored").exists()
    backup = create_backup(root, tmp_path / "backups")
    assert list((tmp_path / "backups").iterdir()) == [backup]  # and the remains are removed


def test_incomplete_backup_is_refused(root: Path, tmp_path: Path) -> None:
    backup = create_backup(root, tmp_path / "backups")
    lost = next(path for path in lab.path(backup, *layout.MESSAGES).rglob("*.md"))
    lost.unlink()
    with pytest.raises(MailError, match="is incomplete"):
        restore.restore_backup(str(backup), str(tmp_path / "restored"))
    assert not (tmp_path / "restored").exists()
    with pytest.raises(MailError, match="is not a store but a backup: markpost restore makes a store of it"):
        Transport.open(backup)  # a backup cannot be opened, so no program changes it


def _append(path: Path, data: bytes) -> None:
    path.chmod(0o600)
    with path.open("ab") as file:
        file.write(data)


def test_content_changed_in_place_is_restored_and_reported(root: Path, tmp_path: Path) -> None:
    backup = create_backup(root, tmp_path / "backups")
    mail = min(lab.path(root, *layout.MESSAGES).rglob("*.md"))
    blob = min(path for path in lab.path(root, *layout.ATTACHMENTS).rglob("*") if path.is_file())
    _append(mail, b"An editor was here.\n")  # also changes the backup, which has a hard link to it
    done = _restore(backup, tmp_path / "one", status=1)
    assert done.stdout.startswith("restored ")
    assert done.stderr == (
        f"markpost: 1 file changed since the backup was taken, for example {mail.relative_to(root)};"
        f" run markpost repair --root {tmp_path / 'one'}\n"
    )
    assert _content(tmp_path / "one") == _content(root)
    assert lab.view(tmp_path / "one").keys() == lab.view(root).keys()
    _append(blob, b"x")
    assert restore.restore_backup(str(backup), str(tmp_path / "two")).changed == [
        str(path.relative_to(root)) for path in (mail, blob)
    ]


def test_changed_journal_or_index_is_reported(root: Path, tmp_path: Path) -> None:
    backup = create_backup(root, tmp_path / "backups")
    shutil.copytree(backup, tmp_path / "copy", symlinks=True)
    _append(max(lab.path(backup, *layout.JOURNAL).glob("*.jsonl")), b"x")
    assert "octets instead of" in _restore(backup, tmp_path / "one", status=1).stderr
    os.truncate(tmp_path / "copy" / layout.INDEX_FILE, 0)
    assert layout.INDEX_FILE in _restore(tmp_path / "copy", tmp_path / "two", status=1).stderr


def _restore(backup: Path, root: Path, status: int) -> Result:
    done = CliRunner().invoke(main, ["restore", str(backup), "--root", str(root)])
    assert done.exit_code == status, done.output
    return done


@contextlib.contextmanager
def _between(monkeypatch: pytest.MonkeyPatch, root: Path) -> Iterator[list[int]]:
    """Collect deleted content once, right after the state was copied."""
    copy_state, rounds = create._BackupRun._copy_state, []

    def copy_state_then_collect(run: create._BackupRun) -> int:
        seq = copy_state(run)
        rounds.append(seq)
        if len(rounds) == 1:
            with Transport.open(root) as transport:
                assert transport.run(op.Collect(before=1 << 40)) == 1
        return seq

    monkeypatch.setattr(create._BackupRun, "_copy_state", copy_state_then_collect)
    yield rounds


def test_content_collected_during_the_backup_causes_another_round(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Transport.open(root) as transport:
        transport.run(op.Collect(before=1 << 40))
        deliver(transport, ADA, octets=message("Short-lived"))
        inbox = folder(transport)
        transport.run(op.ChangeFlags(ADA, inbox.id, [rows(transport)[-1].uid], "add", 8))
    message_ids, passes = contents.message_ids, []

    def skip_first_pass(query: contents.Query) -> Iterator[str]:
        """The first pass copies no message, and the message is expunged right after it."""
        passes.append(query)
        if len(passes) > 1:
            return message_ids(query)
        with Transport.open(root) as transport:
            transport.run(op.Expunge(ADA, folder(transport).id))
        return iter(())

    monkeypatch.setattr(contents, "message_ids", skip_first_pass)
    with _between(monkeypatch, root) as rounds:
        created = create.create_backup(str(root), str(tmp_path / "backups"), credentials=True)
    assert len(rounds) == 2
    assert created.missing == []
    restore.restore_backup(created.path, str(tmp_path / "restored"))
    assert lab.view(tmp_path / "restored") == lab.view(root)
    assert_layers_agree(tmp_path / "restored", tmp_path / "scratch")


def test_unused_store_can_be_backed_up(tmp_path: Path) -> None:
    create_store(str(tmp_path / "new"))
    backup = create_backup(tmp_path / "new", tmp_path / "backups")
    restore.restore_backup(str(backup), str(tmp_path / "restored"))
    with Transport.open(tmp_path / "restored") as transport:
        transport.run(op.Register(ADA))


def test_backup_and_restore_commands(root: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    destination, restored = str(tmp_path / "backups"), str(tmp_path / "restored")
    done = runner.invoke(main, ["backup", destination, "--root", str(root), "--without-credentials"])
    assert done.exit_code == 0, done.output
    backup = done.stdout.strip()
    assert Path(backup).is_dir()
    done = runner.invoke(main, ["restore", backup, "--root", restored])
    assert done.exit_code == 0, done.output
    assert "no passwords" in done.stderr
    assert not _passwords(Path(restored)).parent.exists()
    again = runner.invoke(main, ["restore", backup, "--root", restored])
    assert again.exit_code != 0
    assert again.stderr == f"markpost: {restored} is not empty: give a new or empty directory\n"
    inside = runner.invoke(main, ["backup", str(root / "backups"), "--root", str(root)])
    assert inside.exit_code != 0
    assert "inside the store" in inside.stderr


def test_lost_content_is_reported_and_the_rest_is_backed_up(root: Path, tmp_path: Path) -> None:
    lost = next(path for path in lab.path(root, *layout.MESSAGES).rglob("*.md"))
    lost.unlink()
    done = CliRunner().invoke(main, ["backup", str(tmp_path / "backups"), "--root", str(root)])
    assert done.exit_code == 1
    assert lost.name in done.stderr
    restore.restore_backup(str(tmp_path / "backups"), str(tmp_path / "restored"))
    assert _content(tmp_path / "restored") == _content(root)
