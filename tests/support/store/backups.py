"""A store to be backed up, and its backup."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter.accounts.credentials import Credentials
from adapter.accounts.login_records import LoginRecords
from adapter.backup import create
from tests.support.stores import ADA
from tests.system.maintenance.lab import lab_stores


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with messages, attachments, snapshots, queued mail, a password and a login record."""
    lab_stores.build(tmp_path / "store", snapshot=True)
    with Credentials.open(str(tmp_path / "store")) as credentials:
        credentials.set_password(ADA, "correct horse")
    records = LoginRecords(str(tmp_path / "store"), b"")
    assert records.remember(ADA, "192.0.2.1")
    records.close()
    return tmp_path / "store"


def create_backup(root: Path, destination: Path) -> Path:
    """Back the store up, passwords included; return the path of the backup."""
    return Path(create.create_backup(str(root), str(destination), credentials=True).path)
