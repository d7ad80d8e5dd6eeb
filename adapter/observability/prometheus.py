"""Prometheus text format (version 0.0.4) for the samples of all workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from adapter.observability.metrics import FAMILIES, STORE_FAMILIES, Family, Histogram, Sample, Value, WorkerSamples

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def render(workers: Iterable[WorkerSamples]) -> str:
    """Render the samples of each worker with its label, and those of the store from the latest measurement."""
    by_family: dict[str, list[tuple[str, Sample]]] = {name: [] for name in FAMILIES}
    latest = 0.0
    for number, published_at, samples in workers:
        for sample in samples:
            if sample.family not in STORE_FAMILIES:
                by_family[sample.family].append((str(number), sample))
        store_samples = [sample for sample in samples if sample.family in STORE_FAMILIES]
        if store_samples and published_at > latest:
            latest = published_at
            for name in STORE_FAMILIES:
                by_family[name] = []
            for sample in store_samples:
                by_family[sample.family].append(("", sample))
    return "".join(
        line for name, family in FAMILIES.items() if by_family[name] for line in _family(family, by_family[name])
    )


def _family(family: Family[Value] | Family[Histogram], members: Sequence[tuple[str, Sample]]) -> Iterator[str]:
    yield f"# HELP {family.name} {family.text}\n# TYPE {family.name} {family.kind}\n"
    for worker, sample in members:
        labels = list(zip(family.labels, sample.labels, strict=True))
        if worker:
            labels.append(("worker", worker))
        if family.kind != "histogram":
            yield f"{family.name}{_labels(labels)} {_number(sample.value)}\n"
            continue
        counts = list(accumulate(sample.buckets))
        for bound, count in zip((*map(_number, family.bounds), "+Inf"), counts, strict=True):
            yield f"{family.name}_bucket{_labels([*labels, ('le', bound)])} {count}\n"
        yield f"{family.name}_sum{_labels(labels)} {_number(sample.value)}\n"
        yield f"{family.name}_count{_labels(labels)} {counts[-1]}\n"


def _labels(labels: Sequence[tuple[str, str]]) -> str:
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels) + "}" if labels else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
