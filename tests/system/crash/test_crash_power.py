"""The power goes before each step: what was acknowledged is there after the restart, whatever else the disk kept.

States are taken while the store runs and checked afterwards, each on a machine that has started again since.
"""

from __future__ import annotations

import errno
import os
import pickle
import random

import pytest

from adapter.store import journal
from adapter.store.flags import Flag
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from tests.system.crash.lab import letters, world
from tests.system.crash.lab.children import (
    Reporter,
    another_boot,
    die,
    no_background_checkpoints,
    perform,
    run_child,
    stepping,
)
from tests.system.crash.lab.durability import Shadow, write_out
from tests.system.crash.lab.faults import steps_of
from tests.system.crash.lab.lab import Lab, report_all
from tests.system.crash.lab.outage import Outage, State, failed_sync, judge_all, watched
from tests.system.crash.lab.scenarios import (
    BY_NAME,
    LARGE,
    SCENARIOS,
    Action,
    Scenario,
    checkpoint,
    collect,
    copy,
    deliver,
    expunge,
    flags,
    give_up,
    move,
    put,
    relay,
    rename,
    run,
    snapshot,
)
from tests.system.crash.lab.world import ADA, BOB, CARL, DORA, LONG, NEW, SHARED_BLOB


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_power_loss_before_each_step(lab: Lab, scenario: Scenario) -> None:
    """At every step what was synced; at a third of them, chosen by chance, something of the rest as well."""
    prepared = lab.prepare(scenario)
    problems = judge_all(lab, prepared, watched(lab, prepared, "alone", 0.34))
    world.remove(prepared.root)
    report_all(problems)


#: These can be done in any order, each after any others.
_POOL: list[Action] = [
    deliver(letters.plain(200), [ADA, BOB], keep_sent=True),
    deliver(letters.with_files(201, SHARED_BLOB, b"first"), [CARL]),
    deliver(letters.with_files(202, b"first", letters.noise(9, LARGE)), [BOB]),
    deliver(letters.plain(203, reply_to=3), [ADA]),
    put("Lists", letters.plain(204), letters.plain(205)),
    put("Drafts", letters.with_files(206, b"first")),
    flags("INBOX", [1, 2, 3], "add", int(Flag.READ), ["seen"]),
    flags("INBOX", [3, 4], "set", int(Flag.STARRED)),
    copy("INBOX", [1, 3], "Archive"),
    move("INBOX", [2], "Lists"),
    expunge("INBOX"),
    collect,
    relay,
    give_up,
    rename("Projects", "Work/Old"),
    rename("Blue", "Azure"),
    run(op.DeleteFolder(ADA, LONG)),
    run(op.DeleteFolder(ADA, "Red")),
    run(op.CreateFolder(ADA, "New/Nested")),
    run(op.Subscribe(ADA, "Nowhere")),
    run(op.Register(NEW)),
    run(op.Register(DORA, "stash")),
    run(op.Deregister(CARL, "purge")),
]


@pytest.mark.parametrize("seed", range(4))
def test_power_loss_in_a_long_day(lab: Lab, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many operations, with checkpoints and snapshots in between or without any, in one journal segment or in many."""
    chance = random.Random(seed)
    if seed >= 2:
        monkeypatch.setattr(journal, "SEGMENT_BYTES", 3000)
    actions: list[Action] = []
    for action in chance.sample(_POOL, 12):
        actions.append(action)
        if seed % 2 and chance.random() < 0.4:
            actions.append(chance.choice([checkpoint, checkpoint, snapshot]))
    prepared = lab.prepare(Scenario(f"long day {seed}", actions))
    states = watched(lab, prepared, "long", 0.3)
    problems = judge_all(lab, prepared, chance.sample(states, min(len(states), 40)))
    world.remove(prepared.root)
    report_all(problems)


#: Each kind of file that is written, and folders that come, move and go.
_WRITTEN = ["register stash", "deliver small files", "deliver large file", "create long", "rename swap", "group"]


@pytest.mark.parametrize("name", _WRITTEN)
def test_power_loss_after_a_sync_that_failed(lab: Lab, name: str) -> None:
    """The system goes on to show what it did not write, and the next sync says nothing of it."""
    prepared = lab.prepare(BY_NAME[name])
    problems = judge_all(lab, prepared, failed_sync(lab, prepared, "failed", 0.2))
    world.remove(prepared.root)
    report_all(problems)


_TWICE = ["deliver large file", "register stash", "rename swap", "delete cluttered", "collect", "group"]


@pytest.mark.parametrize("name", _TWICE)
def test_power_loss_while_recovering_from_a_power_loss(lab: Lab, name: str) -> None:
    prepared = lab.prepare(BY_NAME[name])
    chance = random.Random(name)
    lost = [state for state in watched(lab, prepared, "twice", 0.5) if state.report.acknowledged]
    problems: dict[str, list[str]] = {}
    for first in chance.sample(lost, 1):
        root = write_out(first.tree, lab.path())
        outage = Outage(Shadow(root), f"twice {first.when}", scrambled=0.4)
        with no_background_checkpoints(), another_boot("the next"), stepping(outage.on_step), Transport.open(root):
            outage.take("open")
            outage.looking = False
        world.remove(root)
        states = [State(f"{first.when}; {state.when}", state.tree, first.report) for state in outage.states]
        problems |= judge_all(lab, prepared, states, boot="the one after")
    world.remove(prepared.root)
    report_all(problems)


@pytest.mark.parametrize("name", _TWICE)
def test_killed_then_power_loss_while_recovering(lab: Lab, name: str) -> None:
    """The page cache outlives the process but not the machine: recovery saw what never reached the disk."""
    prepared = lab.prepare(BY_NAME[name])
    steps = steps_of(lab, prepared)
    commit = next(number for number, step in enumerate(steps) if step.startswith("fsync /") and "/journal/" in step)
    problems: dict[str, list[str]] = {}
    for point in sorted({commit + 1, (commit + len(steps)) // 2}):
        root, kept = lab.fresh(prepared), lab.path()

        def body(reporter: Reporter, root: str = root, kept: str = kept, point: int = point) -> None:
            with no_background_checkpoints():
                shadow = Shadow(root)
                outage = Outage(shadow, "")
                outage.looking = False
                with stepping(outage.on_step):
                    transport = Transport.open(root)

                def on_step(number: int, action: str, fd: int, name: str) -> None:
                    outage.on_step(number, action, fd, name)
                    if number == point:
                        with open(kept, "wb") as file:
                            pickle.dump(shadow, file)
                        die()

                with stepping(on_step):
                    perform(transport, prepared.scenario, outage.acknowledge)

        assert run_child(body).killed
        with open(kept, "rb") as file:
            shadow: Shadow = pickle.load(file)
        os.unlink(kept)
        outage = Outage(shadow, f"killed {name} {point}", scrambled=0.4)
        with no_background_checkpoints(), stepping(outage.on_step), Transport.open(root):
            outage.take("open")
            outage.looking = False
        world.remove(root)
        by_state = judge_all(lab, prepared, outage.states)
        problems |= {f"killed before step {point}; {when}": list_ for when, list_ in by_state.items()}
    world.remove(prepared.root)
    report_all(problems)


@pytest.mark.parametrize(
    "name", ["register stash", "deliver small files", "move", "rename long", "delete cluttered", "collect", "group"]
)
def test_power_loss_after_an_operation_was_taken_back(lab: Lab, name: str) -> None:
    """Neither what it did nor how that was undone was synced: whatever comes back, the operation does not."""
    prepared = lab.prepare(BY_NAME[name])
    steps = steps_of(lab, prepared)
    commit = next(number for number, step in enumerate(steps) if step.startswith("fsync /") and "/journal/" in step)
    problems: dict[str, list[str]] = {}
    for point in sorted({commit + 2, (commit + len(steps)) // 2, steps.index("index-commit")}):
        root = lab.fresh(prepared)
        outage = Outage(Shadow(root), f"taken back {name} {point}")
        outage.looking = False
        with no_background_checkpoints(), stepping(outage.on_step):
            transport = Transport.open(root)

        def on_step(number: int, action: str, fd: int, name: str, outage: Outage = outage, point: int = point) -> None:
            outage.on_step(number, action, fd, name)
            if number == point or (number > point and action == "symlink" and prepared.scenario.grouped):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        results: dict[int, object] = {}
        with no_background_checkpoints(), stepping(on_step):
            perform(transport, prepared.scenario, results.__setitem__)
            for _ in range(3):
                outage.take("taken back")
        transport.close()
        world.remove(root)
        if all(isinstance(result, BaseException) for result in results.values()):
            by_state = judge_all(lab, prepared, outage.states, exactly=0)
            problems |= {f"step {point} failed; {when}": list_ for when, list_ in by_state.items()}
    world.remove(prepared.root)
    report_all(problems)
