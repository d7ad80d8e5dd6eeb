"""Every operation, killed before each of its steps: what was acknowledged is there, the rest wholly or not at all."""

from __future__ import annotations

import os

import pytest

from adapter.store import journal
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from tests.system.crash.lab import view, world
from tests.system.crash.lab.children import Reporter, killed_at, killed_in_place, no_background_checkpoints, run_child
from tests.system.crash.lab.faults import steps_of
from tests.system.crash.lab.lab import Lab, report_all, short
from tests.system.crash.lab.scenarios import BY_NAME, SCENARIOS, Scenario
from tests.system.crash.lab.spread import spread


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_killed_before_each_step(lab: Lab, scenario: Scenario) -> None:
    prepared = lab.prepare(scenario)
    root = lab.fresh(prepared)
    reference = killed_at(root, scenario, None)
    assert reference.failure is None
    assert not lab.judge(root, prepared, reference)
    world.remove(root)

    def check(step: int) -> list[str]:
        root = lab.fresh(prepared)
        # Of every four, two times SQLite has written pages before its commit, and leaves a rollback journal.
        report = killed_at(root, scenario, step, spilling=step % 4 > 1)
        problems = lab.judge(root, prepared, report)
        world.remove(root)
        return problems if report.killed else ["there was no such step this time", *problems]

    last = len(reference.steps) if scenario.closing else reference.closing
    problems = spread(range(last), check, lambda step: f"killed before step {step}, {short(reference.steps[step])}")
    world.remove(prepared.root)
    report_all(problems)


@pytest.mark.parametrize("name", ["deliver to many", "group"])
def test_killed_while_the_journal_starts_a_new_segment(lab: Lab, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = lab.prepare(BY_NAME[name])
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 1)
    steps = steps_of(lab, prepared)
    first = next(number for number, step in enumerate(steps) if step.startswith("create ") and "/journal/" in step)

    def check(step: int) -> list[str]:
        root = lab.fresh(prepared)
        problems = lab.judge(root, prepared, killed_at(root, prepared.scenario, step))
        world.remove(root)
        return problems

    problems = spread(range(first, first + 6), check, lambda step: f"killed before step {step}, {short(steps[step])}")
    world.remove(prepared.root)
    report_all(problems)


_BESIDE = ["deliver large file", "move", "rename swap", "delete cluttered", "collect", "register stash", "group"]


@pytest.mark.parametrize("name", _BESIDE)
def test_killed_beside_a_process_that_lives(lab: Lab, name: str) -> None:
    """The other one has the store open all the time; its next commit rolls the dead one's forward."""
    prepared = lab.prepare(BY_NAME[name])
    steps = steps_of(lab, prepared)
    commit = next(number for number, step in enumerate(steps) if step.startswith("append "))

    def check(step: int) -> list[str]:
        root = lab.fresh(prepared)

        def body(reporter: Reporter) -> None:
            waiting, go = os.pipe()
            pid = os.fork()
            if pid == 0:  # opens the store only when the other has it open
                os.close(go)
                os.read(waiting, 1)
                killed_in_place(root, prepared.scenario, step)
            with no_background_checkpoints(), Transport.open(root) as transport:
                os.write(go, b"!")
                os.waitpid(pid, 0)
                transport.run(op.Collect(0))
                problems = lab.checker.problems(root, sessions=2, leftovers=True)
                if prepared.stage_of(view.take(root, prepared.base_ids)) is None:
                    problems.append("neither wholly there nor wholly absent")
                reporter.report(problems=problems)

        report = run_child(body)
        problems = list(report.notes.get("problems", [])) + lab.judge(root, prepared, report)
        world.remove(root)
        return problems

    where = range(commit, len(steps), 2)  # every other step: the cases are those of the test above
    problems = spread(where, check, lambda step: f"killed before step {step}, {short(steps[step])}")
    world.remove(prepared.root)
    report_all(problems)
