"""Checks of many independent points, spread over all processors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TypeVar

from tests.system.crash.lab.children import Reporter, finish_child, start_child

Point = TypeVar("Point")

_TIME_LIMIT = 170.0


def spread(
    points: Iterable[Point], check: Callable[[Point], list[str]], name: Callable[[Point], str]
) -> dict[str, list[str]]:
    """Run ``check`` at each of the points, in child processes; return the problems by point."""
    waiting = list(points)
    workers = min(len(waiting), len(os.sched_getaffinity(0)), 8)

    def body(reporter: Reporter, mine: list[Point]) -> None:
        for point in mine:
            if problems := check(point):
                reporter.report(problem=[name(point), problems])

    children = [
        start_child(lambda reporter, mine=waiting[number::workers]: body(reporter, mine))  # type: ignore[misc]
        for number in range(workers)
    ]
    problems: dict[str, list[str]] = {}
    for child in children:
        report = finish_child(child, _TIME_LIMIT)
        problems |= dict(report.problems)
        if report.failure:
            problems["a worker"] = [report.failure]
    return problems
