"""Setting bookmarks by themselves: the cursor of a hook, the state of a folder that was looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from adapter.store import effects
from adapter.store.effects import Bookmark
from adapter.store.queries import bookmarks as bookmark_queries
from adapter.transport.operations.base import Operation, Plan


@dataclass(frozen=True, slots=True)
class SetBookmarks(Operation[None]):
    """Set bookmarks of one owner, None removes one; what is so already is not written again.

    ``missing_only``: a bookmark that is there stays as it is.
    """

    name = "bookmark"
    owner: str
    items: Mapping[str, str | None]
    missing_only: bool = False

    def addresses(self) -> Iterable[str]:
        return ()

    def plan(self, plan: Plan) -> None:
        items = self.items
        if self.missing_only:
            known = bookmark_queries.of_owner(plan.connection, self.owner)
            items = {item: value for item, value in items.items() if item not in known}
        set_bookmarks(plan, self.owner, items)


def set_bookmarks(plan: Plan, owner: str, items: Mapping[str, str | None]) -> None:
    changed = {
        item: value for item, value in items.items() if bookmark_queries.value(plan.connection, owner, item) != value
    }
    if changed:
        plan.emit(effects.SetBookmarks(owner, tuple(Bookmark(item, value) for item, value in changed.items())))
