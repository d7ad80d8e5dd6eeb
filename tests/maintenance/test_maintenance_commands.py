"""The commands: what they refuse, what they leave alone, and what a repair that dies leaves behind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from adapter.cli import main
from adapter.maintenance import gate, spark
from adapter.store import disk, layout
from adapter.transport.transport import Transport
from protocol.errors import MailError
from tests.maintenance import lab
from tests.maintenance.faults import CATALOGUE
from tests.support.stores import ADA, new_store, tree

pytestmark = pytest.mark.timeout(900)  # a look at a store by Spark takes its time on a busy machine


def test_repair_wants_to_be_told(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["repair", "--root", str(tmp_path)])
    assert result.exit_code == 3
    assert "--i-know-what-im-doing ALL-SERVICES-ARE-OFFLINE" in result.output
    assert result.output.count("\n") == 1


def test_repair_refuses_while_the_store_is_open(tmp_path: Path) -> None:
    with new_store(tmp_path / "store", ADA):
        said = ["--i-know-what-im-doing", "ALL-SERVICES-ARE-OFFLINE", "--deadline", "0.2"]
        result = CliRunner().invoke(main, ["repair", "--root", str(tmp_path / "store"), *said])
    assert result.exit_code == 3
    assert "not offline" in result.output


def test_no_java_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(MailError, match="Java 17"):
        spark.check_java()


def test_a_look_changes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "store"
    lab.build(root)
    for fault in CATALOGUE.values():
        fault(root)
    before = tree(root)
    assert lab.check(root).kinds
    assert tree(root) == before


class _Killed(BaseException):
    pass


def test_a_repair_that_dies_is_finished_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    lab.build(root)
    before, links = lab.view(root), lab.links(root)
    for fault in CATALOGUE.values():
        fault(root)
    damaged = tmp_path / "damaged"
    shutil.copytree(root, damaged, symlinks=True)
    steps = 0
    limit = 10**9

    def count(action: str, fd: int, name: str) -> None:
        nonlocal steps
        if str(os.readlink(f"/proc/self/fd/{fd}") if fd >= 0 else root).find(layout.absolute("/run-")) >= 0:
            return  # scratch files are nobody's loss
        steps += 1
        if steps >= limit:
            raise _Killed

    monkeypatch.setattr(disk, "on_step", count)
    lab.repair(root)
    total = steps
    for part in (4, 2):
        shutil.rmtree(root)
        shutil.copytree(damaged, root, symlinks=True)
        steps, limit = 0, total * (part - 1) // part
        with pytest.raises(_Killed):
            lab.repair(root)
        limit = 10**9
        gate.turn_off(str(root))  # the marker names this process, which only pretended to die
        lab.repair(root)
        assert lab.view(root) == before
        assert lab.links(root) == links
    monkeypatch.setattr(disk, "on_step", None)
    with Transport.open(root):
        pass
