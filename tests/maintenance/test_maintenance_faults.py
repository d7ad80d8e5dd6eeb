"""Every fault of the catalogue, at once and in random sets: found exactly, mended, and the mail is as before."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from adapter.maintenance.findings import KINDS
from tests.maintenance import lab
from tests.maintenance.faults import CATALOGUE

pytestmark = pytest.mark.timeout(900)  # a look at a store by Spark takes its time on a busy machine


def _damage(root: Path, names: list[str]) -> Counter[str]:
    expected: Counter[str] = Counter()
    for name in names:
        expected.update(CATALOGUE[name](root))
    return expected


def _mends(root: Path, names: list[str]) -> None:
    before, links = lab.view(root), lab.links(root)
    expected = _damage(root, names)
    assert lab.check(root).kinds == expected
    repaired = lab.repair(root)
    assert repaired.kinds == expected
    assert repaired.report["severities"]["loss"] == 0
    assert repaired.report["verified"], repaired.report.get("left")
    assert lab.view(root) == before
    assert lab.links(root) == links
    lab.opens(root)


def test_everything_at_once(tmp_path: Path) -> None:
    root = tmp_path / "store"
    lab.build(root)
    assert lab.check(root).kinds == {}
    _mends(root, list(CATALOGUE))
    assert lab.check(root).kinds == {}


@pytest.mark.parametrize("seed", range(3))
def test_random_sets_of_faults(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    root = tmp_path / "store"
    lab.build(root, snapshot=bool(seed % 2))
    names = list(CATALOGUE)
    if seed % 2:  # a message whose journal went with the snapshot cannot be had back from it
        names = [name for name in names if not name.startswith(("message_deleted", "blob_"))]
    chosen = set(chance.sample(names, chance.randint(3, 12)))
    _mends(root, [name for name in names if name in chosen])


def test_every_kind_is_documented() -> None:
    text = (Path(__file__).parents[2] / "adapter" / "maintenance" / "README.md").read_text()
    assert not [kind for kind in KINDS if f"`{kind}`" not in text]
