"""Killed while it recovers: the next to open the store rolls forward as if nothing had happened in between."""

from __future__ import annotations

import random

import pytest

from tests.system.crash.lab import world
from tests.system.crash.lab.children import Report, killed_at, reopened_and_killed_at
from tests.system.crash.lab.lab import Lab, Prepared, report_all, short
from tests.system.crash.lab.scenarios import SCENARIOS, Scenario
from tests.system.crash.lab.spread import spread

_TANGLED = {"register stash", "purge with clutter", "rename swap", "rename inbox", "delete cluttered", "group"}
_SOME = 6


def _crash_points(scenario: Scenario, steps: list[str]) -> list[int]:
    """Right after the commit point, when all work is left to recovery; for some, in the middle of the files as well."""
    first = next(
        (number for number, step in enumerate(steps) if step.startswith("fsync /") and "/journal/" in step), -1
    )
    last = next((number for number, step in enumerate(steps) if step == "index-commit"), -1)
    if first < 0 or last < 0:
        return []
    return sorted({first + 1, (first + last + 1) // 2 if scenario.name in _TANGLED else first + 1})


def _recovery_steps(scenario: Scenario, steps: list[str]) -> list[int]:
    """Steps after the roll-forward are the same in every recovery: a few scenarios test them.

    So is most of the roll-forward where files and folders are not tangled: some of its steps stand for all.
    """
    points = range(len(steps) if scenario.closing else min(len(steps), steps.index("index-commit") + 1))
    if scenario.name in _TANGLED or len(points) <= _SOME:
        return list(points)
    return sorted(random.Random(scenario.name).sample(points, _SOME))


def _killed_in_recovery(lab: Lab, prepared: Prepared, crashed: str, report: Report, where: str) -> dict[str, list[str]]:
    root = world.copy(crashed, lab.path())
    reference = reopened_and_killed_at(root, None)
    world.remove(root)

    def check(step: int) -> list[str]:
        root = world.copy(crashed, lab.path())
        killed = reopened_and_killed_at(root, step)
        problems = [killed.failure] if killed.failure else lab.judge(root, prepared, report)
        world.remove(root)
        return problems if killed.killed else ["there was no such step this time", *problems]

    steps = _recovery_steps(prepared.scenario, reference.steps)
    return spread(steps, check, lambda step: f"{where}, then before step {step}, {short(reference.steps[step])}")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_killed_before_each_step_of_recovery(lab: Lab, scenario: Scenario) -> None:
    prepared = lab.prepare(scenario)
    root = lab.fresh(prepared)
    steps = killed_at(root, scenario, None).steps
    world.remove(root)
    problems: dict[str, list[str]] = {}
    for point in _crash_points(scenario, steps):
        crashed = lab.fresh(prepared)
        report = killed_at(crashed, scenario, point)
        where = f"killed before step {point}, {short(steps[point])}"
        problems |= _killed_in_recovery(lab, prepared, crashed, report, where)
        world.remove(crashed)
    world.remove(prepared.root)
    report_all(problems)
