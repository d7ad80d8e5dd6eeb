"""Salvage of a damaged index: all rows outside the damage, and only rows that were written."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from adapter.maintenance.expected import salvage
from adapter.store import index, layout, snapshots
from adapter.transport import operations as op
from tests.support.messages import message
from tests.support.store.seeded_ids import seed_ids
from tests.support.store.tables import Tables, tables
from tests.support.stores import ADA, BOB, STORE, append, folder, id_of, new_store
from tests.system.maintenance.lab import lab

_PAGE = 4096
_MESSAGES, _FOLDERS = 120, 8
_SEED = 6  # of the ids, which determine the pages of a table and their rows


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with tables of several pages."""
    root = tmp_path_factory.mktemp("salvage") / "store"
    with pytest.MonkeyPatch.context() as patch:
        seed_ids(patch, _SEED)
        _fill(root)
    return lab.path(root, layout.INDEX_FILE)


def _fill(root: Path) -> None:
    with new_store(root, ADA, BOB) as transport:
        append(transport, "INBOX", *(message(f"Letter {number}") for number in range(_MESSAGES)), keywords=("k",))
        inbox = folder(transport).id
        for number in range(_FOLDERS):
            transport.run(op.CreateFolder(ADA, f"Copy {number}"))
            transport.run(op.Copy(ADA, inbox, range(1, _MESSAGES + 1), f"Copy {number}"))
            transport.run(op.ChangeFlags(ADA, folder(transport, f"Copy {number}").id, [1, 50, 99], "add", 5))


def _leaves(path: Path, table: str) -> list[int]:
    """The leaf pages of a table, in key order."""
    with closing(sqlite3.connect(path)) as connection:
        sql = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY path"
        return [row[0] for row in connection.execute(sql, (table,))]


def _rows_of_page(path: Path, table: str, page: int) -> int:
    with closing(sqlite3.connect(path)) as connection:
        sql = "SELECT ncell FROM dbstat WHERE name = ? AND pageno = ?"
        return int(connection.execute(sql, (table, page)).fetchone()[0])


def _salvaged(healthy: Path, place: Path, damage: Callable[[bytearray], None]) -> Tables:
    raw = bytearray(healthy.read_bytes())
    damage(raw)
    damaged = place / "damaged.sqlite"
    damaged.write_bytes(raw)
    with closing(index.create(str(place / "base.sqlite"), id_of(healthy.parent))) as connection:
        salvage.salvage_rows(str(damaged), str(place), connection)
    return tables(place / "base.sqlite")


def _assert_nothing_invented(salvaged: Tables, before: Tables) -> None:
    for table in snapshots.TABLES:
        assert set(salvaged[table]) <= set(before[table]), table


@pytest.mark.parametrize("table", ["mailbox_state", "mailbox_projections", "messages"])
@pytest.mark.parametrize("where", [(0,), (-1,), (0.5,), (0.25, 0.75), (0, 0.3, 0.6, -1)])
def test_all_rows_outside_the_damaged_pages_are_salvaged(
    healthy: Path, tmp_path: Path, table: str, where: tuple[float, ...]
) -> None:
    leaves = _leaves(healthy, table)
    assert len(leaves) >= 5, f"ids of seed {_SEED} give {len(leaves)} pages"
    pages = {leaves[int(at * len(leaves)) if at != -1 else -1] for at in where}
    chance = random.Random(f"{table}{where}")

    def damage(raw: bytearray) -> None:
        for page in pages:
            raw[(page - 1) * _PAGE : page * _PAGE] = chance.randbytes(_PAGE)

    before = tables(healthy)
    salvaged = _salvaged(healthy, tmp_path, damage)
    _assert_nothing_invented(salvaged, before)
    lost = sum(_rows_of_page(healthy, table, page) for page in pages) + len(pages) - 1  # and one row between two pages
    assert len(before[table]) - len(salvaged[table]) <= lost
    for other in snapshots.TABLES:
        assert other == table or salvaged[other] == before[other]


def test_damaged_first_page_is_replaced(healthy: Path, tmp_path: Path) -> None:
    def damage(raw: bytearray) -> None:
        raw[:_PAGE] = random.Random(1).randbytes(_PAGE)

    before = tables(healthy)
    salvaged = _salvaged(healthy, tmp_path, damage)
    assert {table: salvaged[table] for table in snapshots.TABLES} == {
        table: before[table] for table in snapshots.TABLES
    }


@pytest.mark.parametrize("seed", range(25))
def test_random_damage_invents_no_rows(healthy: Path, tmp_path: Path, seed: int) -> None:
    """Random overwrites cause no failure, and no row is salvaged that was never written."""
    chance = random.Random(seed)

    def damage(raw: bytearray) -> None:
        for _ in range(chance.randint(1, 30)):
            at, length = chance.randrange(len(raw)), chance.choice((1, 20, 500, 3000))
            raw[at : at + length] = chance.randbytes(min(length, len(raw) - at))

    before, salvaged = tables(healthy), _salvaged(healthy, tmp_path, damage)
    for table in ("messages", "mailbox_projections", "mailbox_registrations"):
        keys = {row[:2] if table == "mailbox_projections" else row[:1] for row in before[table]}
        strange = [
            row for row in salvaged[table] if (row[:2] if table == "mailbox_projections" else row[:1]) not in keys
        ]
        assert len(strange) <= 2, strange


def test_missing_index_gives_no_rows(tmp_path: Path) -> None:
    (tmp_path / "damaged.sqlite").write_bytes(b"")
    with closing(index.create(str(tmp_path / "base.sqlite"), STORE)) as connection:
        assert salvage.salvage_rows(str(tmp_path / "damaged.sqlite"), str(tmp_path), connection) == 0
