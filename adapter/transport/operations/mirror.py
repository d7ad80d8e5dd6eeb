"""Mirror another server's mail: each message and the bookmark with its place are one commit.

A bookmark names a message of the other server; its value is a :class:`Place`. A message with a bookmark is not
added again: fetching it twice, after a crash or by two processes, is idempotent. Flags are merged: changes upstream
since the last sync are applied, every other flag stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from adapter.store import effects
from adapter.store.effects import Bookmark, SetFlags
from adapter.store.flags import SETTABLE, join_keywords
from adapter.store.queries import bookmarks as bookmark_queries
from adapter.store.queries import mailboxes
from adapter.transport.operations.base import Operation, Plan
from adapter.transport.operations.delivery import AppendItem, Placed, emit_content, place
from adapter.transport.operations.messages import remove_messages
from adapter.transport.staging import Staged
from protocol.errors import MailError, Reason


class Place(NamedTuple):
    """The folder and UID of a mirrored message, and its upstream flags at the last sync."""

    folder: int
    uid: int
    flags: int = 0
    keywords: str = ""

    def encode(self) -> str:
        return f"{self.folder:x} {self.uid} {self.flags} {self.keywords}"

    @classmethod
    def decode(cls, value: str) -> Place:
        folder, uid, flags, keywords = value.split(" ", 3)
        return cls(int(folder, 16), int(uid), int(flags), keywords)


@dataclass(frozen=True, slots=True)
class MirrorAppend(Operation[Placed | None]):
    """Put a message into a folder and set its bookmark; None if the bookmark is there already."""

    name = "mirror"
    address: str
    folder: int
    item: AppendItem
    owner: str
    bookmark: str

    def addresses(self) -> Iterable[str]:
        return (self.address,)

    def staged_content(self) -> Iterable[Staged]:
        return (self.item.staged,)

    def plan(self, plan: Plan) -> Placed | None:
        if bookmark_queries.value(plan.connection, self.owner, self.bookmark) is not None:
            return None
        folder = plan.folder_by_id(self.address, self.folder)
        item, keywords = self.item, join_keywords(self.item.keywords)
        flags = item.flags & SETTABLE
        emit_content(plan, item.staged, "", ())
        placed = place(plan, self.address, folder, item.staged, flags, keywords, item.internal_date)
        set_bookmarks(plan, self.owner, {self.bookmark: Place(folder.id, placed.uid, flags, keywords).encode()})
        return placed


@dataclass(frozen=True, slots=True)
class MirrorChange:
    """The current upstream flags of a message. ``claims``: its folder and UID here, if it has no bookmark yet;
    ``instead_of`` is then its earlier bookmark."""

    bookmark: str
    flags: int
    keywords: Sequence[str] = ()
    claims: tuple[int, int] | None = None
    instead_of: str = ""


@dataclass(frozen=True, slots=True)
class MirrorUpdated:
    flagged: int  # messages with changed flags
    removed: int


@dataclass(frozen=True, slots=True)
class UpdateMirror(Operation[MirrorUpdated]):
    """Follow what changed there: flags, messages that are gone, and further bookmarks, all in one commit."""

    name = "mirror-update"
    address: str
    owner: str
    changes: Sequence[MirrorChange] = ()
    gone: Sequence[str] = ()  # bookmarks
    bookmarks: Mapping[str, str | None] = field(default_factory=dict)

    def addresses(self) -> Iterable[str]:
        return (self.address,)

    def plan(self, plan: Plan) -> MirrorUpdated:
        notes: dict[str, str | None] = dict(self.bookmarks)
        flagged = self._change(plan, notes)
        removed = self._remove(plan, notes)
        set_bookmarks(plan, self.owner, notes)
        return MirrorUpdated(flagged, removed)

    def _change(self, plan: Plan, notes: dict[str, str | None]) -> int:
        changes_by_folder: dict[int, dict[tuple[int, str], list[int]]] = defaultdict(lambda: defaultdict(list))
        for change in self.changes:
            before = self._before(plan, change)
            if before is None:
                continue
            flags, keywords = change.flags & SETTABLE, join_keywords(change.keywords)
            notes[change.bookmark] = Place(before.folder, before.uid, flags, keywords).encode()
            if change.instead_of:
                notes[change.instead_of] = None
            here = mailboxes.states_of(plan.connection, before.folder, [before.uid])
            if not here:
                continue  # moved or removed here: that stays so
            _, old_flags, old_words, _ = here[0]
            merged = _merge_flags(old_flags, before.flags, flags)
            words = _merge_keywords(old_words, before.keywords, keywords)
            if (merged, words) != (old_flags, old_words):
                changes_by_folder[before.folder][merged, words].append(before.uid)
        for folder_id, groups in changes_by_folder.items():
            for (flags, keywords), uids in groups.items():
                folder = _own_folder(plan, self.address, folder_id)
                if folder is not None:
                    modseq = folder.highestmodseq + 1
                    plan.emit(SetFlags.on(folder, modseq, sorted(uids), "set", flags & SETTABLE, keywords.split()))
        return sum(len(uids) for groups in changes_by_folder.values() for uids in groups.values())

    def _before(self, plan: Plan, change: MirrorChange) -> Place | None:
        """The place of the message, with its upstream flags at the last sync."""
        value = bookmark_queries.value(plan.connection, self.owner, change.bookmark)
        if value is not None:
            return Place.decode(value)
        if change.instead_of:
            value = bookmark_queries.value(plan.connection, self.owner, change.instead_of)
            return Place.decode(value) if value is not None else None
        if change.claims is None:
            return None
        for _, flags, keywords, _ in mailboxes.states_of(plan.connection, change.claims[0], [change.claims[1]]):
            return Place(*change.claims, flags & SETTABLE, keywords)
        return None

    def _remove(self, plan: Plan, notes: dict[str, str | None]) -> int:
        leaving: dict[int, set[int]] = defaultdict(set)
        for bookmark in self.gone:
            value = bookmark_queries.value(plan.connection, self.owner, bookmark)
            notes[bookmark] = None
            if value is not None:
                place = Place.decode(value)
                leaving[place.folder].add(place.uid)
        removed = 0
        for folder_id, uids in leaving.items():
            folder = _own_folder(plan, self.address, folder_id)
            if folder is not None:
                removed += len(remove_messages(plan, folder, sorted(uids)).uids)
        return removed


def _own_folder(plan: Plan, address: str, folder_id: int) -> mailboxes.Folder | None:
    try:
        return plan.folder_by_id(address, folder_id)
    except MailError as error:
        if error.reason is Reason.NO_SUCH_FOLDER:
            return None
        raise


def _merge_flags(here: int, before: int, now: int) -> int:
    return here & ~(before & ~now) | (now & ~before)


def _merge_keywords(here: str, before: str, now: str) -> str:
    old, new = ({word.casefold(): word for word in text.split()} for text in (before, now))
    kept = [word for word in here.split() if word.casefold() in new or word.casefold() not in old]
    return join_keywords([*kept, *(word for key, word in new.items() if key not in old)])


# --- bookmarks by themselves -----------------------------------------------------------------------------------------


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
            existing = bookmark_queries.of_owner(plan.connection, self.owner)
            items = {item: value for item, value in items.items() if item not in existing}
        set_bookmarks(plan, self.owner, items)


def set_bookmarks(plan: Plan, owner: str, items: Mapping[str, str | None]) -> None:
    changed = {
        item: value for item, value in items.items() if bookmark_queries.value(plan.connection, owner, item) != value
    }
    if changed:
        plan.emit(effects.SetBookmarks(owner, tuple(Bookmark(item, value) for item, value in changed.items())))
