"""Backups: taken while mail goes on, whole or not there at all, and a store again when they are restored."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from adapter.accounts.credentials import Credentials
from adapter.accounts.login_records import LoginRecords
from adapter.backup import create, manifest, restore, writer
from adapter.cli import main
from adapter.store import layout
from adapter.store.queries import bookmarks, outbox
from adapter.transport import operations as op
from adapter.transport.transport import Transport, create_store
from protocol.errors import MailError
from tests.support.failing_reads import FailingReads
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.processes import channel, running
from tests.support.stores import ADA, BOB, deliver, folder, new_store, rows
from tests.support.waiting import PATIENCE
from tests.system.maintenance.lab import lab, lab_stores


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with a bit of everything."""
    lab_stores.build(tmp_path / "store", snapshot=True)
    with Credentials.open(str(tmp_path / "store")) as credentials:
        credentials.set_password(ADA, "correct horse")
    records = LoginRecords(str(tmp_path / "store"), b"")
    assert records.remember(ADA, "192.0.2.1")
    records.close()
    return tmp_path / "store"


def _take(root: Path, destination: Path) -> Path:
    return Path(create.take(str(root), str(destination), credentials=True).path)


def _content(root: Path) -> dict[str, bytes]:
    tops = [lab.path(root, *top) for top in (layout.MESSAGES, layout.ATTACHMENTS)]
    return {str(path.relative_to(root)): path.read_bytes() for top in tops for path in top.rglob("*") if path.is_file()}


def _passwords(root: Path) -> Path:
    return lab.path(root, *layout.CREDENTIALS, layout.CREDENTIALS_FILE)


def test_file_that_cannot_be_read_is_named_and_the_rest_is_backed_up(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(source: int, name: str, target: int) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(writer, "hard_link", no_link)
    file = next(lab.path(root, *layout.MESSAGES).rglob("*.md"))
    FailingReads(monkeypatch).fail(file, errno.EACCES)
    taken = create.take(str(root), str(tmp_path / "backups"), credentials=True)
    assert taken.missing == [str(file)]
    whole = _content(root)
    del whole[str(file.relative_to(root))]
    assert _content(Path(taken.path)) == whole


def test_a_restored_store_is_the_same(root: Path, tmp_path: Path) -> None:
    with Transport.open(root) as transport:
        transport.run(op.SetBookmarks("hook agent", {"cursor": "7"}))
    kept = Path(*layout.QUARANTINE, "some", "thing")
    (root / kept).parent.mkdir(parents=True)
    (root / kept).write_bytes(b"set aside")
    backup = _take(root, tmp_path / "backups")
    restored = tmp_path / "restored"
    assert restore.restore(str(tmp_path / "backups"), str(restored)).path == str(backup)
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
    with Transport.open(restored) as transport:  # and it goes on where the other was
        with transport.reading() as connection:
            assert bookmarks.value(connection, "hook agent", "cursor") == "7"
            assert outbox.queued(connection)
        deliver(transport, ADA)
    assert_layers_agree(restored, tmp_path / "scratch")


def test_nobody_else_can_read_what_was_restored(root: Path, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        backup = _take(root, tmp_path / "backups")
        (tmp_path / "again").mkdir(mode=0o755)
        restore.restore(str(backup), str(tmp_path / "again"))
    finally:
        os.umask(before)
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in (tmp_path / "again").iterdir()}
    assert {name for name, mode in modes.items() if mode & 0o077} == {layout.VERSION_FILE}


def test_the_journal_of_a_backup_leads_to_the_same_store(root: Path, tmp_path: Path) -> None:
    """Snapshots and journal are in it, whole: the index could be lost as well."""
    _take(root, tmp_path / "backups")
    restored = tmp_path / "restored"
    restore.restore(str(tmp_path / "backups"), str(restored))
    lab.path(restored, *layout.JOURNAL, layout.CHECKPOINT_FILE).write_text('{"seq": 0, "boot": "another"}')
    assert lab.seen(restored) == lab.seen(root)  # as after a power loss: the index is built anew
    assert lab.view(restored) == lab.view(root)


@pytest.mark.parametrize("seed", range(4))
def test_any_store_comes_back(tmp_path: Path, seed: int) -> None:
    root, restored = tmp_path / "store", tmp_path / "restored"
    lab_stores.build_random(root, random.Random(seed))
    _take(root, tmp_path / "backups")
    restore.restore(str(tmp_path / "backups"), str(restored))
    assert_layers_agree(restored, tmp_path / "scratch")
    assert lab.view(restored) == lab.view(root)
    assert lab.links(restored) == lab.links(root)


def _write(root: str, ready: object, acknowledged: object) -> None:
    with Transport.open(root) as transport:
        for number in range(100_000):
            large = [os.urandom(200_000)] if number % 20 == 0 else []
            deliver(transport, ADA, BOB, octets=message(f"Number {number}", attachments=large))
            if number % 7 == 0:
                transport.run(op.ChangeFlags(ADA, folder(transport).id, [number + 1], "add", 1))
            if number % 11 == 0 and number:
                transport.run(op.Move(ADA, folder(transport).id, [number], "Archive"))
            if number % 30 == 29:
                with contextlib.suppress(MailError):  # it waits for nobody: there will be another
                    transport.snapshot()
            acknowledged.put(number)  # type: ignore[attr-defined]
            if not ready.empty():  # type: ignore[attr-defined]
                return


def test_mail_goes_on_meanwhile(tmp_path: Path) -> None:
    root, destination = tmp_path / "store", tmp_path / "backups"
    with new_store(root, ADA, BOB):
        pass
    enough, acknowledged = channel(), channel()
    with running(_write, str(root), enough, acknowledged):
        known, counted = -1, []
        for number in range(4):
            while known < 25 * number:
                known = acknowledged.get(timeout=PATIENCE)
            backup = _take(root, destination)
            restored = tmp_path / f"restored-{number}"
            restore.restore(str(backup), str(restored))
            assert_layers_agree(restored, tmp_path / "scratch")
            with Transport.open(restored) as transport:
                counted.append((known + 1, len(rows(transport, address=BOB))))
        enough.put("enough")
    assert all(there >= before for before, there in counted), counted
    assert counted[-1][1] > counted[0][1]


def _inode(backup: Path, name: str) -> int:
    return (backup / name).stat().st_ino


def test_content_is_linked_on_the_same_file_system(root: Path, tmp_path: Path) -> None:
    first, second = _take(root, tmp_path / "backups"), _take(root, tmp_path / "backups")
    assert first != second
    for name in _content(root):
        assert _inode(first, name) == _inode(second, name) == _inode(root, name)
    shutil.rmtree(first)
    restore.restore(str(second), str(tmp_path / "restored"))
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
    first = create.take(str(root), str(tmp_path / "backups"), credentials=True)
    with Transport.open(root) as transport:
        deliver(transport, ADA, octets=message("New", attachments=[b"x" * 100_000]))
    second = create.take(str(root), str(tmp_path / "backups"), credentials=True)
    content = {name: len(data) for name, data in _content(root).items()}
    assert first.linked == 0
    assert second.linked >= sum(content.values()) - 110_000
    old = [name for name in content if (Path(first.path) / name).exists()]
    assert len(old) == len(content) - 2
    for name in old:
        assert _inode(Path(first.path), name) == _inode(Path(second.path), name) != _inode(root, name)
        assert (Path(first.path) / name).stat().st_mtime_ns == (root / name).stat().st_mtime_ns
    restore.restore(second.path, str(tmp_path / "restored"))
    assert lab.view(tmp_path / "restored") == lab.view(root)
    assert_layers_agree(tmp_path / "restored", tmp_path / "scratch")


@pytest.mark.parametrize("step", ["take", "copy", "write", "finish"])
def test_one_that_was_interrupted_is_none(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(writer if step == "finish" else writer.Output, step, killed)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # who is killed does not clean up
        with pytest.raises(Killed):
            _take(root, tmp_path / "backups")
    left = list((tmp_path / "backups").iterdir())
    assert [path.name[0] for path in left] == ["."]
    assert manifest.complete(str(tmp_path / "backups")) == []
    with pytest.raises(MailError, match="is no backup"):
        restore.restore(str(tmp_path / "backups"), str(tmp_path / "restored"))
    assert not (tmp_path / "restored").exists()
    backup = _take(root, tmp_path / "backups")
    assert list((tmp_path / "backups").iterdir()) == [backup]  # what was left is gone


def test_killed_at_any_moment(root: Path, tmp_path: Path) -> None:
    """Whatever has a name can be restored; what has none goes with the next backup."""
    destination = tmp_path / "backups"
    command = [sys.executable, "-m", "adapter.cli", "backup", str(destination), "--root", str(root)]
    for number in range(5):
        left = set(destination.glob(".*"))
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while set(destination.glob(".*")) <= left and process.poll() is None:
            time.sleep(0.001)
        time.sleep(0.01 * number)
        process.kill()
        process.wait(PATIENCE)
    for name in manifest.complete(str(destination)):
        restore.restore(str(destination / name), str(tmp_path / f"restored-{name}"))
        assert lab.view(tmp_path / f"restored-{name}") == lab.view(root)
    _take(root, destination)
    assert not list(destination.glob(".*"))
    assert_layers_agree(root, tmp_path / "scratch", open_stores=0)


def test_a_copy_of_a_backup_that_lacks_something_is_not_restored(root: Path, tmp_path: Path) -> None:
    backup = _take(root, tmp_path / "backups")
    lost = next(path for path in lab.path(backup, *layout.MESSAGES).rglob("*.md"))
    lost.unlink()
    with pytest.raises(MailError, match="is not whole"):
        restore.restore(str(backup), str(tmp_path / "restored"))
    assert not (tmp_path / "restored").exists()
    with pytest.raises(MailError, match="is not a store but a backup: markpost restore makes a store of it"):
        Transport.open(backup)  # nor is the backup itself: nobody changes it by mistake


def _append(path: Path, data: bytes) -> None:
    path.chmod(0o600)
    with path.open("ab") as file:
        file.write(data)


def test_what_was_changed_in_place_is_restored_and_named(root: Path, tmp_path: Path) -> None:
    backup = _take(root, tmp_path / "backups")
    mail = min(lab.path(root, *layout.MESSAGES).rglob("*.md"))
    blob = min(path for path in lab.path(root, *layout.ATTACHMENTS).rglob("*") if path.is_file())
    _append(mail, b"An editor was here.\n")  # and so in the backup, which has a hard link to it
    done = _restore(backup, tmp_path / "one", status=1)
    assert done.stdout.startswith("restored ")
    assert done.stderr == (
        f"markpost: changed since the backup was taken: 1 file, {mail.relative_to(root)} for one;"
        f" markpost repair --root {tmp_path / 'one'} looks at it\n"
    )
    assert _content(tmp_path / "one") == _content(root)
    assert lab.view(tmp_path / "one").keys() == lab.view(root).keys()
    _append(blob, b"x")
    assert restore.restore(str(backup), str(tmp_path / "two")).changed == [
        str(path.relative_to(root)) for path in (mail, blob)
    ]


def test_other_files_of_a_backup_that_were_changed(root: Path, tmp_path: Path) -> None:
    backup = _take(root, tmp_path / "backups")
    shutil.copytree(backup, tmp_path / "copy", symlinks=True)
    _append(max(lab.path(backup, *layout.JOURNAL).glob("*.jsonl")), b"x")
    assert "octets in place of" in _restore(backup, tmp_path / "one", status=1).stderr
    os.truncate(tmp_path / "copy" / layout.INDEX_FILE, 0)
    assert layout.INDEX_FILE in _restore(tmp_path / "copy", tmp_path / "two", status=1).stderr


def _restore(backup: Path, root: Path, status: int) -> Result:
    done = CliRunner().invoke(main, ["restore", str(backup), "--root", str(root)])
    assert done.exit_code == status, done.output
    return done


@contextlib.contextmanager
def _between(monkeypatch: pytest.MonkeyPatch, root: Path) -> Iterator[list[int]]:
    """Content is collected right after the state was taken, once."""
    state, rounds = create._Taker._state, []

    def state_then_collect(taker: create._Taker) -> int:
        seq = state(taker)
        rounds.append(seq)
        if len(rounds) == 1:
            with Transport.open(root) as transport:
                assert transport.run(op.Collect(before=1 << 40)) == 1
        return seq

    monkeypatch.setattr(create._Taker, "_state", state_then_collect)
    yield rounds


def test_what_is_collected_meanwhile_means_another_round(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Transport.open(root) as transport:
        transport.run(op.Collect(before=1 << 40))
        deliver(transport, ADA, octets=message("Short-lived"))
        inbox = folder(transport)
        transport.run(op.ChangeFlags(ADA, inbox.id, [rows(transport)[-1].uid], "add", 8))
    take = create._Taker._content

    def not_before(taker: create._Taker, query: create.Query) -> list[create.Place]:
        """The first look misses it, and then it goes."""
        if taker._transport.index.query == query:
            with Transport.open(root) as transport:
                transport.run(op.Expunge(ADA, folder(transport).id))
            return []
        return take(taker, query)

    monkeypatch.setattr(create._Taker, "_content", not_before)
    with _between(monkeypatch, root) as rounds:
        taken = create.take(str(root), str(tmp_path / "backups"), credentials=True)
    assert len(rounds) == 2
    assert taken.missing == []
    restore.restore(taken.path, str(tmp_path / "restored"))
    assert lab.view(tmp_path / "restored") == lab.view(root)
    assert_layers_agree(tmp_path / "restored", tmp_path / "scratch")


def test_a_store_in_which_nothing_has_happened_yet(tmp_path: Path) -> None:
    create_store(str(tmp_path / "new"))
    backup = _take(tmp_path / "new", tmp_path / "backups")
    restore.restore(str(backup), str(tmp_path / "restored"))
    with Transport.open(tmp_path / "restored") as transport:
        transport.run(op.Register(ADA))


def test_the_commands(root: Path, tmp_path: Path) -> None:
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
    assert again.stderr == f"markpost: {restored} is not empty: mail is restored to a new or empty directory\n"
    inside = runner.invoke(main, ["backup", str(root / "backups"), "--root", str(root)])
    assert inside.exit_code != 0
    assert "inside of the store" in inside.stderr


def test_what_is_lost_is_told_and_stops_nothing_else(root: Path, tmp_path: Path) -> None:
    lost = next(path for path in lab.path(root, *layout.MESSAGES).rglob("*.md"))
    lost.unlink()
    done = CliRunner().invoke(main, ["backup", str(tmp_path / "backups"), "--root", str(root)])
    assert done.exit_code == 1
    assert lost.name in done.stderr
    restore.restore(str(tmp_path / "backups"), str(tmp_path / "restored"))
    assert _content(tmp_path / "restored") == _content(root)
