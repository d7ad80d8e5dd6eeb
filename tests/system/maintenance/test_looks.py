"""A second look takes over what did not change and sees all that did; deliveries replayed in bulk are deliveries."""

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

from adapter.maintenance import pipeline
from adapter.maintenance.expected import tables
from adapter.maintenance.expected.replay import BASE, Replay
from adapter.maintenance.scan import fingerprint
from adapter.maintenance.scan import rows as fragments
from adapter.store import layout, names, snapshots
from adapter.transport.recovery import checkpoint
from adapter.transport.transport import Transport
from tests.support.stores import ADA, deliver, id_of
from tests.system.maintenance.lab import lab, lab_stores

pytestmark = pytest.mark.timeout(900)  # a look at a store by Spark takes its time on a busy machine


def _quiet(_: str) -> None:
    pass


def _file(root: Path, subject: str) -> Path:
    connection = lab.index(root)
    try:
        message_id = connection.execute("SELECT message_id FROM messages WHERE subject = ?", (subject,)).fetchone()[0]
    finally:
        connection.close()
    return lab.path(root, *layout.message_directory(message_id), layout.message_name(message_id))


def _shared(scratch: str, part: str) -> list[bool]:
    """For each fragment of a look, whether it is that of the look before."""
    place = Path(scratch, fragments.part_place(fragments.FILES_PLACE, part))
    return [each.stat().st_nlink == 2 for each in place.glob("*.parquet")]


def test_a_second_look_reads_what_changed_and_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "store"
    lab_stores.build(root)
    time.sleep(2.1)  # what is younger is always read
    with pipeline.running(str(root), "check", lab.MASTER, _quiet, session=lab.session()) as (run, _, _):
        assert not run.look().found
        second = run.look()
        assert not second.found
        assert all(_shared(second.scratch, "message"))
        assert all(_shared(second.scratch, "link"))
        victim = _file(root, "Message 0")
        about = victim.stat()
        victim.chmod(0o644)
        with victim.open("r+b") as file:  # as long as before, and as old
            file.seek(-3, os.SEEK_END)
            file.write(b"x")
        os.utime(victim, ns=(about.st_atime_ns, about.st_mtime_ns))
        _file(root, "Note 1").unlink()
        inbox = lab.path(root, *layout.folder_directory(names.address_entry(ADA), names.INBOX))
        next(each for each in sorted(inbox.iterdir()) if each.is_symlink()).unlink()
        third = run.look()
        assert third.found == Counter({"message-corrupt": 1, "message-lost": 1, "projection-missing": 1})


def _tables(path: Path) -> dict[str, list[tuple[object, ...]]]:
    connection = sqlite3.connect(path)
    try:
        return {
            table: connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in snapshots.TABLES
        }
    finally:
        connection.close()


def _a_bit_of_everything(root: Path) -> None:
    lab_stores.build(root)


def _anything(root: Path) -> None:
    lab_stores.build_random(root, random.Random(7))


@pytest.mark.parametrize("build", [_a_bit_of_everything, _anything])
def test_in_bulk_or_one_by_one_the_tables_are_the_same(tmp_path: Path, build: Callable[[Path], None]) -> None:
    build(tmp_path / "store")
    found = []
    for name, careful in (("bulk", False), ("single", True)):
        scratch = tmp_path / name
        scratch.mkdir()
        replay = Replay(str(tmp_path / "store"), str(scratch), id_of(tmp_path / "store"))
        replay._fill_from(str(scratch / BASE), None, None, careful=careful)
        assert not replay.facts.gap
        found.append(_tables(scratch / BASE))
    assert found[0]["mailbox_projections"]
    assert found[0] == found[1]


def test_a_checkpoint_made_meanwhile_is_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server goes on while its index is copied: what it commits and makes durable then is none of this look."""
    root, scratch = tmp_path / "store", tmp_path / "scratch"
    lab_stores.build(root)
    scratch.mkdir()
    copy_index = tables.copy_index

    def copied_in_the_middle(store: str, copy: str) -> str:
        trouble = copy_index(store, copy)
        with Transport.open(store) as transport:
            deliver(transport, ADA)
        return trouble

    monkeypatch.setattr(tables, "copy_index", copied_in_the_middle)
    replay = Replay(str(root), str(scratch), id_of(root))
    with contextlib.closing(replay.directories):
        facts = replay.run()
        last = checkpoint.read(replay.directories)
    assert last is not None
    assert facts.last_seq < last.seq
    assert not facts.gap


def test_sums_tell_sets_apart() -> None:
    rows = [(f"msg-{number}", "ab" * number) for number in range(50)]

    def sums(side: str, values: list[tuple[str, str]], secret: bytes = b"secret") -> fingerprint.Sums:
        counted = fingerprint.Tally(secret)
        for value in values:
            counted.add(fingerprint.MESSAGE, side, *value)
        return counted.sums()

    disk = sums(fingerprint.DISK, rows)
    mixed = [sums(fingerprint.TABLE, rows[25:][::-1]), sums(fingerprint.TABLE, rows[:25])]
    assert fingerprint.differing(fingerprint.total([disk, *mixed])) == set()
    for other in (rows[1:], [*rows, rows[0]], [*rows[1:], ("msg-0", "x")], [("msg-0ab", ""), *rows[1:]]):
        assert fingerprint.differing(fingerprint.total([disk, sums(fingerprint.TABLE, other)])) == {fingerprint.MESSAGE}
    assert sums(fingerprint.DISK, rows, b"another") != disk
    odd = fingerprint.Tally(b"secret")
    odd.odd(fingerprint.LINK)
    assert fingerprint.differing(fingerprint.total([disk, *mixed, odd.sums()])) == {fingerprint.LINK}
