"""The result as JSON, as a table for the terminal, and as the difference between two results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.measure import Sample, Summary, summarise
from tests.bench.runner import Series

FORMAT = 1
REFERENCE = "dovecot-maildir"
OURS = "markpost-1"
#: Cost of a delivery in a full store against that in the smallest one.
GROWTH_GOAL = 1.3
#: A median must differ by more than this, beyond the quartiles of both results, to count as a change.
_MIN_CHANGE = 1.10
_NEGLIGIBLE_SECONDS = 20e-6


@dataclass
class Result:
    facts: dict[str, Any]
    options: dict[str, Any]
    skipped: dict[str, str]
    series: list[Series] = field(default_factory=list)

    def write(self, path: str) -> None:
        whole = {
            "format": FORMAT,
            "machine": self.facts,
            "options": self.options,
            "skipped": self.skipped,
            "series": [
                {
                    "row": each.row,
                    "unit": each.unit,
                    "size": each.size,
                    "peer": each.peer,
                    "samples": [sample.to_json() for sample in each.samples],
                }
                for each in self.series
            ],
        }
        Path(path).write_text(json.dumps(whole, indent=1) + "\n")

    @classmethod
    def read(cls, path: str) -> Result:
        whole = json.loads(Path(path).read_text())
        if whole.get("format") != FORMAT:
            raise ValueError(f"{path} is not a result of this bench (format {whole.get('format')!r})")
        series = [
            Series(
                each["row"], each["unit"], each["size"], each["peer"], [Sample(**sample) for sample in each["samples"]]
            )
            for each in whole["series"]
        ]
        return cls(whole["machine"], whole["options"], whole["skipped"], series)

    def find(self, row: str, size: int, peer: str) -> Series | None:
        return next(
            (each for each in self.series if (each.row, each.size, each.peer) == (row, size, peer) and each.samples),
            None,
        )


def figures(series: Series, name: str) -> Summary | None:
    """Summarise ``value``, ``cpu``, ``background`` or ``syncs`` of all samples; None if it was not measured."""
    values = [value for sample in series.samples if (value := getattr(sample, name)) is not None]
    return summarise(values) if values else None


def ratio(theirs: Summary | None, ours: Summary | None) -> float | None:
    """The other server's cost as a multiple of ours."""
    return theirs.median / ours.median if theirs and ours and ours.median > 0 and theirs.median > 0 else None


def show_quantity(value: float, unit: str) -> str:
    if unit == "MiB":
        return f"{value:,.0f} MiB"
    milliseconds = value * 1000
    return f"{milliseconds:,.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"


def table(series: Sequence[Series]) -> list[str]:
    """Lines for the series of one row."""
    lines = []
    for size in sorted({each.size for each in series}):
        these = [each for each in series if each.size == size]
        reference = next((each for each in these if each.peer == REFERENCE), None)
        lines.append(f"{these[0].row}{f', {size:,} messages' if size else ''}")
        for each in these:
            value = figures(each, "value")
            if value is None:
                continue
            spread = f"{show_quantity(value.low, each.unit)} – {show_quantity(value.high, each.unit)}"
            line = f"  {each.peer:<16} {show_quantity(value.median, each.unit):>10}  {spread:<22}"
            for name in ("cpu", "background"):
                spent = figures(each, name)
                if spent is not None and (name == "cpu" or spent.median > _NEGLIGIBLE_SECONDS):
                    line += f" {name} {show_quantity(spent.median, 'ms'):>9}"
            syncs = figures(each, "syncs")
            if syncs is not None:
                line += f"  syncs {syncs.median:.3g}"
            if reference is not None and each is not reference:
                factors = (ratio(figures(reference, name), figures(each, name)) for name in ("value", "cpu"))
                shown = [f"{factor:.2f} x" for factor in factors if factor is not None]
                line += f"  {REFERENCE} / this: {', cpu '.join(shown)}"
            lines.append(line)
    return lines


def growth(result: Result) -> list[str]:
    """Cost of a delivery by server CPU against the size of the store."""
    lines = []
    for row in dict.fromkeys(each.row for each in result.series if each.row.startswith("delivery into a full")):
        for peer in dict.fromkeys(each.peer for each in result.series if each.row == row):
            sizes = sorted(each.size for each in result.series if (each.row, each.peer) == (row, peer))
            costs = {
                size: spent.median
                for size in sizes
                if (sample := result.find(row, size, peer)) and (spent := figures(sample, "cpu"))
            }
            if len(costs) < 2:
                continue
            factor = max(costs.values()) / min(costs.values()) if min(costs.values()) > 0 else float("inf")
            shown = ", ".join(f"{size:,}: {show_quantity(cost, 'ms')}" for size, cost in costs.items())
            verdict = ("ok" if factor <= GROWTH_GOAL else "MISSED") if peer.startswith("markpost") else ""
            lines.append(
                f"  {row}, {peer:<16} cpu at {shown}; {factor:.2f} x (goal {GROWTH_GOAL} x) {verdict}".rstrip()
            )
    return ["cost of a delivery against the size of the store:", *lines] if lines else []


def compare(old: Result, new: Result) -> list[str]:
    """Rows that became slower or faster: medians differ and quartiles do not overlap."""
    slower: list[tuple[float, str]] = []
    faster: list[tuple[float, str]] = []
    common = 0
    for each in new.series:
        before = old.find(each.row, each.size, each.peer)
        if before is None:
            continue
        common += 1
        for name in ("value", "cpu", "syncs"):
            was, is_now = figures(before, name), figures(each, name)
            if was is None or is_now is None or max(was.median, is_now.median) < _NEGLIGIBLE_SECONDS:
                continue
            factor = is_now.median / was.median if was.median > 0 else float("inf")
            unit = each.unit if name == "value" else "ms"
            label = {"value": "time" if each.unit == "ms" else "memory", "cpu": "cpu", "syncs": "syncs"}[name]
            if name == "syncs":
                change = f"{was.median:.3g} -> {is_now.median:.3g}"
            else:
                change = f"{show_quantity(was.median, unit)} -> {show_quantity(is_now.median, unit)}"
            at = f", {each.size:,} messages" if each.size else ""
            text = f"  {factor:5.2f} x  {label:<6} {each.row}{at}, {each.peer}: {change}"
            if factor > _MIN_CHANGE and is_now.low > was.high:
                slower.append((-factor, text))
            elif factor < 1 / _MIN_CHANGE and is_now.high < was.low:
                faster.append((factor, text))
    lines = [f"compared {common} rows with the older result, beyond the spread of both:"]
    for label, changes in (("slower", slower), ("faster", faster)):
        lines += [f"{label}:", *(text for _, text in sorted(changes))] if changes else [f"{label}: none"]
    return lines
