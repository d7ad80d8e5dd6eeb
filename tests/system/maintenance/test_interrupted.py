"""Ctrl-C while check starts Spark, and while Spark runs: no process is left, and the output is one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adapter.maintenance import processes, spark
from tests.support.paths import REPOSITORY
from tests.support.processes.tree import is_alive
from tests.support.stores import ADA, new_store
from tests.support.waiting import PATIENCE, wait_until


def _commands(process: int) -> dict[int, str]:
    """Command lines of the descendants of a process."""
    commands = {}
    for each in processes.descendants(process):
        try:
            commands[each] = Path(f"/proc/{each}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it has exited
    return commands


@pytest.mark.parametrize("moment", ["org.apache.spark.deploy.SparkSubmit", "pyspark.daemon"])
def test_interrupted_check_leaves_no_process(tmp_path: Path, moment: str) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA):
        pass
    checking = subprocess.Popen(
        [sys.executable, "-m", "adapter.cli", "check", "--root", str(root)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    below: dict[int, str] = {}
    try:
        wait_until(lambda: any(moment in command for command in _commands(checking.pid).values()))
        below = _commands(checking.pid)
        os.killpg(checking.pid, signal.SIGINT)
        output, _ = checking.communicate(timeout=PATIENCE)
        assert (checking.returncode, output) == (1, "\nAborted!\n")
        assert not [command for process, command in below.items() if is_alive(process)]
        assert not [*root.glob("maintenance/run-*")]
    finally:
        for process in (checking.pid, *below):
            if is_alive(process):
                os.kill(process, signal.SIGKILL)
        checking.wait()


def _fail_during_shutdown() -> None:
    try:
        raise KeyboardInterrupt
    finally:
        raise RuntimeError("the answer is empty")


def test_secondary_error_of_an_interrupt_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        _fail_during_shutdown()
    assert spark.is_interrupted(caught.value)
    assert not spark.is_interrupted(RuntimeError("an executor was lost"))
