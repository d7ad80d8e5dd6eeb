"""Backups beside other writers, and backups that are killed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from adapter.backup import manifest, restore
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.processes import channel, running
from tests.support.store.backups import create_backup
from tests.support.stores import ADA, BOB, deliver, folder, new_store, rows
from tests.support.waiting import PATIENCE
from tests.system.maintenance.lab import lab


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
                with contextlib.suppress(MailError):  # busy; the next one succeeds
                    transport.snapshot()
            acknowledged.put(number)  # type: ignore[attr-defined]
            if not ready.empty():  # type: ignore[attr-defined]
                return


def test_backup_is_consistent_while_mail_is_delivered(tmp_path: Path) -> None:
    root, destination = tmp_path / "store", tmp_path / "backups"
    with new_store(root, ADA, BOB):
        pass
    enough, acknowledged = channel(), channel()
    with running(_write, str(root), enough, acknowledged):
        last_number, counted = -1, []
        for number in range(4):
            while last_number < 25 * number:
                last_number = acknowledged.get(timeout=PATIENCE)
            backup = create_backup(root, destination)
            restored = tmp_path / f"restored-{number}"
            restore.restore_backup(str(backup), str(restored))
            assert_layers_agree(restored, tmp_path / "scratch")
            with Transport.open(restored) as transport:
                counted.append((last_number + 1, len(rows(transport, address=BOB))))
        enough.put("enough")
    assert all(there >= before for before, there in counted), counted
    assert counted[-1][1] > counted[0][1]


def test_backup_killed_at_any_moment_leaves_only_complete_backups(root: Path, tmp_path: Path) -> None:
    """A backup that has its final name can be restored; the next backup removes the others."""
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
    for name in manifest.backup_names(str(destination)):
        restore.restore_backup(str(destination / name), str(tmp_path / f"restored-{name}"))
        assert lab.view(tmp_path / f"restored-{name}") == lab.view(root)
    create_backup(root, destination)
    assert not list(destination.glob(".*"))
    assert_layers_agree(root, tmp_path / "scratch", open_stores=0)
