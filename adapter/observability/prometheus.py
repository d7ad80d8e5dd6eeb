"""Figures as text, in the format that Prometheus reads (version 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from adapter.observability.metrics import FAMILIES, OF_THE_STORE, Family, Histogram, Sample, Value
from adapter.server.metrics_shm import Board

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def render(board: Board) -> str:
    """What all workers have put up."""
    found: dict[str, list[tuple[str, Sample]]] = {name: [] for name in FAMILIES}
    freshest = 0.0
    for number, when, samples in board.read():
        for sample in samples:
            if sample.family in OF_THE_STORE:
                continue
            found[sample.family].append((str(number), sample))
        stored = [sample for sample in samples if sample.family in OF_THE_STORE]
        if stored and when > freshest:
            freshest = when
            for name in OF_THE_STORE:
                found[name] = []
            for sample in stored:
                found[sample.family].append(("", sample))
    return "".join(line for name, family in FAMILIES.items() if found[name] for line in _family(family, found[name]))


def _family(family: Family[Value] | Family[Histogram], found: Sequence[tuple[str, Sample]]) -> Iterator[str]:
    yield f"# HELP {family.name} {family.text}\n# TYPE {family.name} {family.kind}\n"
    for worker, sample in found:
        labels = list(zip(family.labels, sample.labels, strict=True))
        if worker:
            labels.append(("worker", worker))
        if family.kind != "histogram":
            yield f"{family.name}{_labels(labels)} {_number(sample.value)}\n"
            continue
        counts = list(accumulate(sample.below))
        for bound, count in zip((*map(_number, family.bounds), "+Inf"), counts, strict=True):
            yield f"{family.name}_bucket{_labels([*labels, ('le', bound)])} {count}\n"
        yield f"{family.name}_sum{_labels(labels)} {_number(sample.value)}\n"
        yield f"{family.name}_count{_labels(labels)} {counts[-1]}\n"


def _labels(labels: Sequence[tuple[str, str]]) -> str:
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels) + "}" if labels else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
