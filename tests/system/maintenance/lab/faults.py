"""Faults, and the decorator that registers them in the catalogue (:mod:`tests.system.maintenance.lab.catalogue`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tests.system.maintenance.lab.victims import Victims

#: rows: of the index; disk: everything else; index: the file as a whole; journal: the order of trust changes.
Layer = Literal["rows", "disk", "index", "journal"]
Inject = Callable[[Victims], dict[str, int]]
#: As it is written: None for one finding of each of its kinds.
Injector = Callable[[Victims], dict[str, int] | None]


@dataclass(frozen=True)
class Fault:
    """An injector damages a store and returns the expected findings."""

    name: str
    layer: Layer
    kinds: frozenset[str]
    inject: Inject


ENTERED: dict[str, Fault] = {}


def fault(layer: Layer, *kinds: str) -> Callable[[Injector], Injector]:
    """Register an injector with the kinds of findings that it causes."""

    def enter(injector: Injector) -> Injector:
        def inject(victims: Victims) -> dict[str, int]:
            return injector(victims) or dict.fromkeys(kinds, 1)

        ENTERED[injector.__name__] = Fault(injector.__name__, layer, frozenset(kinds), inject)
        return injector

    return enter
