"""SEARCH, SORT and THREAD of a folder: the columns they look at, on a thread of their own.

Flags, dates and sizes are the folder's columns; what the envelope tells comes from ``header_values``; the rest is
answered by the text index, and of messages it does not know yet by their texts. Everything works on the columns as
they were when the search began.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from adapter.read_model.encoded_attributes import Kind, PieceReader
from adapter.read_model.header_cache import FIELDS, Value, envelope_values
from adapter.search.indexer import TextFiller
from adapter.search.searchable_text import SearchText, field_of
from adapter.search.text_index import TextIndex
from adapter.search.text_rows import Known
from adapter.search.text_source import TextReader
from adapter.transport.transport import Transport
from protocol.imap.search import sort, thread
from protocol.imap.search.sort import SortCriterion, SortKey
from protocol.imap.search.source import Candidates, Scope
from protocol.imap.search.thread import Forest, ThreadMessage

if TYPE_CHECKING:
    from adapter.read_model.folder_cache import FolderState

_SORT_COLUMNS = {
    SortKey.CC: Value.SORT_CC,
    SortKey.FROM: Value.SORT_FROM,
    SortKey.TO: Value.SORT_TO,
    SortKey.DISPLAYFROM: Value.DISPLAY_FROM,
    SortKey.DISPLAYTO: Value.DISPLAY_TO,
}
# Seconds after which other searches have their turn.
_TURN = 0.05
_NOBODY: frozenset[int] = frozenset()


class Searcher:
    """What all searches of a process share. Its methods block."""

    def __init__(
        self, transport: Transport, pieces: PieceReader, index: TextIndex, texts: TextReader, filler: TextFiller
    ) -> None:
        self.transport = transport
        self.pieces = pieces
        self.index = index
        self.texts = texts
        self.filler = filler

    def advance(self, steps: Generator[int, None, list[int]]) -> list[int] | None:
        """Go on with a search for a while: what it found, or None if it has not come to its end."""
        ends = time.monotonic() + _TURN
        try:
            while True:
                next(steps)
                if time.monotonic() >= ends:
                    return None
        except StopIteration as done:
            found: list[int] = done.value
            return found

    def sort(self, source: FolderSource, criteria: Sequence[SortCriterion], uids: Sequence[int]) -> list[int]:
        return sort.sort_uids(criteria, uids, source)

    def thread(self, source: FolderSource, algorithm: bytes, uids: Sequence[int], numbers: Sequence[int]) -> Forest:
        messages = source.thread_messages(uids, numbers)
        if algorithm == b"REFERENCES":
            return thread.thread_by_references(messages)
        return thread.thread_by_subject(messages)


class FolderSource:
    """A folder as it was: the ``SearchSource`` and ``SortSource`` of :mod:`protocol.imap`."""

    def __init__(self, state: FolderState, searcher: Searcher) -> None:
        self._folder = state.id
        self._columns = state.columns
        self._flags = state.flags
        self._values = state.header_values
        self._text_rows = state.text_rows
        self._searcher = searcher
        self.read = 0  #: texts read so far

    # --- columns ---------------------------------------------------------------------------------------------------

    @property
    def uids(self) -> Sequence[int]:
        return self._columns.uids

    def flags(self) -> Sequence[int]:
        return self._columns.masks

    def flag_bit(self, name: str) -> int:
        return self._flags.bit(name)

    def internal_dates(self) -> Sequence[int]:
        return self._columns.internal_dates

    def save_dates(self) -> Sequence[int] | None:
        return self._columns.save_dates

    def sizes(self) -> Sequence[int]:
        return self._columns.sizes

    def modseqs(self) -> Sequence[int]:
        return self._columns.modseqs

    def sent_days(self) -> Sequence[int]:
        return self._value(Value.SENT_DAY, self.uids)

    def email_ids(self) -> Sequence[str]:
        return self._ids(Kind.EMAIL_ID)

    def thread_ids(self) -> Sequence[str]:
        return self._ids(Kind.THREAD_ID)

    def _ids(self, kind: Kind) -> list[str]:
        found = self._searcher.pieces.query(self._folder, [kind], self.uids).get(kind, {}) if self.uids else {}
        return [found.get(uid, b"").decode("ascii", "replace") for uid in self.uids]

    def _value(self, value: Value, uids: Sequence[int]) -> list[Any]:
        pieces, folder = self._searcher.pieces, self._folder
        return self._values.read(value, uids, lambda some: envelope_values(pieces, folder, value, some))

    # --- text ------------------------------------------------------------------------------------------------------

    def headers(self, name: str, rows: Sequence[int]) -> Iterable[str | None]:
        if name in FIELDS:
            uids = self.uids if len(rows) == len(self.uids) else [self.uids[row] for row in rows]
            return self._value(FIELDS[name], uids)
        return (field_of(text.header, name) for text in self._texts(rows))

    def bodies(self, rows: Sequence[int]) -> Iterable[str]:
        return (text.body for text in self._texts(rows))

    def texts(self, rows: Sequence[int]) -> Iterable[str]:
        return (f"{text.header}\n{text.body}" for text in self._texts(rows))

    def _texts(self, rows: Sequence[int]) -> list[SearchText]:
        self.read += len(rows)
        return self._searcher.texts.read(self._folder, [self.uids[row] for row in rows])

    def candidates(self, scope: Scope, name: str, needle: str) -> Candidates | None:
        if scope is Scope.HEADER and name in FIELDS:
            return None  # at hand anyway
        known = self._known()
        sought, certain = needle, True
        if scope is Scope.HEADER:
            # The field is there if its line is; what it says may be said by another one as well.
            sought, certain = (needle, False) if needle else (f"\n{name}: ", True)
        elif scope is Scope.TEXT and "\n" in needle:
            return None  # it could lie across the end of the header
        rows = self._searcher.index.find(
            sought, known.ranges, header=scope is not Scope.BODY, body=scope is not Scope.HEADER
        )
        if rows is None:
            return None
        found = {uid for uid, row in known.rows.items() if row in rows}
        unread = known.waiting.keys() | known.long.keys()
        return Candidates(found, unread) if certain else Candidates(_NOBODY, found | unread)

    def _known(self) -> Known:
        searcher = self._searcher
        known = self._text_rows.read(searcher.transport, searcher.index, self._folder)
        if known.waiting:
            searcher.filler.add(known.waiting.values())
        return known

    # --- SORT and THREAD -------------------------------------------------------------------------------------------

    def sort_values(self, key: SortKey, uids: Sequence[int]) -> Sequence[int] | Sequence[str]:
        if key is SortKey.ARRIVAL:
            return self._of(self._columns.internal_dates, uids)
        if key is SortKey.SIZE:
            return self._of(self._columns.sizes, uids)
        if key is SortKey.DATE:
            return self._sent(uids)
        if key is SortKey.SUBJECT:
            return [text for text, _ in self._value(Value.BASE_SUBJECT, uids)]
        return self._value(_SORT_COLUMNS[key], uids)

    # RFC 5256 2.2
    def _sent(self, uids: Sequence[int]) -> list[int]:
        """The sent date, or the internal date of a message without one."""
        arrived = self._of(self._columns.internal_dates, uids)
        sent = self._value(Value.SENT, uids)
        return [came if date is None else date for date, came in zip(sent, arrived, strict=True)]

    def _of(self, column: Sequence[int], uids: Sequence[int]) -> Sequence[int]:
        by_uid = dict(zip(self.uids, column, strict=True))
        return [by_uid.get(uid, 0) for uid in uids]

    def thread_messages(self, uids: Sequence[int], numbers: Sequence[int]) -> list[ThreadMessage]:
        columns = zip(
            numbers,
            self._value(Value.HEADER_ID, uids),
            self._values.read(Value.REFERENCES, uids, self._references),
            self._sent(uids),
            self._value(Value.BASE_SUBJECT, uids),
            strict=True,
        )
        return [
            ThreadMessage(number, header_id, references, sent, subject, reply)
            for number, header_id, references, sent, (subject, reply) in columns
        ]

    def _references(self, uids: Sequence[int]) -> list[tuple[str, ...]]:
        searcher = self._searcher
        ids = searcher.texts.message_ids(self._folder, uids)
        known = searcher.index.references(list(ids.values()))
        lacking = [uid for uid in uids if ids.get(uid) not in known]
        read = dict(zip(lacking, searcher.texts.read(self._folder, lacking), strict=True))
        named = [read[uid].references if uid in read else known[ids[uid]] for uid in uids]
        parents = envelope_values(searcher.pieces, self._folder, Value.PARENTS, uids)
        return [tuple(thread.reference_ids(*pair)) for pair in zip(named, parents, strict=True)]
