"""An index with a foreign schema: refused, reported, and rebuilt with all its rows."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from adapter.maintenance.expected.replay import Replay
from adapter.maintenance.expected.replay_process import ReplayFacts
from adapter.store import index, layout
from adapter.transport.transport import Transport
from protocol.errors import MailError
from tests.support.store.tables import tables
from tests.support.stores import ADA, BOB, deliver, id_of, new_store
from tests.system.maintenance.lab import lab, lab_stores
from tests.system.maintenance.lab.catalogue import CATALOGUE
from tests.system.maintenance.lab.victims import Victims

pytestmark = pytest.mark.timeout(900)  # Spark is slow on a busy machine

_TRIGGER = "CREATE TRIGGER forged AFTER UPDATE ON folders BEGIN UPDATE mailbox_state SET flags = 0; END"


def _replayed(root: Path, scratch: Path) -> ReplayFacts:
    scratch.mkdir()
    replay = Replay(str(root), str(scratch), id_of(root))
    with closing(replay.directories):
        return replay.run()


def _change(root: Path, *statements: str) -> None:
    with closing(lab.index(root)) as connection:
        for statement in statements:
            connection.execute(statement)


def _without_journal(root: Path) -> None:
    shutil.rmtree(lab.path(root, *layout.JOURNAL))
    shutil.rmtree(lab.path(root, *layout.SNAPSHOTS))


@pytest.mark.parametrize(
    ("statement", "wrong"),
    [
        ("DROP INDEX one_active_registration", "index one_active_registration is missing"),
        (_TRIGGER, "trigger forged is not ours"),
        ("CREATE VIEW forged AS SELECT 1", "view forged is not ours"),
        ("CREATE TABLE forged (x)", "table forged is not ours"),
        ("CREATE INDEX forged ON folders (name)", "index forged is not ours"),
        ("DROP TABLE messages", "table messages is missing"),
        ("ALTER TABLE folders ADD COLUMN forged", "table folders is another"),
        ("ALTER TABLE outbox DROP COLUMN envid", "table outbox is another"),
        ("UPDATE meta SET value = 99 WHERE key = 'schema_version'", "schema_version is 99"),
        ("UPDATE meta SET value = 'x' WHERE key = 'applied_seq'", "applied_seq is no number"),
        ("DELETE FROM meta WHERE key = 'last_uidvalidity'", "last_uidvalidity is missing"),
    ],
)
def test_index_with_a_foreign_schema_is_refused_and_reported(tmp_path: Path, statement: str, wrong: str) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA, BOB) as transport:
        deliver(transport, ADA)
    _change(root, statement)
    with pytest.raises(MailError, match=rf"{wrong}.*: run markpost repair"):
        Transport.open(root)
    facts = _replayed(root, tmp_path / "scratch")
    assert wrong in facts.index_problem
    assert (facts.source, facts.gap) == ("journal", "")


def test_statistics_and_comments_are_ignored(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root, ADA) as transport:
        deliver(transport, ADA)
    _change(
        root,
        "ANALYZE",
        "DROP INDEX registrations_of_address",
        "CREATE INDEX registrations_of_address /* another */ ON\n mailbox_registrations (address)",
    )
    with Transport.open(root) as transport:
        deliver(transport, ADA)
    assert _replayed(root, tmp_path / "scratch").index_problem == ""


@pytest.mark.parametrize("key", ["last_uidvalidity", "applied_seq", "forged"])
def test_every_row_of_meta_is_compared(tmp_path: Path, key: str) -> None:
    root = tmp_path / "store"
    lab_stores.build(root)
    assert _replayed(root, tmp_path / "before").wrong_meta == {}
    _change(root, f"INSERT OR REPLACE INTO meta VALUES ('{key}', 3)")
    facts = _replayed(root, tmp_path / "after")
    if key == "applied_seq":  # the checksum next to it belongs to another record
        assert facts.index_kind == "index-diverged"
    else:
        assert facts.wrong_meta.keys() == {key}


def _mail(root: Path) -> dict[tuple[str, str], tuple[str, dict[int, Any]]]:
    """UIDVALIDITY and messages of every folder."""
    return {
        place: (shown[0][0].split()[0], {uid: row for uid, row in shown.items() if uid})
        for place, shown in lab.seen(root).items()
    }


def test_foreign_trigger_never_runs(tmp_path: Path) -> None:
    """Neither in a server, nor in a repair with this index as the only source."""
    root = tmp_path / "store"
    lab_stores.build(root)
    before, rows = _mail(root), tables(lab.path(root, layout.INDEX_FILE))
    _without_journal(root)
    CATALOGUE["index_schema_changed"].inject(Victims(root, random.Random(1)))
    checked = lab.check(root)
    assert checked.kinds == {"index-schema-wrong": 1, "journal-damaged": 1}
    repaired = lab.repair(root)
    assert repaired.kinds == checked.kinds
    assert repaired.report["verified"], repaired.report.get("left")
    assert _mail(root) == before
    after = tables(lab.path(root, layout.INDEX_FILE))
    kept = [name for name in after if name not in ("meta", "folders")]  # UIDNEXT is raised to the mark
    assert {name: after[name] for name in kept} == {name: rows[name] for name in kept}
    with closing(lab.index(root)) as connection:
        assert index.schema_differences(connection) == []


@pytest.mark.parametrize("dropped", [("messages",), ("mailbox_registrations", "folders", "subscriptions")])
def test_rows_of_other_tables_survive_a_missing_table(tmp_path: Path, dropped: tuple[str, ...]) -> None:
    """UIDs, flags and keywords are kept without a journal; expunged messages may return."""
    root = tmp_path / "store"
    lab_stores.build(root)
    before = lab.seen(root)
    _without_journal(root)
    _change(root, *(f"DROP TABLE {table}" for table in dropped))
    repaired = lab.repair(root)
    assert repaired.kinds["index-schema-wrong"] == 1
    assert repaired.report["verified"], repaired.report.get("left")
    after = lab.seen(root)
    assert after.keys() == before.keys()
    for place, shown in before.items():
        assert {uid: row for uid, row in shown.items() if uid}.items() <= after[place].items(), place
    assert lab.check(root).kinds == {}
