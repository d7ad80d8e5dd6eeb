"""Faults and how they are entered into the catalogue (:mod:`tests.maintenance.catalogue`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tests.maintenance.victims import Victims

#: rows: of the index; disk: everything else; index: the file as a whole; journal: the order of trust changes.
Layer = Literal["rows", "disk", "index", "journal"]
Inject = Callable[[Victims], dict[str, int]]


@dataclass(frozen=True)
class Fault:
    """An injector damages a store that operations built and returns the findings it should give."""

    name: str
    layer: Layer
    kinds: frozenset[str]
    inject: Inject


ENTERED: dict[str, Fault] = {}


def fault(layer: Layer, *kinds: str) -> Callable[[Inject], Inject]:
    """Enter an injector, with the kinds of findings it gives."""

    def enter(inject: Inject) -> Inject:
        ENTERED[inject.__name__] = Fault(inject.__name__, layer, frozenset(kinds), inject)
        return inject

    return enter
