"""Columns of a folder in memory, and the effects that change them.

Columns are immutable. A :class:`ColumnsBuilder` takes a batch of effects and returns the columns after them: those that
no effect changes are shared with the columns before, the others are copied.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, assert_never

from adapter.store.effects import Project, RemoveFolder, SetFlags, Unproject
from adapter.store.flags import flag_masks, parse_uids
from adapter.store.queries.messages import FolderRow
from protocol.errors import MailError
from protocol.imap.flags import DRAFT, FlagTable
from protocol.imap.sequence_set import span_positions
from protocol.imap.session_view import FolderChange, Uids

Numbers: TypeAlias = "array[int]"
#: Effects on the messages of one folder; each has a mod-sequence.
MessageEffect: TypeAlias = Project | Unproject | SetFlags
#: Effects that change a cached folder.
FolderEffect: TypeAlias = MessageEffect | RemoveFolder

#: Octets per message, for the memory budget: a UID and five values of 64 bits.
ROW_COST_BYTES = 44

# The store's bits of the system flags are those of the table; higher ones (archived) are not shown.
_SYSTEM_BITS = 2 * DRAFT - 1


class FolderColumns(NamedTuple):
    """One value per message, by ascending UID. Never modified."""

    uids: Uids
    masks: list[int]  # of the folder's FlagTable; equal ones are one object
    modseqs: Numbers
    internal_dates: Numbers  # seconds since 1970
    save_dates: Numbers
    sizes: Numbers  # octets


class Keywords:
    """The flag table of a folder, and the masks of the store's keyword strings in it."""

    __slots__ = ("_masks", "table")

    def __init__(self) -> None:
        self.table = FlagTable()
        self._masks: dict[tuple[int, str], int] = {}

    def mask(self, flags: int, keywords: str) -> int:
        mask = self._masks.get((flags, keywords))
        if mask is None:
            mask = self._masks[flags, keywords] = flags & _SYSTEM_BITS | self.bits(keywords.split())
        return mask

    def bits(self, keywords: Iterable[str]) -> int:
        mask = 0
        for keyword in keywords:
            try:
                mask |= self.table.mask((keyword,))
            except MailError:  # beyond the limit of the table: kept in the store, but not shown
                continue
        return mask


def columns_of(rows: Sequence[FolderRow], keywords: Keywords) -> FolderColumns:
    """Return the columns of rows by ascending UID."""
    if not rows:
        return FolderColumns(array("I"), [], array("Q"), array("q"), array("q"), array("Q"))
    uids, flags, words, modseqs, internal, saved, sizes = zip(*rows)
    return FolderColumns(
        array("I", uids),
        list(map(keywords.mask, flags, words)),
        array("Q", modseqs),
        array("q", internal),
        array("q", saved),
        array("Q", sizes),
    )


class ColumnsBuilder:
    """Applies effects to columns, and collects the changes for the listeners."""

    def __init__(self, columns: FolderColumns, keywords: Keywords, modseq: int, uidnext: int) -> None:
        self._columns = columns
        self._keywords = keywords
        self.modseq = modseq
        self.uidnext = uidnext
        self._new: list[tuple[int, int, int, int, int, int]] = []  # rows not yet appended
        self._changes: list[tuple[int, Sequence[int], Sequence[int]]] = []  # modseq, expunged, flagged

    def apply(self, effect: MessageEffect, sizes: Mapping[str, int]) -> None:
        """Apply the next effect; ``sizes``: of the messages that are projected."""
        self.modseq = effect.modseq
        match effect:
            case Project():
                self._project(effect, sizes)
            case Unproject():
                self._append()
                self._unproject([row.uid for row in effect.rows])
            case SetFlags():
                self._append()
                self._flag(effect)
            case _:
                assert_never(effect)

    def finish(self) -> tuple[FolderColumns, list[FolderChange]]:
        self._append()
        return self._columns, [FolderChange(self._columns.uids, *change) for change in self._changes]

    def _project(self, effect: Project, sizes: Mapping[str, int]) -> None:
        modseq, mask = effect.modseq, self._keywords.mask
        self._new += [
            (row.uid, mask(row.flags, row.keywords), modseq, row.internal_date, row.saved_at, sizes[row.message_id])
            for row in effect.rows
        ]
        self.uidnext = max(self.uidnext, self._new[-1][0] + 1)
        if self._changes and self._changes[-1][1:] == ((), ()):
            self._changes.pop()  # consecutive arrivals are one change
        self._changes.append((modseq, (), ()))

    def _append(self) -> None:
        if self._new:
            old = self._columns
            uids, masks, modseqs, internal, saved, sizes = zip(*self._new)
            self._new = []
            self._columns = FolderColumns(
                old.uids + array("I", uids),
                [*old.masks, *masks],
                old.modseqs + array("Q", modseqs),
                old.internal_dates + array("q", internal),
                old.save_dates + array("q", saved),
                old.sizes + array("Q", sizes),
            )

    def _unproject(self, expunged: list[int]) -> None:
        kept = _slices_without(self._columns.uids, expunged)
        masks: list[int] = []
        for part in kept:
            masks += self._columns.masks[part]
        old = self._columns
        self._columns = FolderColumns(
            _join(old.uids, kept),
            masks,
            _join(old.modseqs, kept),
            _join(old.internal_dates, kept),
            _join(old.save_dates, kept),
            _join(old.sizes, kept),
        )
        self._changes.append((self.modseq, expunged, ()))

    def _flag(self, effect: SetFlags) -> None:
        how = effect.how
        keep, give = flag_masks(how, effect.flags)
        keywords = self._keywords.bits(effect.keywords)
        # "add" keeps all keywords, "remove" all others, "set" none.
        keep &= _SYSTEM_BITS
        if how != "set":
            keep |= ~_SYSTEM_BITS & ~(keywords if how == "remove" else 0)
        if how != "remove":
            give |= keywords
        old = self._columns
        masks, modseqs = old.masks[:], old.modseqs[:]
        after: dict[int, int] = {}
        flagged: list[int] = []
        for part in span_positions(parse_uids(effect.uids), old.uids):
            where = slice(part.start, part.stop)
            before = masks[where]
            for mask in set(before) - after.keys():
                after[mask] = mask & keep | give
            masks[where] = map(after.__getitem__, before)
            modseqs[where] = array("Q", (self.modseq,)) * len(part)
            flagged += old.uids[where]
        self._columns = old._replace(masks=masks, modseqs=modseqs)
        self._changes.append((self.modseq, (), flagged))


def is_complete(effect: MessageEffect, sizes: Mapping[str, int]) -> bool:
    """Return True if ``sizes`` has every message that the effect projects."""
    return not isinstance(effect, Project) or all(row.message_id in sizes for row in effect.rows)


def _slices_without(uids: Uids, expunged: Sequence[int]) -> list[slice]:
    """Return slices that cover ``uids`` without the expunged ones (ascending)."""
    kept = []
    start = 0
    for uid in expunged:
        place = bisect_left(uids, uid, start)
        if place < len(uids) and uids[place] == uid:
            if place > start:
                kept.append(slice(start, place))
            start = place + 1
    kept.append(slice(start, len(uids)))
    return kept


def _join(column: Numbers, kept: Sequence[slice]) -> Numbers:
    out = column[:0]
    for part in kept:
        out += column[part]
    return out


def differences(before: FolderColumns, after: FolderColumns, since: int, modseq: int) -> list[FolderChange]:
    """Compute the changes from one mod-sequence to another, of which the effects were missed."""
    uids = after.uids
    expunged = sorted(set(before.uids).difference(uids))
    old_count = bisect_right(uids, before.uids[-1]) if before.uids else 0
    flagged = [uid for uid, changed in zip(uids[:old_count], after.modseqs[:old_count]) if changed > since]
    expunges = [FolderChange(uids, since + 1, expunged)] if expunged else []
    return [*expunges, FolderChange(uids, modseq, (), flagged)]


def places_among(column: Uids, uids: Sequence[int]) -> list[int]:
    """Return the places of these UIDs in a column of UIDs, both ascending; -1 for one that is missing."""
    if len(uids) * 16 > len(column):
        return list(map({uid: place for place, uid in enumerate(column)}.get, uids, [-1] * len(uids)))
    places = [bisect_left(column, uid) for uid in uids]
    return [
        place if place < len(column) and column[place] == uid else -1 for uid, place in zip(uids, places, strict=True)
    ]
