"""Setting bookmarks by themselves: the cursor of a hook, the state of a folder that was looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from adapter.store import bookmark_queries
from adapter.transport.effects import bookmarks
from adapter.transport.operations.base import Operation, Plan


@dataclass(frozen=True, slots=True)
class SetBookmarks(Operation[None]):
    """Set bookmarks of one owner, None removes one; what is so already is not written again."""

    name = "bookmark"
    owner: str
    items: Mapping[str, str | None]

    def addresses(self) -> Iterable[str]:
        return ()

    def plan(self, plan: Plan) -> None:
        set_bookmarks(plan, self.owner, self.items)


def set_bookmarks(plan: Plan, owner: str, items: Mapping[str, str | None]) -> None:
    changed = {
        item: value for item, value in items.items() if bookmark_queries.value(plan.connection, owner, item) != value
    }
    if changed:
        plan.emit(bookmarks.effect(owner, changed))
