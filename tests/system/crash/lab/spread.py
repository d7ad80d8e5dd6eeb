"""Looking at many independent points on all processors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TypeVar

from tests.system.crash.lab.children import Teller, finish_child, start_child

Point = TypeVar("Point")

_TIME_LIMIT = 170.0


def spread(
    points: Iterable[Point], look: Callable[[Point], list[str]], name: Callable[[Point], str]
) -> dict[str, list[str]]:
    """What ``look`` finds wrong at each of the points, in child processes; points without a fault are left out."""
    waiting = list(points)
    workers = min(len(waiting), len(os.sched_getaffinity(0)), 8)

    def body(teller: Teller, mine: list[Point]) -> None:
        for point in mine:
            if found := look(point):
                teller.tell(problem=[name(point), found])

    children = [
        start_child(lambda teller, mine=waiting[number::workers]: body(teller, mine))  # type: ignore[misc]
        for number in range(workers)
    ]
    problems: dict[str, list[str]] = {}
    for child in children:
        report = finish_child(child, _TIME_LIMIT)
        problems |= dict(report.problems)
        if report.failure:
            problems["a worker"] = [report.failure]
    return problems
