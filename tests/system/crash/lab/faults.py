"""Scenarios on a failing disk: an error replaces a step, in a child, which then checks the store."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import Any

from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError
from tests.system.crash.lab import view, world
from tests.system.crash.lab.children import (
    Report,
    Reporter,
    killed_at,
    no_background_checkpoints,
    perform,
    run_child,
    stepping,
    tell_result,
)
from tests.system.crash.lab.lab import Lab, Prepared

#: True if the step with this number and kind fails.
Fails = Callable[[int, str], bool]

#: Steps that a full disk refuses; it still removes names and files.
TAKES_ROOM = {"create", "write", "write-rest", "append", "mkdir", "symlink", "link", "index-commit"}


def once(step: int) -> Fails:
    return lambda number, _: number == step


def full_from(step: int) -> Fails:
    return lambda number, action: number >= step and action in TAKES_ROOM


def broken_from(step: int) -> Fails:
    return lambda number, _: number >= step


def _attempt(transport: Transport, prepared: Prepared, fails: Fails, code: int) -> list[Any]:
    """Run the scenario with failing steps; returns the result, or the error, of each action."""

    def on_step(number: int, action: str, fd: int, name: str) -> None:
        if fails(number, action):
            raise OSError(code, os.strerror(code))

    results: list[Any] = []
    with stepping(on_step):
        perform(transport, prepared.scenario, lambda _, result: results.append(result))
    return results


def _wrong_errors(results: list[Any]) -> list[str]:
    """Every failure of an operation must be a temporary one."""
    return [
        f"action {number} fails with {result!r}"
        for number, result in enumerate(results)
        if isinstance(result, BaseException) and not (isinstance(result, MailError) and result.temporary)
    ]


def survives(lab: Lab, root: str, prepared: Prepared, fails: Fails, *, unsure: bool = False) -> Report:
    """Run the scenario with failing steps, twice: with ENOSPC and with EIO; then without. Return the problems.

    ``unsure``: the disk fails so badly that an operation may have happened although its caller got an error.
    """
    everything = prepared.scenario.reached

    def check(transport: Transport, when: str, results: list[Any]) -> tuple[int, list[str]]:
        failed = sum(isinstance(result, BaseException) for result in results)
        done = everything if failed == prepared.scenario.refused else 0
        if unsure:
            transport.run(op.Collect(0))  # a commit resolves the outcome of those before
            # Of a batch, a first part may have reached the journal.
            done = prepared.stage_of(view.take(root, prepared.base_ids)) or 0
        if done:
            transport.checkpoint()  # large content stays in staging until then
        seen = view.take(root, prepared.base_ids)
        leftovers = bool(done) or unsure or prepared.scenario.upkeep
        problems = _wrong_errors(results)
        problems += lab.checker.problems(root, sessions=1, leftovers=leftovers, replay=when == "after EIO")
        if seen != prepared.views[done]:
            problems.append(f"{failed} actions failed, but\n{view.difference(seen, prepared.views[done])}")
        return done, [f"{when}: {problem}" for problem in problems]

    def body(reporter: Reporter) -> None:
        problems: list[str] = []
        with no_background_checkpoints(), contextlib.ExitStack() as scope:
            transport = scope.enter_context(Transport.open(root))
            done = 0
            for code in (errno.ENOSPC, errno.EIO):
                if not done and not problems:
                    results = _attempt(transport, prepared, fails, code)
                    done, problems = check(transport, f"after {errno.errorcode[code]}", results)
            if not transport._trusted:  # a sync failed: no checkpoint before what it may have lost is written again
                transport.close()
                transport = scope.enter_context(Transport.open(root))
            if not done and not problems:
                results = _attempt(transport, prepared, lambda *_: False, 0)
                done, problems = check(transport, "without an error", results)
                if not done:
                    problems.append(f"without an error: {results}")
            for number, result in enumerate(results):
                if done and not isinstance(result, BaseException):
                    tell_result(reporter, number, result)
        reporter.report(problems=problems, done=done)

    return run_child(body)


def outcome(lab: Lab, prepared: Prepared, fails: Fails, *, unsure: bool = False) -> list[str]:
    """Return the problems of a scenario on a failing disk, in the open store and after it was reopened."""
    root = lab.fresh(prepared)
    report = survives(lab, root, prepared, fails, unsure=unsure)
    problems = list(report.notes.get("problems", []))
    if not problems:
        problems = lab.judge(root, prepared, report, exactly=report.notes.get("done"), quarantine=unsure)
    world.remove(root)
    return problems


def steps_of(lab: Lab, prepared: Prepared) -> list[str]:
    """Every step of a scenario, without those of closing the store."""
    root = lab.fresh(prepared)
    reference = killed_at(root, prepared.scenario, None)
    world.remove(root)
    assert reference.failure is None
    return reference.steps[: reference.closing]
