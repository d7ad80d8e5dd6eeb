"""Predicates: single search keys, resolved and ready to run on the rows of a folder (RFC 3501 6.4.4 and extensions).

Every leaf of a program is an immutable value that selects a subset of given rows; rows are ascending positions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import date
from enum import Enum
from itertools import chain
from typing import TypeAlias

from protocol.imap.search import keys
from protocol.imap.search.collation import fold
from protocol.imap.search.source import Scope, SearchSource
from protocol.imap.sequence_set import SequenceSet, span_positions, spans_of
from protocol.imap.session_view import View

Rows: TypeAlias = Sequence[int]

_EPOCH = date(1970, 1, 1).toordinal()
_DAY_SECONDS = 86400

# The cost of a leaf per row; only the order matters.
FREE, COLUMN, STRING, ENVELOPE, HEADER, BODY, TEXT = range(7)

# Header fields that are part of the envelope; others may have to be read from the message.
_ENVELOPE_FIELDS = frozenset(
    ("bcc", "cc", "date", "from", "in-reply-to", "message-id", "reply-to", "sender", "subject", "to")
)

# Texts read between two yields: smaller batches are fairer to other sessions.
_BATCH_ROWS = {Scope.HEADER: 2000, Scope.BODY: 256, Scope.TEXT: 256}


@dataclass(frozen=True, slots=True)
class All:
    """ALL, and text keys with an empty text."""

    cost = FREE

    def match(self, source: SearchSource, rows: Rows) -> Rows:
        return rows


@dataclass(frozen=True, slots=True)
class SaveDateSupported:
    """SAVEDATESUPPORTED (RFC 8514 4.3)."""

    cost = FREE

    def match(self, source: SearchSource, rows: Rows) -> Rows:
        return rows if source.save_dates() is not None else []


@dataclass(frozen=True, slots=True)
class HasFlag:
    name: str

    cost = COLUMN

    def match(self, source: SearchSource, rows: Rows) -> Rows:
        bit = source.flag_bit(self.name)
        flags = source.flags()
        return [row for row in rows if flags[row] & bit] if bit else []


class Column(Enum):
    INTERNAL_DATE = 1
    SAVE_DATE = 2
    SENT_DAY = 3
    SIZE = 4
    MODSEQ = 5


def _column(source: SearchSource, column: Column) -> Sequence[int]:
    if column is Column.SIZE:
        return source.sizes()
    if column is Column.MODSEQ:
        return source.modseqs()
    if column is Column.SENT_DAY:
        return source.sent_days()
    # RFC 8514 4.3: without save dates the internal date is used.
    saved = source.save_dates() if column is Column.SAVE_DATE else None
    return source.internal_dates() if saved is None else saved


@dataclass(frozen=True, slots=True)
class Between:
    """``low <= value < high`` in a column; None: no bound."""

    column: Column
    low: int | None
    high: int | None

    cost = COLUMN

    def match(self, source: SearchSource, rows: Rows) -> Rows:
        values, low, high = _column(source, self.column), self.low, self.high
        if high is None:
            return [row for row in rows if values[row] >= low] if low is not None else rows
        if low is None:
            return [row for row in rows if values[row] < high]
        return [row for row in rows if low <= values[row] < high]


@dataclass(frozen=True, slots=True)
class UidIn:
    """UID, and resolved message numbers or ``$``."""

    spans: tuple[tuple[int, int], ...]

    cost = FREE

    def match(self, source: SearchSource, rows: Rows) -> Rows:
        positions = span_positions(list(self.spans), source.uids)
        if isinstance(rows, range) and len(rows) == len(source.uids):
            return positions[0] if len(positions) == 1 else list(chain.from_iterable(positions))
        parts = [rows[bisect_left(rows, part.start) : bisect_left(rows, part.stop)] for part in positions]
        return list(chain.from_iterable(parts))


@dataclass(frozen=True, slots=True)
class HasId:
    """EMAILID and THREADID (RFC 8474 6): exact comparison."""

    thread: bool
    value: str

    cost = STRING

    def match(self, source: SearchSource, rows: Rows) -> Rows:
        ids, value = source.thread_ids() if self.thread else source.email_ids(), self.value
        return [row for row in rows if ids[row] == value]


@dataclass(frozen=True, slots=True)
class HasText:
    """A folded needle in a header field, the body, or both."""

    scope: Scope
    name: str
    needle: str

    @property
    def cost(self) -> int:
        if self.scope is Scope.HEADER:
            return ENVELOPE if self.name in _ENVELOPE_FIELDS else HEADER
        return BODY if self.scope is Scope.BODY else TEXT

    def scan(self, source: SearchSource, rows: Rows) -> Generator[int, None, Rows]:
        """Return the rows that match; yields the number of texts read after each batch."""
        matched: list[int] = []
        candidates = source.candidates(self.scope, self.name, self.needle)
        if candidates is not None:
            uids = source.uids
            matched = [row for row in rows if uids[row] in candidates.certain]
            rows = [row for row in rows if uids[row] in candidates.possible]
        needle, size = self.needle, _BATCH_ROWS[self.scope]
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            if self.scope is Scope.HEADER:
                headers = zip(batch, source.headers(self.name, batch), strict=True)
                matched += [row for row, value in headers if value is not None and needle in value]
            else:
                texts = source.bodies(batch) if self.scope is Scope.BODY else source.texts(batch)
                matched += [row for row, text in zip(batch, texts, strict=True) if needle in text]
            yield len(batch)
        if candidates is not None:
            matched.sort()
        return matched


Leaf: TypeAlias = All | SaveDateSupported | HasFlag | Between | UidIn | HasId | HasText


def leaf_of(key: keys.SearchKey, view: View, now: int) -> Leaf:
    """Resolve a key other than AND, OR and NOT. ``now``: seconds since 1970, for OLDER and YOUNGER."""
    match key:
        case keys.FlagKey("\\Recent"):
            return UidIn(tuple(view.recent))
        case keys.FlagKey(name) | keys.KeywordKey(name):
            return HasFlag(name.lower())
        case keys.HeaderKey(name, text):
            # RFC 3501 6.4.4: with an empty string every message that has the field matches.
            return HasText(Scope.HEADER, name.lower(), fold(text))
        case keys.BodyKey(text):
            return HasText(Scope.BODY, "", fold(text)) if text else All()
        case keys.TextKey(text):
            return HasText(Scope.TEXT, "", fold(text)) if text else All()
        case keys.UidKey(ranges):
            return UidIn(tuple(SequenceSet(ranges).resolve(view.uids[-1] if len(view) else 0)))
        case keys.SeqKey(ranges):
            # A number that no message has matches nothing, as in other servers; clients rely on it.
            return UidIn(tuple(spans_of(view.by_number(SequenceSet(ranges), beyond=True).uids)))
        case keys.ResultKey():
            return UidIn(tuple(spans_of(view.saved_result().uids)))
        case keys.EmailId(value):
            return HasId(False, value)
        case keys.ThreadId(value):
            return HasId(True, value)
        case keys.SaveDateSupported():
            return SaveDateSupported()
        case keys.All():
            return All()
    return _between(key, now)


def _between(key: keys.SearchKey, now: int) -> Between:
    match key:
        case keys.DateKey(keys.DateField.INTERNAL, when, day):
            return _on(Column.INTERNAL_DATE, when, (day.toordinal() - _EPOCH) * _DAY_SECONDS, _DAY_SECONDS)
        case keys.SavedKey(when, day):
            return _on(Column.SAVE_DATE, when, (day.toordinal() - _EPOCH) * _DAY_SECONDS, _DAY_SECONDS)
        case keys.DateKey(_, when, day):
            # A message without a date (day 0) matches neither SENTBEFORE nor SENTSINCE.
            days = _on(Column.SENT_DAY, when, day.toordinal(), 1)
            return days if days.low is not None else Between(Column.SENT_DAY, 1, days.high)
        case keys.SizeKey(keys.SizeIs.LARGER, octets):
            return Between(Column.SIZE, octets + 1, None)
        case keys.SizeKey(_, octets):
            return Between(Column.SIZE, None, octets)
        case keys.ModSeqKey(modseq):
            return Between(Column.MODSEQ, modseq, None)
        # RFC 5032 2: YOUNGER is at most so many seconds ago, OLDER is longer ago
        case keys.Within(keys.Age.YOUNGER, seconds):
            return Between(Column.INTERNAL_DATE, now - seconds, None)
        case keys.Within(_, seconds):
            return Between(Column.INTERNAL_DATE, None, now - seconds)
    raise TypeError(key)


def _on(column: Column, when: keys.When, start: int, length: int) -> Between:
    """RFC 3501 6.4.4: BEFORE is earlier than the day, SINCE on it or later."""
    if when is keys.When.BEFORE:
        return Between(column, None, start)
    return Between(column, start, start + length if when is keys.When.ON else None)
