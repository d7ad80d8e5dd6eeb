"""Failed sync: content that may be lost is written again before a checkpoint reports it as durable."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from adapter.maintenance import pipeline
from adapter.store import disk
from adapter.store.disk import Directories
from adapter.transport.recovery import checkpoint
from adapter.transport.transport import Transport
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.stores import ADA, deliver, new_store, rows


@pytest.fixture
def failing_syncs(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Switch failures of syncfs on and off."""

    def fail(action: str, fd: int, name: str) -> None:
        if action == "syncfs":
            raise OSError(5, "Input/output error")

    return lambda failing: monkeypatch.setattr(disk, "on_step", fail if failing else None)


def _inode(root: Path, message_id: str) -> int:
    (file,) = root.glob(f"messages/*/{message_id}.md")
    return file.stat().st_ino


def _last_checkpoint(root: Path) -> checkpoint.Checkpoint:
    with closing(Directories(str(root))) as directories:
        latest = checkpoint.read(directories)
    assert latest is not None
    return latest


def test_after_a_failed_sync_content_is_rewritten_before_a_checkpoint_reports_it_durable(
    tmp_path: Path, failing_syncs: Callable[[bool], None]
) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA) as store:
        durable = deliver(store, ADA).message_id
        store.checkpoint()
        last = store.index.applied_seq()
        suspect = deliver(store, ADA).message_id
        failing_syncs(True)
        with pytest.raises(checkpoint.SyncFailed):
            store.checkpoint()
        failing_syncs(False)
        with pytest.raises(checkpoint.SyncFailed, match="may not be on disk"):
            store.checkpoint()
        before = _inode(root, durable), _inode(root, suspect)
    assert _last_checkpoint(root) == checkpoint.Checkpoint(last, disk.boot_id(), suspect=True)
    with Transport.open(root) as store:
        assert [row.message_id for row in rows(store)] == [durable, suspect]
        assert _last_checkpoint(root) == checkpoint.Checkpoint(store.index.applied_seq(), disk.boot_id())
        store.checkpoint()
        assert _inode(root, durable) == before[0]
        assert _inode(root, suspect) != before[1]
    assert_layers_agree(root, tmp_path / "scratch")


def test_after_a_failed_sync_a_store_in_use_is_opened_without_rewriting(
    tmp_path: Path, failing_syncs: Callable[[bool], None]
) -> None:
    """Files open in another process cannot be replaced; staged content needed for the rewrite is kept."""
    root = tmp_path / "store"
    large = message(attachments=[os.urandom(400_000)])
    with new_store(root, ADA) as first:
        deliver(first, ADA, octets=large)
        failing_syncs(True)
        with pytest.raises(checkpoint.SyncFailed):
            first.checkpoint()
        failing_syncs(False)
        with Transport.open(root) as second:
            deliver(second, ADA)
            with pytest.raises(checkpoint.SyncFailed):
                second.checkpoint()
            assert len(rows(first)) == len(rows(second)) == 2
        with Transport.open(root):
            pass
        assert _last_checkpoint(root).suspect
        kept = [path for path in (root / "staging").rglob("*") if path.is_file()]
        assert kept  # the attachment, which is not in the journal
    with Transport.open(root) as store:
        assert not _last_checkpoint(root).suspect
        assert store.content.octets(rows(store)[0].message_id) == large
    assert_layers_agree(root, tmp_path / "scratch")


def test_failed_sync_that_could_not_be_recorded_is_recorded_later(
    tmp_path: Path, failing_syncs: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    root = tmp_path / "store"
    with new_store(root, ADA) as store:
        deliver(store, ADA)
        failing_syncs(True)
        with monkeypatch.context() as patch:
            patch.setattr(disk, "replace_file", full)
            with pytest.raises(checkpoint.SyncFailed):
                store.checkpoint()
        failing_syncs(False)
        assert not _last_checkpoint(root).suspect
        with pytest.raises(checkpoint.SyncFailed):
            store.checkpoint()
        assert _last_checkpoint(root).suspect


def test_repair_rewrites_content_that_a_failed_sync_may_have_lost(
    tmp_path: Path, failing_syncs: Callable[[bool], None]
) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA) as store:
        suspect = deliver(store, ADA).message_id
        failing_syncs(True)
        with pytest.raises(checkpoint.SyncFailed):
            store.checkpoint()
        failing_syncs(False)
        before = _inode(root, suspect)
    with closing(Directories(str(root))) as directories:
        assert pipeline.roll_forward(directories) is None
    assert _inode(root, suspect) != before
    with Transport.open(root) as store:
        assert [row.message_id for row in rows(store)] == [suspect]
    assert_layers_agree(root, tmp_path / "scratch")
