"""Crash of a repair at any step: the next repair gives the same result."""

from __future__ import annotations

import os
import random
import shutil
import sys
from contextlib import closing
from pathlib import Path

import pytest

from adapter.maintenance import gate
from adapter.maintenance.expected.replay import BASE, Replay
from adapter.store import disk, folder_identity, layout, segments, snapshots
from adapter.store import index as index_file
from adapter.store.disk import Directories
from adapter.store.queries import mailboxes
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError
from tests.support.messages import message
from tests.support.store.copies import copy_store
from tests.support.store.tables import tables
from tests.support.stores import ADA, append, deliver, id_of
from tests.system.maintenance.lab import lab, lab_stores
from tests.system.maintenance.lab.catalogue import CATALOGUE, damage
from tests.system.maintenance.lab.lab_stores import CAROL
from tests.system.maintenance.lab.victims import Victims, records, write_records

#: By hand: "places" (each place in the program that changes the store, when it is first reached) or "steps" (all).
_KILLS = os.environ.get("MARKPOST_KILLS", "")
_STRIDE = 1 if _KILLS else 9

pytestmark = pytest.mark.timeout(0 if _KILLS else 900)  # Spark is slow on a busy machine


def _merge(victims: Victims) -> None:
    """Give one path two ids, both with mail."""
    place = victims.directory()
    where = victims.folder_path(place)
    (where / layout.IDENTITY_FILE).unlink()
    forged = folder_identity.Identity(id_of(victims.root), 4711, place.registration, 9, "")
    (where / layout.IDENTITY_FILE).write_bytes(forged.encode())
    _show_another(victims, place.id, where)


def _split(victims: Victims) -> None:
    """Give two paths one id; the second shows other mail."""
    place = victims.directory()
    where = victims.path(*layout.folder_directory(place.directory, "Second"))
    shutil.copytree(victims.folder_path(place), where, symlinks=True)
    _show_another(victims, place.id, where)


def _show_another(victims: Victims, folder: int, where: Path) -> None:
    shown = {each.message for each in victims.shown if each.folder == folder}
    other = next(message for message in victims.kept if message not in shown)
    (where / layout.projection_name(1, other)).symlink_to(layout.projection_target(other))


class _Steps:
    """Copies the store before each step of a repair: the state that a process killed there would leave."""

    def __init__(self, root: Path, keep: Path) -> None:
        self._root = root
        self._keep = keep
        self._sites: set[str] = set()
        self.states: list[tuple[str, Path]] = []

    def __call__(self, action: str, fd: int, name: str) -> None:
        place = os.readlink(f"/proc/self/fd/{fd}") if fd >= 0 else ""
        if layout.absolute("", "run-") in place:
            return  # scratch files
        site = f"{action} in {_caller()}"
        if site in self._sites and _KILLS != "steps":
            return
        self._sites.add(site)
        state = self._keep / f"{len(self.states):04d}"
        copy_store(self._root, state)
        self.states.append((site, state))


def _caller() -> str:
    """The functions of repair that lead to this step."""
    frame = sys._getframe(2)
    functions: list[str] = []
    while frame is not None and len(functions) < 3:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(("adapter.maintenance", "adapter.store.quarantine")):
            functions.append(f"{module.rpartition('.')[2]}.{frame.f_code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(functions)


def _outcome(root: Path, victims: Victims) -> tuple[object, object]:
    """The mail that clients see, except the UIDVALIDITY of new folders, which depends on the clock."""
    seen = lab.seen(root)
    new = {(owner, name) for owner, name in seen
           if owner in victims.new_accounts or (owner, name) in victims.new_folders or name == "Second"}  # fmt: skip
    for key in new:
        del seen[key][0]
    return seen, lab.links(root)


@pytest.mark.parametrize("whole", ["", "journal_overwritten"])
def test_next_repair_completes_a_crashed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: str) -> None:
    root = tmp_path / "store"
    lab_stores.build(root)
    victims = Victims(root, random.Random(3))
    if not whole:  # else both are conflicts
        _merge(victims)
        _split(victims)
    # Copies of the store have other paths, where nothing is unreadable.
    some = [name for name, fault in CATALOGUE.items() if fault.layer != "journal" and "unreadable" not in fault.kinds]
    damage(victims, [whole] if whole else some)
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
        *(("_seal",) if whole else ("commit", "_adopt_links", "_register")),
    ):
        assert any(needed in site for site in sites), needed
    for number, (site, state) in enumerate(steps.states):
        if number % _STRIDE and not (whole and ("_begin_segment" in site or "_swap_index" in site)):
            continue  # sealed, but the journal does not continue the snapshot, or the index is the old one
        gate.turn_off(str(state))  # the marker names this process, which is still running
        again = lab.repair(state)
        assert again.report["verified"], (site, again.report.get("left"))
        assert _outcome(state, victims) == expected, site
        shutil.rmtree(state)


def _with_two_segments(root: Path) -> Path:
    """Create a store with two journal segments; return the path of the first."""
    lab_stores.build(root)
    with Transport.open(root) as transport:
        with transport.quiesced() as log:
            log.rotate()
        deliver(transport, ADA, octets=message("Later", to=ADA))
    return sorted(lab.path(root, *layout.JOURNAL).glob("*.jsonl"))[0]


@pytest.mark.parametrize("damaged", [False, True])
def test_store_opens_after_a_crash_at_any_step_of_a_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """A store that servers could open before the repair opens after every step, and shows all mail."""
    root = tmp_path / "store"
    first = _with_two_segments(root)
    victims = Victims(root, random.Random(4))
    before = lab.seen(root)
    damage(victims, ["folder_directory_gone", "link_removed", "stray_file", "message_deleted", "flags_changed"])
    if damaged:
        lines = records(first)
        number = next(at for at, line in enumerate(lines) if at and b'"do":"content"' not in line)
        write_records(first, [*lines[:number], lines[number].replace(b'"', b"'", 1), *lines[number + 1 :]])
    with Transport.open(root):
        pass
    steps = _Steps(root, tmp_path / "states")
    monkeypatch.setattr(disk, "on_step", steps)
    repaired = lab.repair(root)
    monkeypatch.setattr(disk, "on_step", None)
    assert repaired.report["verified"], repaired.report.get("left")
    assert any(("_seal" if damaged else "_swap_index") in site for site, _ in steps.states)
    expected = {place: {uid: row[0] for uid, row in shown.items() if uid} for place, shown in before.items()}
    for site, state in steps.states:
        gate.turn_off(str(state))  # the marker names this process, which is still running
        try:
            with Transport.open(state) as transport:
                assert _messages(transport) == expected, site
                transport.run(op.CreateFolder(CAROL, "Since"))
                append(transport, "Since", message("Life goes on", to=CAROL), address=CAROL)
        except MailError as error:
            raise AssertionError(site) from error
        scratch = state.with_suffix(".scratch")
        scratch.mkdir()
        replay = Replay(str(state), str(scratch), id_of(state))
        facts = replay.run()
        replay.directories.close()
        assert facts.complete or (damaged and facts.source == "index"), site
        replayed, index = tables(scratch / BASE), tables(lab.path(state, layout.INDEX_FILE))
        for table in ("messages", "message_recipients", "mailbox_projections"):
            assert replayed[table] == index[table], (site, "snapshots and journal contain all later changes")


def _messages(transport: Transport) -> dict[tuple[str, str], dict[int, str]]:
    with transport.reading() as connection:
        return {
            (owner.address, folder.name): {row.uid: row.message_id for row in mailboxes.rows(connection, folder.id)}
            for owner in mailboxes.registrations(connection)
            for folder in mailboxes.folders(connection, owner.id)
        }


def test_store_opens_after_a_crash_during_the_installation_of_the_index(tmp_path: Path) -> None:
    """A store without its new index opens without another repair."""
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


@pytest.mark.parametrize("begun", [False, True])
def test_crash_after_the_tables_were_sealed(tmp_path: Path, begun: bool) -> None:
    """The snapshot counts: later records must not reuse the record numbers that it covers."""
    root = tmp_path / "store"
    lab_stores.build(root)
    before = lab.seen(root)
    directories = Directories(str(root))
    with closing(directories), closing(lab.index(root)) as connection:
        last, checksum = index_file.applied(connection)
        snapshots.write(directories, connection, last + 1)
        if begun:
            segments.begin_segment(directories, segments.Header(id_of(root), last + 2, checksum))
    with Transport.open(root) as transport:
        deliver(transport, CAROL, octets=message("Life goes on", to=CAROL))
    after = lab.seen(root)
    assert len(after.pop((CAROL, "INBOX"))) == len(before.pop((CAROL, "INBOX"))) + 1
    assert after == before
    (tmp_path / "scratch").mkdir()
    replay = Replay(str(root), str(tmp_path / "scratch"), id_of(root))
    with closing(replay.directories):
        assert replay.run().complete
    replayed, index = tables(tmp_path / "scratch" / BASE), tables(lab.path(root, layout.INDEX_FILE))
    assert {table: replayed[table] for table in snapshots.TABLES} == {table: index[table] for table in snapshots.TABLES}
