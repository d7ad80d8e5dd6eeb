"""Ctrl-C in a command that waits for its input."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from adapter.api import Store
from tests.support.paths import REPOSITORY
from tests.support.waiting import PATIENCE, wait_until


def test_delivery_waiting_for_its_message_can_be_interrupted(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with Store.create(root) as store:
        store.add_mailbox("ada@example.test")
    command = ["deliver", "--root", str(root), "--from", "", "--to", "ada@example.test", "-"]
    process = subprocess.Popen(
        [sys.executable, "-m", "adapter.cli", *command],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: any((root / "staging").iterdir()))
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 1
    assert process.stdin is not None
    process.stdin.close()
    assert not any((root / "staging").iterdir())
