"""Check and repair of stores restored from a backup."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter.backup import create, restore
from adapter.store import layout
from adapter.transport.transport import Transport
from tests.support.stores import ADA, deliver
from tests.system.maintenance.lab import lab, lab_stores

pytestmark = pytest.mark.needs("java")


def test_restored_store_has_no_findings(tmp_path: Path) -> None:
    root, restored = tmp_path / "store", tmp_path / "restored"
    lab_stores.build(root, snapshot=True)
    with Transport.open(root) as transport:
        deliver(transport, ADA)
        create.create_backup(str(root), str(tmp_path / "backups"), credentials=True)
        deliver(transport, ADA)
    restore.restore_backup(str(tmp_path / "backups"), str(restored))
    assert lab.check(restored).kinds == {}


def test_repair_restores_files_changed_in_a_backup(tmp_path: Path) -> None:
    root, restored = tmp_path / "store", tmp_path / "restored"
    lab_stores.build(root, snapshot=True)
    backup = create.create_backup(str(root), str(tmp_path / "backups"), credentials=True).path
    changed = max(lab.path(Path(backup), *layout.MESSAGES).rglob("*.md"))
    changed.chmod(0o600)
    changed.write_bytes(changed.read_bytes() + b"An editor was here.\n")
    assert restore.restore_backup(backup, str(restored)).changed == [str(changed.relative_to(backup))]
    repaired = lab.repair(restored)
    assert repaired.kinds == {"message-corrupt": 1}
    assert repaired.report["verified"]
