"""Whole artifacts lost: the index, the journal with it, or everything but the messages."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from adapter.store import layout
from adapter.transport.transport import Transport
from tests.maintenance import lab, lab_stores
from tests.support.stores import ADA, BOB, folder, rows

pytestmark = pytest.mark.timeout(900)  # a look at a store by Spark takes its time on a busy machine


def _remove(root: Path, *places: layout.Parts) -> None:
    for place in places:
        shutil.rmtree(lab.path(root, *place))
        lab.path(root, *place).mkdir()


def test_the_index_is_lost(tmp_path: Path) -> None:
    root = tmp_path / "store"
    lab_stores.build(root, snapshot=True)
    before = lab.view(root)
    lab.path(root, layout.INDEX_FILE).unlink()
    repaired = lab.repair(root)
    assert repaired.kinds == {"index-missing": 1}
    assert repaired.report["verified"]
    assert lab.view(root) == before
    lab.seen(root)


def test_the_index_is_overwritten_with_random_bytes(tmp_path: Path) -> None:
    root = tmp_path / "store"
    lab_stores.build(root)
    before = lab.view(root)
    place = lab.path(root, layout.INDEX_FILE)
    raw = bytearray(place.read_bytes())
    chance = random.Random(5)
    for _ in range(40):
        at = chance.randrange(100, len(raw) - 600)
        raw[at : at + 500] = chance.randbytes(500)
    place.write_bytes(raw)
    repaired = lab.repair(root)
    assert set(repaired.kinds) == {"index-unreadable"}
    assert repaired.report["verified"], repaired.report
    assert lab.view(root) == before


def test_index_and_journal_are_lost(tmp_path: Path) -> None:
    root = tmp_path / "store"
    lab_stores.build(root)
    before, links = lab.view(root), lab.links(root)
    lab.path(root, layout.INDEX_FILE).unlink()
    _remove(root, layout.JOURNAL, layout.SNAPSHOTS)
    repaired = lab.repair(root)
    assert repaired.report["verified"], repaired.report
    assert repaired.report["source"] == "nothing"
    assert "default" in repaired.items("folder-path-without-row")[0]["outcome"]
    after = lab.view(root)
    assert after["registrations"] == before["registrations"]
    assert lab.links(root) == links
    same = [[row[:4] for row in each["folders"]] for each in (before, after)]
    assert same[0] == same[1]
    shown = [[row[:3] for row in each["rows"]] for each in (before, after)]
    assert shown[0] == shown[1]
    assert {row[0]: row[2] for row in after["history"]} == {
        row[0]: row[2] for row in before["history"] if any(row[0] == shown[2] for shown in before["rows"])
    } | {row[0]: row[2] for row in after["history"] if not any(row[0] == shown[2] for shown in before["rows"])}
    lab.seen(root)
    with Transport.open(root) as transport:  # life goes on: no UID is used twice
        assert folder(transport).uidnext > max(row.uid for row in rows(transport))


def test_only_messages_are_left(tmp_path: Path) -> None:
    root = tmp_path / "store"
    lab_stores.build(root)
    lab.path(root, layout.INDEX_FILE).unlink()
    _remove(root, layout.JOURNAL, layout.SNAPSHOTS, layout.MAILBOXES)
    messages = {each.stem for each in lab.path(root, *layout.MESSAGES).rglob("*.md")}
    repaired = lab.repair(root)
    assert repaired.report["verified"], repaired.report
    lab.seen(root)
    with Transport.open(root) as transport:
        ada = {row.message_id for row in rows(transport)}
        bob = {row.message_id for row in rows(transport, address=BOB)}
    assert ada == messages
    assert len(bob) == 3
    assert {row[1] for row in lab.view(root)["registrations"]} == {ADA, BOB}


def test_a_message_that_nothing_holds_any_more(tmp_path: Path) -> None:
    root = tmp_path / "store"
    lab_stores.build(root, snapshot=True)
    with Transport.open(root) as transport:
        transport.snapshot()
        transport.snapshot()
    for segment in lab.path(root, *layout.JOURNAL).glob("*.jsonl"):
        if segment.stat().st_size:
            segment.unlink()
    before = lab.view(root)
    victim = next(lab.path(root, *layout.MESSAGES).rglob("*.md"))
    victim.unlink()
    repaired = lab.repair(root)
    assert repaired.report["severities"]["loss"] == 1
    assert repaired.report["verified"], repaired.report
    after = lab.view(root)
    assert after["rows"] == [row for row in before["rows"] if row[2] != victim.stem]
    assert after["history"] == before["history"]
    lab.seen(root)
