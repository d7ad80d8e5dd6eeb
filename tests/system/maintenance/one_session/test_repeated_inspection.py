"""A repeated inspection reuses rows of unchanged files and detects every change; bulk replay equals single replay."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from adapter.maintenance.expected import tables
from adapter.maintenance.expected.replay import BASE, Replay
from adapter.maintenance.scan import fingerprint, rows
from adapter.store import layout, names, snapshots
from adapter.transport.recovery import checkpoint
from adapter.transport.transport import Transport
from tests.support.stores import ADA, deliver, id_of
from tests.system.maintenance.lab import lab, lab_stores

pytestmark = pytest.mark.timeout(900)  # Spark is slow on a busy machine


def _file(root: Path, subject: str) -> Path:
    connection = lab.index(root)
    try:
        message_id = connection.execute("SELECT message_id FROM messages WHERE subject = ?", (subject,)).fetchone()[0]
    finally:
        connection.close()
    return lab.path(root, *layout.message_directory(message_id), layout.message_name(message_id))


def _shared(scratch: str, part: str) -> list[bool]:
    """For each row file of an inspection: is it a hard link to that of the previous one?"""
    directory = Path(scratch, rows.part_directory(rows.FILES_DIRECTORY, part))
    return [each.stat().st_nlink == 2 for each in directory.glob("*.parquet")]


def test_repeated_inspection_reads_only_changed_files(tmp_path: Path) -> None:
    root = tmp_path / "store"
    lab_stores.build(root)
    time.sleep(2.1)  # files changed more recently are always read
    with lab.run(root, "check") as (run, _, _):
        assert not run.inspect().kinds
        second = run.inspect()
        assert not second.kinds
        assert all(_shared(second.scratch, "message"))
        assert all(_shared(second.scratch, "link"))
        victim = _file(root, "Message 0")
        about = victim.stat()
        victim.chmod(0o644)
        with victim.open("r+b") as file:  # same size and mtime
            file.seek(-3, os.SEEK_END)
            file.write(b"x")
        os.utime(victim, ns=(about.st_atime_ns, about.st_mtime_ns))
        _file(root, "Note 1").unlink()
        inbox = lab.path(root, *layout.folder_directory(names.address_entry(ADA), names.INBOX))
        next(each for each in sorted(inbox.iterdir()) if each.is_symlink()).unlink()
        third = run.inspect()
        assert third.kinds == Counter({"message-corrupt": 1, "message-lost": 1, "projection-missing": 1})


def _tables(path: Path) -> dict[str, list[tuple[object, ...]]]:
    connection = sqlite3.connect(path)
    try:
        return {
            table: connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in snapshots.TABLES
        }
    finally:
        connection.close()


def _standard_store(root: Path) -> None:
    lab_stores.build(root)


def _random_store(root: Path) -> None:
    lab_stores.build_random(root, random.Random(7))


@pytest.mark.parametrize("build", [_standard_store, _random_store])
def test_bulk_replay_and_single_replay_give_the_same_tables(tmp_path: Path, build: Callable[[Path], None]) -> None:
    build(tmp_path / "store")
    replayed = []
    for name, careful in (("bulk", False), ("single", True)):
        scratch = tmp_path / name
        scratch.mkdir()
        replay = Replay(str(tmp_path / "store"), str(scratch), id_of(tmp_path / "store"))
        replay._fill_from(str(scratch / BASE), None, None, careful=careful)
        assert not replay.facts.gap
        replayed.append(_tables(scratch / BASE))
    assert replayed[0]["mailbox_projections"]
    assert replayed[0] == replayed[1]


def test_checkpoint_during_the_copy_of_the_index_is_not_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that a server commits while its index is copied are not part of this inspection."""
    root, scratch = tmp_path / "store", tmp_path / "scratch"
    lab_stores.build(root)
    scratch.mkdir()
    copy_index = tables.copy_index

    def copy_and_deliver(store: str, copy: str) -> str:
        problem = copy_index(store, copy)
        with Transport.open(store) as transport:
            deliver(transport, ADA)
        return problem

    monkeypatch.setattr(tables, "copy_index", copy_and_deliver)
    replay = Replay(str(root), str(scratch), id_of(root))
    with contextlib.closing(replay.directories):
        facts = replay.run()
        last = checkpoint.read(replay.directories)
    assert last is not None
    assert facts.last_seq < last.seq
    assert not facts.gap


def test_sums_differ_for_different_sets() -> None:
    values = [(f"msg-{number}", "ab" * number) for number in range(50)]

    def differing(*parts: fingerprint.Sums) -> set[str]:
        return fingerprint.differing_domains(fingerprint.merge_sums(parts))

    def sums(side: str, members: list[tuple[str, str]], secret: bytes = b"secret") -> fingerprint.Sums:
        set_hash = fingerprint.SetHash(secret)
        for value in members:
            set_hash.add(fingerprint.MESSAGE, side, *value)
        return set_hash.sums()

    disk = sums(fingerprint.DISK, values)
    mixed = [sums(fingerprint.TABLE, values[25:][::-1]), sums(fingerprint.TABLE, values[:25])]
    assert differing(disk, *mixed) == set()
    for other in (values[1:], [*values, values[0]], [*values[1:], ("msg-0", "x")], [("msg-0ab", ""), *values[1:]]):
        assert differing(disk, sums(fingerprint.TABLE, other)) == {fingerprint.MESSAGE}
    assert sums(fingerprint.DISK, values, b"another") != disk
    anomaly = fingerprint.SetHash(b"secret")
    anomaly.mark_anomaly(fingerprint.LINK)
    assert differing(disk, *mixed, anomaly.sums()) == {fingerprint.LINK}
