"""Every operation, killed before each of its steps: what was acknowledged is there, the rest wholly or not at all."""

from __future__ import annotations

import pytest

from tests.crash import world
from tests.crash.children import killed_at
from tests.crash.lab import Lab, report_all, short
from tests.crash.scenarios import SCENARIOS, Scenario


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_killed_before_each_step(lab: Lab, scenario: Scenario) -> None:
    prepared = lab.prepare(scenario)
    root = lab.fresh(prepared)
    reference = killed_at(root, scenario, None)
    assert reference.failure is None
    assert not lab.judge(root, prepared, reference)
    world.remove(root)
    problems = {}
    last = len(reference.steps) if scenario.closing else reference.closing
    for step in range(last):
        root = lab.fresh(prepared)
        # Every other time SQLite has written pages before its commit, and leaves a rollback journal.
        report = killed_at(root, scenario, step, spilling=bool(step % 2))
        found = lab.judge(root, prepared, report)
        if not report.killed:
            found.insert(0, "there was no such step this time")
        if found:
            problems[f"killed before step {step}, {short(reference.steps[step])}"] = found
        world.remove(root)
    world.remove(prepared.root)
    report_all(problems)
