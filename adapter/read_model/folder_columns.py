"""The columns of a folder, and how committed effects change them.

Columns are immutable. A :class:`Draft` takes a batch of effects and gives the columns after them: what no effect
touches is shared with the columns before, what is touched is copied.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, assert_never

from adapter.store.effects import Project, RemoveFolder, SetFlags, Unproject
from adapter.store.flags import parse_uids
from adapter.transport.apply.state import masks as state_masks
from protocol.errors import MailError
from protocol.imap.flags import DRAFT, FlagTable
from protocol.imap.sequence_set import span_positions
from protocol.imap.session_view import FolderChange, Uids

Numbers: TypeAlias = "array[int]"
#: Effects on the messages of one folder; each has a mod-sequence.
MessageEffect: TypeAlias = Project | Unproject | SetFlags
#: Effects that a folder in memory follows.
FolderEffect: TypeAlias = MessageEffect | RemoveFolder

#: Octets per message, for the memory budget: a UID and five values of 64 bits.
ROW_COST = 44

# The store's bits of the system flags are those of the table; what lies above (archived) is not shown.
_SYSTEM_BITS = 2 * DRAFT - 1


class Columns(NamedTuple):
    """One value per message, by ascending UID. Nothing of it is ever modified."""

    uids: Uids
    masks: list[int]  # of the folder's FlagTable; equal ones are one object
    modseqs: Numbers
    internal_dates: Numbers  # seconds since 1970
    save_dates: Numbers
    sizes: Numbers  # octets


class Keywords:
    """The flag table of a folder, and the masks of the store's keyword strings in it."""

    __slots__ = ("_known", "table")

    def __init__(self) -> None:
        self.table = FlagTable()
        self._known: dict[tuple[int, str], int] = {}

    def mask(self, flags: int, keywords: str) -> int:
        found = self._known.get((flags, keywords))
        if found is None:
            found = self._known[flags, keywords] = flags & _SYSTEM_BITS | self.bits(keywords.split())
        return found

    def bits(self, keywords: Iterable[str]) -> int:
        found = 0
        for keyword in keywords:
            try:
                found |= self.table.mask((keyword,))
            except MailError:  # beyond the limit of the table: kept in the store, but not shown
                continue
        return found


#: uid, flags, keywords, modseq, internal date, saved at, size
Row: TypeAlias = tuple[int, int, str, int, int, int, int]


def columns_of(rows: Sequence[Row], keywords: Keywords) -> Columns:
    """Columns of rows by ascending UID."""
    if not rows:
        return Columns(array("I"), [], array("Q"), array("q"), array("q"), array("Q"))
    uids, flags, words, modseqs, internal, saved, sizes = zip(*rows)
    return Columns(
        array("I", uids),
        list(map(keywords.mask, flags, words)),
        array("Q", modseqs),
        array("q", internal),
        array("q", saved),
        array("Q", sizes),
    )


class Draft:
    """Columns under change, and the changes to tell."""

    def __init__(self, columns: Columns, keywords: Keywords, modseq: int, uidnext: int) -> None:
        self._columns = columns
        self._keywords = keywords
        self.modseq = modseq
        self.uidnext = uidnext
        self._new: list[tuple[int, int, int, int, int, int]] = []  # rows not yet appended
        self._told: list[tuple[int, Sequence[int], Sequence[int]]] = []  # modseq, expunged, flagged

    def apply(self, effect: MessageEffect, sizes: Mapping[str, int]) -> None:
        """Apply the next effect; ``sizes`` knows the messages that are projected."""
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

    def finish(self) -> tuple[Columns, list[FolderChange]]:
        self._append()
        return self._columns, [FolderChange(self._columns.uids, *told) for told in self._told]

    def _project(self, effect: Project, sizes: Mapping[str, int]) -> None:
        modseq, mask = effect.modseq, self._keywords.mask
        self._new += [
            (row.uid, mask(row.flags, row.keywords), modseq, row.internal_date, row.saved_at, sizes[row.message_id])
            for row in effect.rows
        ]
        self.uidnext = max(self.uidnext, self._new[-1][0] + 1)
        if self._told and self._told[-1][1:] == ((), ()):
            self._told.pop()  # messages that came one after another are one change
        self._told.append((modseq, (), ()))

    def _append(self) -> None:
        if self._new:
            old = self._columns
            uids, masks, modseqs, internal, saved, sizes = zip(*self._new)
            self._new = []
            self._columns = Columns(
                old.uids + array("I", uids),
                [*old.masks, *masks],
                old.modseqs + array("Q", modseqs),
                old.internal_dates + array("q", internal),
                old.save_dates + array("q", saved),
                old.sizes + array("Q", sizes),
            )

    def _unproject(self, gone: list[int]) -> None:
        kept = _kept(self._columns.uids, gone)
        masks: list[int] = []
        for part in kept:
            masks += self._columns.masks[part]
        old = self._columns
        self._columns = Columns(
            _join(old.uids, kept),
            masks,
            _join(old.modseqs, kept),
            _join(old.internal_dates, kept),
            _join(old.save_dates, kept),
            _join(old.sizes, kept),
        )
        self._told.append((self.modseq, gone, ()))

    def _flag(self, effect: SetFlags) -> None:
        how = effect.how
        keep, give = state_masks(how, effect.flags)
        keywords = self._keywords.bits(effect.keywords)
        # Of keywords "add" keeps all, "remove" all others, "set" none.
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
        self._told.append((self.modseq, (), flagged))


def is_complete(effect: MessageEffect, sizes: Mapping[str, int]) -> bool:
    """Whether the sizes of all messages that the effect shows are known."""
    return not isinstance(effect, Project) or all(row.message_id in sizes for row in effect.rows)


def _kept(uids: Uids, gone: Sequence[int]) -> list[slice]:
    """The stretches of ``uids`` without those that are gone (ascending)."""
    kept = []
    start = 0
    for uid in gone:
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


def differences(before: Columns, after: Columns, since: int, modseq: int) -> list[FolderChange]:
    """What changed between two states of a folder, from one mod-sequence to another, when it is not known how."""
    uids = after.uids
    gone = sorted(set(before.uids).difference(uids))
    known = bisect_right(uids, before.uids[-1]) if before.uids else 0
    flagged = [uid for uid, changed in zip(uids[:known], after.modseqs[:known]) if changed > since]
    expunges = [FolderChange(uids, since + 1, gone)] if gone else []
    return [*expunges, FolderChange(uids, modseq, (), flagged)]


def places_among(known: Uids, uids: Sequence[int]) -> list[int]:
    """Where these UIDs (ascending, as ``known``) are; -1 for one that is not there."""
    if len(uids) * 16 > len(known):
        return list(map({uid: place for place, uid in enumerate(known)}.get, uids, [-1] * len(uids)))
    found = [bisect_left(known, uid) for uid in uids]
    return [place if place < len(known) and known[place] == uid else -1 for uid, place in zip(uids, found, strict=True)]
