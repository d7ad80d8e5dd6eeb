"""An import that is killed or interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adapter.api import Store
from tests.support.mail.api_stores import ADA
from tests.support.paths import REPOSITORY
from tests.support.waiting import PATIENCE, wait_until


@pytest.mark.parametrize(("signal_number", "prints_progress"), [(signal.SIGKILL, False), (signal.SIGINT, True)])
def test_interrupted_import_leaves_complete_messages_only(
    exchange_root: Path, tmp_path: Path, signal_number: int, prints_progress: bool
) -> None:
    count = 10_000  # enough for many seconds, however late the signal comes
    (tmp_path / "in" / "cur").mkdir(parents=True)
    originals = [b"Subject: %d\r\n\r\n" % number + b"text\r\n" * 50 for number in range(count)]
    for number, octets in enumerate(originals):
        (tmp_path / "in" / "cur" / f"{number}.x.host:2,FS").write_bytes(octets)
    command = ["import", "--from", str(tmp_path / "in"), "--address", ADA, "--root", str(exchange_root)]
    process = subprocess.Popen(
        [sys.executable, "-m", "adapter.cli", *command],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    inbox = exchange_root / "mailboxes" / ADA / "inbox"
    wait_until(lambda: process.poll() is not None or any(inbox.glob("*.md")))
    process.send_signal(signal_number)
    printed, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    with Store.open(exchange_root) as store:
        imported = list(reversed(store.mailbox(ADA).messages()))
        assert 0 < len(imported) < count
        assert [store.mailbox(ADA).read(each).octets() for each in imported] == originals[: len(imported)]
        assert {each.flags for each in imported} == {frozenset({"read", "starred"})}
    if prints_progress:
        # One may have been submitted when the signal came, and not yet be reported to the importer.
        reported = int(printed.split()[1])
        assert len(imported) - reported in (0, 1)
        assert "run the same command again" in errors
    again = subprocess.run(
        [sys.executable, "-m", "adapter.cli", *command], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    with Store.open(exchange_root) as store:
        assert len(store.mailbox(ADA).messages()) == count
