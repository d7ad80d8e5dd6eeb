"""Records of losses, as repair writes them, without a repair."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from adapter.store.effects import Effect
from adapter.transport.operations.base import Operation, Plan


@dataclass(frozen=True, slots=True)
class Emit(Operation[None]):
    """Journal these effects and apply them."""

    name = "repair"
    effects: tuple[Effect, ...]

    def addresses(self) -> Iterable[str]:
        return ()

    def plan(self, plan: Plan) -> None:
        for effect in self.effects:
            plan.emit(effect)
