"""Property of repair: content that is readable after any damage is never lost."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.system.maintenance.lab import failing, inventory, lab, lab_stores
from tests.system.maintenance.lab.rough_damage import ROUGH

pytestmark = pytest.mark.timeout(900)  # Spark is slow on a busy machine

_EXAMPLES = {"ci": 1, "default": 1}.get(settings.get_current_profile_name(), 200)
#: Flags and UIDs are in index and journal: with both damaged, messages keep only their folders.
_INDEX, _JOURNAL = {"index_removed", "index_overwritten"}, {"journal_removed"}


@settings(max_examples=_EXAMPLES)
@given(st.sets(st.sampled_from(sorted(ROUGH)), min_size=1, max_size=5), st.integers(0, 2**32))
@example({"content_removed", "content_cut", "content_edited", "content_unreadable", "links_removed"}, 1)
@example({"content_edited", "content_removed", "index_removed", "journal_removed"}, 2)
def test_repair_never_loses_readable_content(fault_names: set[str], seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=lab.memory()) as place:
        root = Path(place) / "store"
        lab_stores.build_random(root, chance, losses=True)
        before = inventory.take(root)
        for name in sorted(fault_names):
            ROUGH[name](root, chance)
        readable = inventory.readable_digests(root)
        moved = bool(fault_names & _INDEX and fault_names & _JOURNAL)
        try:
            repaired = lab.repair(root)
            assert repaired.report["verified"], (sorted(fault_names), repaired.report.get("left"))
            kinds = lab.check(root).kinds
            assert kinds.keys() <= {"unreadable"}, (sorted(fault_names), kinds)
        finally:
            failing.clear()
        if "content_unreadable" in fault_names:  # it may be damaged as well, or not yet indexed
            assert lab.repair(root).report["verified"]
        assert not inventory.lost_content(before, readable, root, moved=moved), sorted(fault_names)
