"""Search engine for SEARCH, SORT and THREAD of a folder, on threads of its own.

Flags, dates and sizes come from the folder's columns, values of the envelope from the header cache, and everything else
from the text index, or from the texts of messages that it lacks. A search works on the columns as they were when it
began.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from adapter.read_model.fetch.encoded_attributes import AttributeLoader, CachedAttribute
from adapter.read_model.header_cache import FIELDS, HeaderValue, envelope_values
from adapter.search.indexer import TextIndexer
from adapter.search.searchable_text import SearchText, field_of
from adapter.search.text_index import TextIndex
from adapter.search.text_rows import IndexedFolder
from adapter.search.text_source import TextReader
from adapter.transport.transport import Transport
from protocol.imap.search import sort, thread
from protocol.imap.search.sort import SortCriterion, SortKey
from protocol.imap.search.source import Candidates, Scope
from protocol.imap.search.thread import Forest, ThreadMessage

if TYPE_CHECKING:
    from adapter.read_model.cached_folder import CachedFolder

_SORT_COLUMNS = {
    SortKey.CC: HeaderValue.SORT_CC,
    SortKey.FROM: HeaderValue.SORT_FROM,
    SortKey.TO: HeaderValue.SORT_TO,
    SortKey.DISPLAYFROM: HeaderValue.DISPLAY_FROM,
    SortKey.DISPLAYTO: HeaderValue.DISPLAY_TO,
}
# Time slice after which a search yields to others.
_SLICE_SECONDS = 0.05
_NO_UIDS: frozenset[int] = frozenset()


class SearchEngine:
    """The parts that all searches of a process share. Its methods are blocking."""

    def __init__(
        self,
        transport: Transport,
        attributes: AttributeLoader,
        index: TextIndex,
        texts: TextReader,
        indexer: TextIndexer,
    ) -> None:
        self.transport = transport
        self.attributes = attributes
        self.index = index
        self.texts = texts
        self.indexer = indexer

    def advance(self, steps: Generator[int, None, list[int]]) -> list[int] | None:
        """Continue a search for one time slice; return the matching UIDs, or None if it is not finished."""
        ends = time.monotonic() + _SLICE_SECONDS
        try:
            while True:
                next(steps)
                if time.monotonic() >= ends:
                    return None
        except StopIteration as done:
            uids: list[int] = done.value
            return uids

    def sort(self, source: FolderSearchSource, criteria: Sequence[SortCriterion], uids: Sequence[int]) -> list[int]:
        return sort.sort_uids(criteria, uids, source)

    def thread(
        self, source: FolderSearchSource, algorithm: bytes, uids: Sequence[int], numbers: Sequence[int]
    ) -> Forest:
        messages = source.thread_messages(uids, numbers)
        if algorithm == b"REFERENCES":
            return thread.thread_by_references(messages)
        return thread.thread_by_subject(messages)


class FolderSearchSource:
    """A snapshot of a folder: the ``SearchSource`` and ``SortSource`` of :mod:`protocol.imap`."""

    def __init__(self, folder: CachedFolder, engine: SearchEngine) -> None:
        self._folder = folder.id
        self._columns = folder.columns
        self._flags = folder.flags
        self._headers = folder.header_cache
        self._text_rows = folder.text_rows
        self._engine = engine
        self.texts_read = 0  #: so far

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
        return self._column(HeaderValue.SENT_DAY, self.uids)

    def email_ids(self) -> Sequence[str]:
        return self._ids(CachedAttribute.EMAIL_ID)

    def thread_ids(self) -> Sequence[str]:
        return self._ids(CachedAttribute.THREAD_ID)

    def _ids(self, attribute: CachedAttribute) -> list[str]:
        ids = (
            self._engine.attributes.query(self._folder, [attribute], self.uids).get(attribute, {}) if self.uids else {}
        )
        return [ids.get(uid, b"").decode("ascii", "replace") for uid in self.uids]

    def _column(self, value: HeaderValue, uids: Sequence[int]) -> list[Any]:
        loader, folder = self._engine.attributes, self._folder
        return self._headers.get(value, uids, lambda missing: envelope_values(loader, folder, value, missing))

    # --- text ------------------------------------------------------------------------------------------------------

    def headers(self, name: str, rows: Sequence[int]) -> Iterable[str | None]:
        if name in FIELDS:
            uids = self.uids if len(rows) == len(self.uids) else [self.uids[row] for row in rows]
            return self._column(FIELDS[name], uids)
        return (field_of(text.header, name) for text in self._texts(rows))

    def bodies(self, rows: Sequence[int]) -> Iterable[str]:
        return (text.body for text in self._texts(rows))

    def texts(self, rows: Sequence[int]) -> Iterable[str]:
        return (f"{text.header}\n{text.body}" for text in self._texts(rows))

    def _texts(self, rows: Sequence[int]) -> list[SearchText]:
        self.texts_read += len(rows)
        return self._engine.texts.read(self._folder, [self.uids[row] for row in rows])

    def candidates(self, scope: Scope, name: str, needle: str) -> Candidates | None:
        if scope is Scope.HEADER and name in FIELDS:
            return None  # the columns answer it
        indexed = self._indexed()
        searched, certain = needle, True
        if scope is Scope.HEADER:
            # A row with the field's name has the field; one with the needle may have it in another field.
            searched, certain = (needle, False) if needle else (f"\n{name}: ", True)
        elif scope is Scope.TEXT and "\n" in needle:
            return None  # it could span the end of the header
        rows = self._engine.index.find(
            searched, indexed.ranges, header=scope is not Scope.BODY, body=scope is not Scope.HEADER
        )
        if rows is None:
            return None
        matches = {uid for uid, row in indexed.rows.items() if row in rows}
        unindexed = indexed.missing.keys() | indexed.long.keys()
        return Candidates(matches, unindexed) if certain else Candidates(_NO_UIDS, matches | unindexed)

    def _indexed(self) -> IndexedFolder:
        engine = self._engine
        indexed = self._text_rows.read(engine.transport, engine.index, self._folder)
        if indexed.missing:
            engine.indexer.add(indexed.missing.values())
        return indexed

    # --- SORT and THREAD -------------------------------------------------------------------------------------------

    def sort_values(self, key: SortKey, uids: Sequence[int]) -> Sequence[int] | Sequence[str]:
        if key is SortKey.ARRIVAL:
            return self._of(self._columns.internal_dates, uids)
        if key is SortKey.SIZE:
            return self._of(self._columns.sizes, uids)
        if key is SortKey.DATE:
            return self._sent(uids)
        if key is SortKey.SUBJECT:
            return [text for text, _ in self._column(HeaderValue.BASE_SUBJECT, uids)]
        return self._column(_SORT_COLUMNS[key], uids)

    # RFC 5256 2.2
    def _sent(self, uids: Sequence[int]) -> list[int]:
        """Return sent dates, or the internal date of a message without one."""
        arrived = self._of(self._columns.internal_dates, uids)
        sent = self._column(HeaderValue.SENT, uids)
        return [internal if date is None else date for date, internal in zip(sent, arrived, strict=True)]

    def _of(self, column: Sequence[int], uids: Sequence[int]) -> Sequence[int]:
        by_uid = dict(zip(self.uids, column, strict=True))
        return [by_uid.get(uid, 0) for uid in uids]

    def thread_messages(self, uids: Sequence[int], numbers: Sequence[int]) -> list[ThreadMessage]:
        columns = zip(
            numbers,
            self._column(HeaderValue.HEADER_ID, uids),
            self._headers.get(HeaderValue.REFERENCES, uids, self._references),
            self._sent(uids),
            self._column(HeaderValue.BASE_SUBJECT, uids),
            strict=True,
        )
        return [
            ThreadMessage(number, header_id, references, sent, subject, reply)
            for number, header_id, references, sent, (subject, reply) in columns
        ]

    def _references(self, uids: Sequence[int]) -> list[tuple[str, ...]]:
        engine = self._engine
        ids = engine.texts.message_ids(self._folder, uids)
        indexed = engine.index.references(list(ids.values()))
        missing = [uid for uid in uids if ids.get(uid) not in indexed]
        read = dict(zip(missing, engine.texts.read(self._folder, missing), strict=True))
        references = [read[uid].references if uid in read else indexed[ids[uid]] for uid in uids]
        parents = envelope_values(engine.attributes, self._folder, HeaderValue.PARENTS, uids)
        return [tuple(thread.reference_ids(*pair)) for pair in zip(references, parents, strict=True)]
