"""All faults of the catalogue, together and in random sets: detected exactly, repaired, and no mail changes."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.maintenance.findings import KINDS
from adapter.maintenance.scan.index_compare import COMPARED
from adapter.store import layout, names, snapshots
from tests.support.paths import REPOSITORY
from tests.support.stores import tree
from tests.system.maintenance.lab import failing, lab, lab_stores
from tests.system.maintenance.lab.catalogue import CATALOGUE, compatible, damage
from tests.system.maintenance.lab.victims import Victims

pytestmark = pytest.mark.timeout(900)  # Spark is slow on a busy machine

_README = REPOSITORY / "adapter" / "maintenance" / "README.md"
_LOSSES = (lab_stores.CAROL, lab_stores.LOSSES)
_EXAMPLES = {"ci": 3, "default": 3}.get(settings.get_current_profile_name(), 200)


def test_catalogue_covers_every_kind() -> None:
    lasting = {"owner-foreign"}  # repair leaves it to a person: test_tree.py
    assert {kind for fault in CATALOGUE.values() for kind in fault.kinds} == KINDS.keys() - lasting


def test_every_kind_is_documented() -> None:
    text = _README.read_text()
    assert not [kind for kind in KINDS if f"`{kind}`" not in text]


def test_every_table_is_compared() -> None:
    assert COMPARED.keys() == set(snapshots.TABLES)


@pytest.fixture(autouse=True)
def _readable_afterwards() -> Iterator[None]:
    yield
    failing.clear()


class _Before:
    """The state of a healthy store, for comparison with the repaired store."""

    def __init__(self, root: Path, victims: Victims) -> None:
        self._root = root
        self._victims = victims
        self._seen, self._view, self._links = lab.seen(root), lab.view(root), lab.links(root)

    def is_back(self) -> None:
        """Assert that all mail is unchanged, except unrecoverable content (removed, or with a placeholder)."""
        seen = lab.seen(self._root)
        self._are_renewed(seen)
        assert {place: self._comparable(place, own) for place, own in self._without_new(seen).items()} == {
            place: self._comparable(place, self._left(own)) for place, own in self._seen.items()
        }
        assert self._same(lab.view(self._root)) == self._same(self._without_lost())
        new = {layout.absolute(*layout.folder_directory(names.address_entry(owner), name)[1:])
               for owner, name in self._victims.new_folders}  # fmt: skip
        links = lab.links(self._root)
        gone = self._victims.lost | self._victims.renewed
        assert {
            link: target
            for link, target in links.items()
            if str(Path(link).parent) not in new and Path(target).stem not in self._victims.renewed
        } == {link: target for link, target in self._links.items() if Path(target).stem not in gone}

    def _are_renewed(self, seen: lab.Seen) -> None:
        """Assert that a returned message is shown once in its folder, exact, with its flags and an unused UID."""
        wire = {row[0]: row[4] for row in self._view["history"]}
        for message in self._victims.renewed:
            (shown,) = [(uid, row) for uid, row in seen[_LOSSES].items() if uid and row[0] == message]
            assert shown[1][1:3] == (5, "once")
            assert shown[1][3] == wire[message] or message in self._victims.damaged
            assert shown[0] >= int(self._seen[_LOSSES][0][0].split()[1])

    def _comparable(self, place: tuple[str, str], shown: lab.Folder) -> lab.Folder:
        """The folders without returned messages, and without the octets of damaged ones."""
        if self._victims.renewed and place == _LOSSES:
            numbers = shown[0]
            shown = {uid: row for uid, row in shown.items() if row[0] not in self._victims.renewed}
            shown[0] = (numbers[0].split()[0], 0, numbers[2], numbers[3])
        return {
            uid: (*row[:3], "damaged") if uid and row[0] in self._victims.damaged else row for uid, row in shown.items()
        }

    def _left(self, shown: lab.Folder) -> lab.Folder:
        left = {uid: row for uid, row in shown.items() if not uid or row[0] not in self._victims.lost}
        numbers, messages, use, none = left[0]
        return {**left, 0: (numbers, messages - len(shown) + len(left), use, none)}

    def _without_lost(self) -> dict[str, Any]:
        """The tables with lost messages removed from their folders; their delivery stays recorded."""
        view, lost = dict(self._view), self._victims.lost
        sizes = {row[0]: row[3] for row in view["history"]}
        folders = {row[0]: list(row) for row in view["folders"]}
        for folder, _, message, _, flags, _, _ in (row for row in view["rows"] if row[2] in lost):
            counts = (1, 1 - (flags & 1), (flags >> 3) & 1, sizes[message])
            folders[folder][6:] = [before - less for before, less in zip(folders[folder][6:], counts)]
        view["folders"] = [tuple(row) for row in folders.values()]
        view["rows"] = [row for row in view["rows"] if row[2] not in lost]
        return view

    def _without_new(self, seen: dict[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
        new = self._victims
        return {
            (owner, name): shown
            for (owner, name), shown in seen.items()
            if owner not in new.new_accounts and (owner, name) not in new.new_folders
        }

    def _same(self, view: dict[str, Any]) -> dict[str, Any]:
        """The rows that must not change: all except those of accounts and folders that repair created."""
        new = self._victims
        address = {row[0]: row[1] for row in view["registrations"]}
        accounts = {registration for registration, owner in address.items() if owner in new.new_accounts}
        folders = {
            row[0] for row in view["folders"]
            if row[1] in accounts or (address.get(row[1]), row[2]) in new.new_folders
        }  # fmt: skip
        poorer = {row[0] for row in self._view["rows"] if row[2] in new.lost}
        other = {row[0] for row in view["folders"] if new.renewed and row[2] == lab_stores.LOSSES}
        poorer |= other
        folders |= other
        other_threads = {owner for owner, _ in new.new_folders}
        other_threads |= {address[row[1]] for row in self._view["folders"] if row[0] in poorer}
        gone = accounts | folders
        return {
            table: [
                row for row in rows
                if row[0] not in gone
                and not (table == "subscriptions" and (address.get(row[0]), row[1]) in new.new_folders)
                and not (table == "threads" and address.get(row[0]) in other_threads)
                and not (table == "expunged" and row[0] in poorer)
            ]
            for table, rows in view.items()
        }  # fmt: skip


_REPORT = {
    "schema", "command", "root", "master", "started", "finished", "source", "scanned", "phases", "memory", "seconds",
    "verified", "counts", "severities", "items", "recorded",
}  # fmt: skip
_ITEM = {"kind", "subject", "seen", "detail", "authority", "severity", "outcome", "decide"}


def _assert_documented(report: dict[str, Any]) -> None:
    """Assert the documented schema of the report."""
    assert report["schema"] == 1
    assert report.keys() == _REPORT
    assert all(item.keys() == _ITEM for item in report["items"])
    assert report["severities"].keys() == {"harmless", "repaired", "conflict", "loss", "unreadable"}
    assert sum(report["severities"].values()) == sum(report["counts"].values()) == len(report["items"])
    assert report["scanned"].keys() == {"messages", "blobs", "links", "folders", "accounts"}
    text = _README.read_text().partition("## The report")[2]
    assert not [key for key in (*_REPORT, *_ITEM) if key not in text]


def _assert_repaired(root: Path, victims: Victims, fault_names: Iterable[str]) -> list[str]:
    before = _Before(root, victims)
    expected, applied = damage(victims, fault_names)
    damaged = tree(root)
    checked = lab.check(root)
    assert checked.kinds == expected, applied
    assert checked.report["severities"]["loss"] == victims.losses, checked.report["items"]
    assert tree(root) == damaged, "check changes nothing"
    _assert_documented(checked.report)
    repaired = lab.repair(root)
    _assert_documented(repaired.report)
    assert repaired.kinds == expected, applied
    assert repaired.report["severities"] == checked.report["severities"], "the check predicted it"
    assert repaired.report["severities"]["conflict"] == 0, repaired.report["items"]
    assert repaired.report["verified"], (repaired.report.get("left"), applied)
    assert repaired.report["severities"]["unreadable"] == victims.unreadable
    if victims.unreadable:
        assert lab.check(root).kinds == {"unreadable": victims.unreadable}, "nothing else remains"
        victims.make_readable()
    if victims.has_lost_in_closed_folder:
        assert lab.repair(root).kinds.keys() == {"projection-dangling"}
    before.is_back()
    assert lab.check(root).kinds == {}
    return applied


def test_all_faults_together(tmp_path: Path) -> None:
    root = tmp_path / "store"
    lab_stores.build(root, snapshot=True, losses=True)
    victims = Victims(root, random.Random(1))
    fault_names = [name for name, fault in CATALOGUE.items() if fault.layer in ("disk", "rows")]
    assert _assert_repaired(root, victims, fault_names) == fault_names


@pytest.mark.parametrize("whole", [name for name, fault in CATALOGUE.items() if fault.layer in ("index", "journal")])
def test_all_disk_faults_with(whole: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    lab_stores.build(root, losses=True)
    victims = Victims(root, random.Random(2))
    fault_names = [name for name, fault in CATALOGUE.items() if fault.layer == "disk"]
    applied = _assert_repaired(root, victims, [*fault_names, whole])
    assert set(compatible([*fault_names, whole])) - set(applied) <= {"snapshot_overwritten"}
    assert whole in applied


@settings(max_examples=_EXAMPLES)
@given(st.sets(st.sampled_from(sorted(CATALOGUE)), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_random_faults_in_random_stores(fault_names: set[str], chance: random.Random) -> None:
    with tempfile.TemporaryDirectory(dir=lab.memory()) as place:
        root = Path(place) / "store"
        lab_stores.build_random(root, chance, losses=True)
        _assert_repaired(root, Victims(root, chance), fault_names)
