"""A store that was restored from a backup, before the same judge as every other."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter.backup import restoring, taking
from adapter.transport.transport import Transport
from tests.maintenance import lab, lab_stores
from tests.support.stores import ADA, deliver

pytestmark = pytest.mark.needs("java")


def test_check_finds_nothing_in_a_restored_store(tmp_path: Path) -> None:
    root, restored = tmp_path / "store", tmp_path / "restored"
    lab_stores.build(root, snapshot=True)
    with Transport.open(root) as transport:
        deliver(transport, ADA)
        taking.take(str(root), str(tmp_path / "backups"), credentials=True)
        deliver(transport, ADA)
    restoring.restore(str(tmp_path / "backups"), str(restored))
    assert lab.check(restored).kinds == {}
