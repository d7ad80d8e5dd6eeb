"""ENOSPC and EIO at each step: the operation fails for now, nothing of it stays, and the open store works on."""

from __future__ import annotations

import pytest

from tests.crash import world
from tests.crash.faults import once, outcome, steps_of
from tests.crash.lab import Lab, report_all, short
from tests.crash.scenarios import SCENARIOS, Scenario


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_an_error_at_each_step(lab: Lab, scenario: Scenario) -> None:
    prepared = lab.prepare(scenario)
    problems = {}
    for step, what in enumerate(steps_of(lab, prepared)):
        if found := outcome(lab, prepared, once(step)):
            problems[f"step {step}, {short(what)}"] = found
    world.remove(prepared.root)
    report_all(problems)
