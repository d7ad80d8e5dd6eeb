"""ENOSPC and EIO at each step: the operation fails for now, nothing of it stays, and the open store works on."""

from __future__ import annotations

import random

import pytest

from tests.system.crash.lab import world
from tests.system.crash.lab.faults import once, outcome, steps_of
from tests.system.crash.lab.lab import Lab, report_all, short
from tests.system.crash.lab.scenarios import SCENARIOS, Scenario
from tests.system.crash.lab.spread import spread


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_an_error_at_each_step(lab: Lab, scenario: Scenario) -> None:
    prepared = lab.prepare(scenario)
    steps = [(step, what) for step, what in enumerate(steps_of(lab, prepared)) if not what.startswith("write-rest ")]
    if scenario.upkeep:  # a dozen tables, written and removed in the same way
        steps = random.Random(scenario.name).sample(steps, 20)
    if scenario.name == "group":  # how its content is staged is tested one by one
        steps = [point for point in steps if "/staging/" not in point[1]]
    problems = spread(
        steps,
        lambda point: outcome(lab, prepared, once(point[0])),
        lambda point: f"step {point[0]}, {short(point[1])}",
    )
    world.remove(prepared.root)
    report_all(problems)
