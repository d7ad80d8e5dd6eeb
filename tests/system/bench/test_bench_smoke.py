"""Every row of the bench runs on every kind of peer, with a folder of a few messages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.arena import SMOKE
from tests.bench.cyrus import Cyrus
from tests.bench.measure import SyncCounter, build_sync_counter, cpu_seconds, memory_mib
from tests.bench.rows import ROWS
from tests.bench.runner import Plan, arenas, run_rows

SIZE = 24


@pytest.fixture
def scratch() -> Iterator[str]:
    """A directory that other users may reach, on a file system in memory where there is one."""
    path = tempfile.mkdtemp(prefix="markpost-bench-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.needs("dovecot")
@pytest.mark.skipif(os.geteuid() != 0, reason="Dovecot needs root")
def test_every_row_runs_on_all_peers(scratch: str) -> None:
    cyrus = [] if Cyrus.missing() else [Cyrus.name]  # Debian cannot install it beside Dovecot's IMAP server
    plan = Plan(ROWS, [SIZE], samples=1, seed=1, peers=["markpost-1", "dovecot-maildir", "dovecot-sdbox", *cyrus])
    with arenas(scratch, plan, lambda _: None, SMOKE) as ready:
        series = [each for row in run_rows(ready, plan, lambda _: None) for each in row]
    assert len(series) == len(ROWS) * len(plan.peers)
    for each in series:
        (sample,) = each.samples
        assert sample.value > 0, each
        if each.unit == "ms" and "IDLE" not in each.row:
            assert sample.cpu is not None, each
            assert sample.cpu > 0 or each.peer != "markpost-1", each
    delivered = [each for each in series if each.row.startswith("delivery of")]
    if shutil.which("gcc") or shutil.which("cc"):
        assert all(each.samples[0].syncs for each in delivered), "an acknowledged message was not synced"


@pytest.mark.needs("gcc")
def test_syncs_of_all_processes_are_counted(tmp_path: Path) -> None:
    library = build_sync_counter(str(tmp_path))
    assert library is not None
    counter = SyncCounter(library, str(tmp_path / "syncs"))
    code = (
        "import os, subprocess, sys\n"
        "file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\n"
        "os.fsync(file); os.fdatasync(file)\n"
        "if len(sys.argv) < 3: subprocess.run([sys.executable, __file__, sys.argv[1], 'child'], check=True)\n"
    )
    (tmp_path / "program.py").write_text(code)
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "data")]
    subprocess.run(command, env={**os.environ, **counter.environment}, check=True)
    assert counter.read() == 4


def test_processor_time_includes_children_that_ended() -> None:
    before = cpu_seconds(os.getpid())
    busy = "import time\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    while time.process_time() == 0:
        pass
    assert 0.15 < cpu_seconds(os.getpid()) - before < 5
    assert memory_mib(os.getpid()) > 5
