"""A repair that dies: whatever step it had reached, the next one comes to the same end."""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path

import pytest

from adapter.maintenance import gate
from adapter.store import disk, identity, layout
from adapter.transport.transport import Transport
from tests.maintenance import lab, lab_stores
from tests.maintenance.catalogue import CATALOGUE, damage
from tests.maintenance.victims import Victims

#: By hand: "places" (each place in the program that changes the store, when it is first reached) or "steps" (all).
_KILLS = os.environ.get("MARKPOST_KILLS", "")
_STRIDE = 1 if _KILLS else 9

pytestmark = pytest.mark.timeout(0 if _KILLS else 900)  # a look at a store by Spark takes its time on a busy machine


def _merge(victims: Victims) -> None:
    """Two ids on one path, both with mail."""
    place = victims.directory()
    where = victims.folder_path(place)
    (where / layout.IDENTITY_FILE).unlink()
    (where / layout.IDENTITY_FILE).write_bytes(identity.Identity(4711, place.registration, 9, "").encode())
    _show_another(victims, place.id, where)


def _split(victims: Victims) -> None:
    """One id at two paths; the second shows other mail."""
    place = victims.directory()
    where = victims.path(*layout.folder_directory(place.directory, "Second"))
    shutil.copytree(victims.folder_path(place), where, symlinks=True)
    _show_another(victims, place.id, where)


def _show_another(victims: Victims, folder: int, where: Path) -> None:
    shown = {each.message for each in victims.shown if each.folder == folder}
    other = next(message for message in victims.kept if message not in shown)
    (where / layout.projection_name(1, other)).symlink_to(layout.projection_target(other))


class _Steps:
    """Keeps a copy of the store as it is before each step of a repair, as a process killed there would leave it."""

    def __init__(self, root: Path, keep: Path) -> None:
        self._root = root
        self._keep = keep
        self._sites: set[str] = set()
        self.states: list[tuple[str, Path]] = []

    def __call__(self, action: str, fd: int, name: str) -> None:
        place = os.readlink(f"/proc/self/fd/{fd}") if fd >= 0 else ""
        if layout.absolute("", "run-") in place:
            return  # scratch files are nobody's loss
        site = f"{action} in {_caller()}"
        if site in self._sites and _KILLS != "steps":
            return
        self._sites.add(site)
        state = self._keep / f"{len(self.states):04d}"
        shutil.copytree(self._root, state, symlinks=True, ignore=shutil.ignore_patterns("run-*"))
        self.states.append((site, state))


def _caller() -> str:
    """The functions of repair that lead to this step."""
    frame = sys._getframe(2)
    found: list[str] = []
    while frame is not None and len(found) < 3:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("adapter.maintenance"):
            found.append(f"{module.rpartition('.')[2]}.{frame.f_code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(found)


def _outcome(root: Path, victims: Victims) -> tuple[object, object]:
    """What clients see, but for the UIDVALIDITY of what repair made anew: that is a matter of the clock."""
    seen = lab.seen(root)
    new = {(owner, name) for owner, name in seen
           if owner in victims.new_accounts or (owner, name) in victims.new_folders or name == "Second"}  # fmt: skip
    for key in new:
        del seen[key][0]
    return seen, lab.links(root)


@pytest.mark.parametrize("whole", ["", "journal_overwritten"])
def test_a_repair_that_dies_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: str
) -> None:
    root = tmp_path / "store"
    lab_stores.build(root)
    victims = Victims(root, random.Random(3))
    if not whole:  # else these two are a person's to decide
        _merge(victims)
        _split(victims)
    damage(victims, [whole] if whole else [name for name, fault in CATALOGUE.items() if fault.layer != "journal"])
    steps = _Steps(root, tmp_path / "states")
    monkeypatch.setattr(disk, "on_step", steps)
    undisturbed = lab.repair(root)
    monkeypatch.setattr(disk, "on_step", None)
    assert undisturbed.report["verified"], undisturbed.report.get("left")
    expected = _outcome(root, victims)
    sites = {site for site, _ in steps.states}
    for needed in (
        "_swap_index",
        "quarantine.move",
        *(("_seal",) if whole else ("commit", "_take_links", "_register")),
    ):
        assert any(needed in site for site in sites), needed
    for number, (site, state) in enumerate(steps.states):
        if number % _STRIDE and not (whole and ("_begin_segment" in site or "_swap_index" in site)):
            continue  # there, all is sealed, but the journal does not follow or the index is the old one
        gate.turn_off(str(state))  # the marker names this process, which did not die
        again = lab.repair(state)
        assert again.report["verified"], (site, again.report.get("left"))
        assert _outcome(state, victims) == expected, site
        shutil.rmtree(state)


def test_mail_comes_back_whatever_a_dead_repair_left(tmp_path: Path) -> None:
    """A store that was about to get its new index opens, and nobody has to repair it first."""
    root = tmp_path / "store"
    lab_stores.build(root)
    before = lab.seen(root)
    lab.path(root, f"{layout.INDEX_FILE}.new").write_bytes(b"half")
    dead = lab.path(root, *layout.MAINTENANCE, "run-1-00000000")
    dead.mkdir()
    (dead / "base.sqlite").write_bytes(b"half")
    with Transport.open(root):
        pass
    assert lab.seen(root) == before
