"""A disk that stays full or broken for a while, fails one of many, or fails while the store is opened or closed."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.system.crash.lab import letters, view, world
from tests.system.crash.lab.children import (
    Reporter,
    another_boot,
    killed_at,
    no_background_checkpoints,
    perform,
    reopened_and_killed_at,
    run_child,
    stepping,
    tell_result,
)
from tests.system.crash.lab.faults import TAKES_ROOM, broken_from, full_from, outcome, steps_of
from tests.system.crash.lab.lab import Lab, Prepared, report_all, short
from tests.system.crash.lab.scenarios import BY_NAME, Scenario
from tests.system.crash.lab.spread import spread

#: Scenarios with the longest rollback, or one that needs room.
_HARD_TO_UNDO = [
    BY_NAME[name]
    for name in (
        "register stash",
        "purge with clutter",
        "deliver large file",
        "append replace",
        "move",
        "rename long",
        "rename swap",
        "delete cluttered",
        "delete and create",
        "collect",
        "relay",
        "group",
    )
]


def _from_the_journal_on(steps: list[str]) -> list[tuple[int, str]]:
    """Steps before it stage content: one failure tests them as well as many."""
    first = next(number for number, step in enumerate(steps) if step.startswith("append "))
    return list(enumerate(steps))[first:]


@pytest.mark.parametrize("scenario", _HARD_TO_UNDO, ids=str)
def test_the_disk_stays_full(lab: Lab, scenario: Scenario) -> None:
    """From a step on nothing more fits: not even an abort record, nor a link that is to be made again."""
    prepared = lab.prepare(scenario)
    steps = [
        point for point in _from_the_journal_on(steps_of(lab, prepared)) if point[1].partition(" ")[0] in TAKES_ROOM
    ]
    problems = spread(
        steps,
        lambda point: outcome(lab, prepared, full_from(point[0]), unsure=True),
        lambda point: f"from step {point[0]} on, {short(point[1])}",
    )
    world.remove(prepared.root)
    report_all(problems)


@pytest.mark.parametrize("scenario", _HARD_TO_UNDO, ids=str)
def test_the_disk_breaks_for_a_while(lab: Lab, scenario: Scenario) -> None:
    """From a step on everything fails, the rollback included. Every third step: they are much alike."""
    prepared = lab.prepare(scenario)
    problems = spread(
        _from_the_journal_on(steps_of(lab, prepared))[1::3],
        lambda point: outcome(lab, prepared, broken_from(point[0]), unsure=True),
        lambda point: f"from step {point[0]} on, {short(point[1])}",
    )
    world.remove(prepared.root)
    report_all(problems)


# --- one of many -----------------------------------------------------------------------------------------------------

#: Action of the group -> a place only that action changes.
_VICTIMS = {
    0: f"/mailboxes/{world.BOB}/inbox",
    1: f"/mailboxes/{world.BOB}/sent",
    2: f"/mailboxes/{world.CARL}/inbox",
    4: f"/mailboxes/{world.ADA}/Blue",
    6: f"/mailboxes/{world.ADA}/Later",
    9: f"/mailboxes/{world.ADA}/Empty",
}


@pytest.mark.parametrize("victim", _VICTIMS)
def test_one_of_a_group_fails_alone(lab: Lab, victim: int) -> None:
    group = BY_NAME["group"]
    others = [action for number, action in enumerate(group.actions) if number != victim]
    prepared = lab.prepare(replace(group, actions=others))
    root = lab.fresh(prepared)

    def on_step(number: int, action: str, fd: int, name: str) -> None:
        place = os.readlink(f"/proc/self/fd/{fd}") if fd >= 0 else ""
        if _VICTIMS[victim] in f"{place}/{name}":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def body(reporter: Reporter) -> None:
        with no_background_checkpoints(), Transport.open(root) as transport:
            with stepping(on_step):
                perform(transport, group, lambda number, result: tell_result(reporter, number, result))
            transport.checkpoint()
            reporter.report(problems=lab.checker.problems(root, sessions=1))

    report = run_child(body)
    assert report.failure is None
    assert report.notes["problems"] == []
    assert [(error["action"], error["temporary"]) for error in report.errors] == [(victim, True)]
    assert len(report.acknowledged) == len(others)
    report.acknowledged.clear()  # their numbers are those of the whole group
    assert lab.judge(root, prepared, report, exactly=len(others)) == []


def test_an_index_that_cannot_grow(lab: Lab) -> None:
    """SQLite itself says that the disk is full, in the middle of a plan or at the commit."""
    prepared = lab.prepare(BY_NAME["group"])
    root = lab.fresh(prepared)

    def body(reporter: Reporter) -> None:
        problems: list[str] = []
        with no_background_checkpoints(), Transport.open(root) as transport:
            writer = transport.index.writer
            (pages,) = writer.execute("PRAGMA page_count").fetchone()
            writer.execute(f"PRAGMA max_page_count={pages}")
            results: list[object] = []
            for _ in range(40):  # until the free pages are used up
                results.clear()
                staged = transport.stage(letters.plain(130))
                try:
                    transport.run(op.Deliver(staged, "", [world.ADA, world.BOB]))
                except MailError as error:
                    results.append(error.reason)
                    break
            if results != [Reason.DISK_FULL]:
                problems.append(f"a full index gives {results}")
            problems += lab.checker.problems(root, sessions=1)
            writer.execute(f"PRAGMA max_page_count={pages + 1000}")
            transport.run(op.Deliver(transport.stage(letters.plain(131)), "", [world.ADA]))
            problems += lab.checker.problems(root, sessions=1)
        reporter.report(problems=problems)

    report = run_child(body)
    assert report.failure is None
    assert report.notes["problems"] == []
    assert lab.checker.problems(root) == []


# --- opening and closing ---------------------------------------------------------------------------------------------


def _crashed(lab: Lab, prepared: Prepared) -> str:
    """A store with a committed journal and none of its files in place."""
    steps = steps_of(lab, prepared)
    point = next(number for number, step in enumerate(steps) if step.startswith("fsync /") and "/journal/" in step) + 1
    root = lab.fresh(prepared)
    assert killed_at(root, prepared.scenario, point).killed
    return root


@pytest.mark.parametrize(
    ("name", "boot"), [("deliver large file", None), ("deliver large file", "the next"), ("rename swap", None)]
)
def test_an_error_at_each_step_of_opening(lab: Lab, name: str, boot: str | None) -> None:
    prepared = lab.prepare(BY_NAME[name])
    crashed = _crashed(lab, prepared)
    root = world.copy(crashed, lab.path())
    steps = reopened_and_killed_at(root, None, boot).steps
    world.remove(root)

    def check(step: int) -> list[str]:
        root = world.copy(crashed, lab.path())

        def on_step(number: int, action: str, fd: int, name: str) -> None:
            if number == step:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        def body(reporter: Reporter) -> None:
            with no_background_checkpoints(), another_boot(boot), stepping(on_step):
                try:
                    Transport.open(root).close()  # closing does not fail: it leaves the rest to the next one
                except MailError as error:
                    reporter.report(refused=error.temporary)

        report = run_child(body)
        problems = lab.judge(root, prepared, report, boot=boot)
        if report.notes.get("refused") is False:
            problems.append("the error is not temporary")
        world.remove(root)
        return problems

    report_all(spread(range(len(steps)), check, lambda step: f"step {step}, {short(steps[step])}"))


def test_an_error_at_each_step_of_closing(lab: Lab) -> None:
    prepared = lab.prepare(BY_NAME["deliver large file"])
    root = lab.fresh(prepared)
    reference = killed_at(root, prepared.scenario, None)
    world.remove(root)

    def check(step: int) -> list[str]:
        root = lab.fresh(prepared)

        def on_step(number: int, action: str, fd: int, name: str) -> None:
            if number == step:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        def body(reporter: Reporter) -> None:
            with no_background_checkpoints():
                transport = Transport.open(root)
                with stepping(on_step):
                    perform(transport, prepared.scenario, lambda number, result: tell_result(reporter, number, result))
                    transport.close()
                # Everything was let go of: the same process can open it again.
                with Transport.open(root, lock_timeout=1):
                    seen = view.take(root, prepared.base_ids)
                    reporter.report(stage=prepared.stage_of(seen))

        report = run_child(body)
        problems = lab.judge(root, prepared, report, exactly=prepared.scenario.reached)
        if report.notes.get("stage") != prepared.scenario.reached:
            problems.append(f"opened again at once, it shows {report.notes.get('stage')} actions")
        world.remove(root)
        return problems

    steps = range(reference.closing, len(reference.steps))
    report_all(spread(steps, check, lambda step: f"step {step}, {short(reference.steps[step])}"))
