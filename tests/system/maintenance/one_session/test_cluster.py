"""Executors in separate processes, as on a cluster, give the same findings and repairs as local threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from adapter.store import layout, names
from tests.support.paths import REPOSITORY
from tests.support.stores import ADA, BOB
from tests.system.maintenance.lab import lab, lab_stores

pytestmark = pytest.mark.timeout(900)  # three Java processes are slow on a busy machine

MASTER = "local-cluster[2,1,1024]"
_CODE = REPOSITORY


def _damage(root: Path) -> None:
    """Damage of every kind: rows, content, links, folders; with and without a join."""
    connection = lab.index(root)
    try:
        connection.execute("UPDATE mailbox_state SET flags = flags | 2 WHERE keywords = 'todo'")
        connection.execute(
            "UPDATE cache_messages SET envelope = x'00' WHERE message_id = (SELECT min(message_id) FROM cache_messages)"
        )
        victim = connection.execute("SELECT message_id FROM messages WHERE subject = 'For Carol'").fetchone()[0]
    finally:
        connection.close()
    lab.path(root, *layout.message_directory(victim), layout.message_name(victim)).unlink()
    inbox = lab.path(root, *layout.folder_directory(names.address_entry(BOB), names.INBOX))
    next(each for each in sorted(inbox.iterdir()) if each.is_symlink()).unlink()
    shutil.rmtree(lab.path(root, *layout.folder_directory(names.address_entry(ADA), "Projects/Engine")))
    orphan = lab.path(root, *layout.blob_directory("ab" * 32))
    orphan.mkdir(exist_ok=True)
    (orphan / ("ab" * 32)).write_bytes(b"whose?")


def _repair_on_a_cluster(root: Path) -> dict[str, Any]:
    confirmation = ["--i-know-what-im-doing", "ALL-SERVICES-ARE-OFFLINE"]
    command = [
        sys.executable,
        "-m",
        "adapter.cli",
        "repair",
        "--root",
        str(root),
        "--json",
        "--master",
        MASTER,
        *confirmation,
    ]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, check=True, timeout=600, env={**os.environ, "PYTHONPATH": str(_CODE)}
    )
    report: dict[str, Any] = orjson.loads(done.stdout)
    return report


def _comparable(report: dict[str, Any]) -> dict[str, Any]:
    """The parts of a report that do not depend on time, machine or random names in quarantine."""
    parts = {name: report[name] for name in ("source", "scanned", "verified", "counts", "severities")}
    items = [{key: item[key] for key in ("kind", "subject", "seen", "detail", "severity")} for item in report["items"]]
    return {**parts, "items": sorted(items, key=lambda item: (item["kind"], item["subject"]))}


def test_cluster_gives_the_same_findings_and_repairs(tmp_path: Path) -> None:
    root, other = tmp_path / "store", tmp_path / "other"
    lab_stores.build(root)
    before, links = lab.view(root), lab.links(root)
    _damage(root)
    shutil.copytree(root, other, symlinks=True)
    there, here = _repair_on_a_cluster(other), lab.repair(root).report
    assert there["master"] == MASTER
    assert here["verified"]
    assert len(here["counts"]) >= 6
    assert _comparable(there) == _comparable(here)
    for place in (root, other):
        assert lab.view(place) == before
        assert lab.links(place) == links
    assert not list(lab.path(other, *layout.MAINTENANCE).glob("run-*"))
