r"""FETCH responses as chunks of octets, ready to be written.

    fetch = mailboxes.fetch(state, view.by_uid(uids), items, dialect)
    async for chunk in fetch.chunks():      # of at most some 256 KiB
        await connection.write(chunk)
    if fetch.failed: …

Items come in the order asked for; MODSEQ and UID are the caller's to add to the items where the dialect wants them.
Setting ``\Seen`` is the caller's too: commit first, then fetch (with FLAGS among the items).

A FETCH is a table: one format for a row, a column for each item, and one formatting operation for many rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from adapter.servers.imap.bodies import (
    CHUNK,
    SMALL,
    Bodies,
    Message,
    Span,
    UnknownEncodingError,
    binary_of,
    section_of,
)
from adapter.servers.imap.columns import Numbers
from adapter.servers.imap.pieces import BATCH, Kind, PieceReader
from protocol.imap import fetch_response as form
from protocol.imap.fetch_items import Attribute, BinaryPart, BinarySize, BodyPart, FetchItem, Preview
from protocol.imap.lexer import Dialect
from protocol.imap.strings import string
from protocol.imap.view import Rows
from protocol.mime.sections import Section

if TYPE_CHECKING:
    from adapter.servers.imap.folder_cache import FolderState

Content: TypeAlias = BodyPart | BinaryPart | BinarySize
_CONTENT = (BodyPart, BinaryPart, BinarySize)

# Rows of one chunk: of flags and numbers, and of pieces, which have some 500 octets each.
_SHORT_ROWS = 4096
_LONG_ROWS = 512
# Messages whose content is read with one visit to a thread: few at first, so that the answer begins soon.
_FIRST_BODIES = 8
_BODIES = 64
_STEP_OCTETS = 1 << 20
# Messages that are read before a client that takes one after another has asked for them.
_AHEAD = 32
# Messages of an answer that may be given at once.
_AT_ONCE = 16

_KINDS = {
    Attribute.ENVELOPE: Kind.ENVELOPE,
    Attribute.BODY: Kind.BODY,
    Attribute.BODYSTRUCTURE: Kind.STRUCTURE,
    Attribute.EMAILID: Kind.EMAIL_ID,
    Attribute.THREADID: Kind.THREAD_ID,
}
_FORMATS = {
    Attribute.ENVELOPE: form.ENVELOPE,
    Attribute.BODY: form.BODY,
    Attribute.BODYSTRUCTURE: form.BODYSTRUCTURE,
    Attribute.EMAILID: form.EMAILID,
    Attribute.THREADID: b"THREADID (%b)",  # RFC 8474 5.2
}
_WHOLE = Section()


class Fetch:
    def __init__(
        self,
        state: FolderState,
        rows: Rows,
        items: Sequence[FetchItem],
        dialect: Dialect,
        pieces: PieceReader,
        bodies: Bodies,
    ) -> None:
        self._state = state
        self._rows = rows
        self._items = items
        self._dialect = dialect
        self._pieces = pieces
        self._bodies = bodies
        self._kinds = _kinds(items)
        self._contents = sum(isinstance(item, _CONTENT) for item in items)
        #: UIDs that were left out: gone meanwhile, or not to be read. Complete when the chunks have ended.
        self.failed: list[int] = []
        #: UIDs of which BINARY was asked that nobody can decode, answered with NIL: UNKNOWN-CTE (RFC 3516 4.3)
        self.undecodable: list[int] = []

    async def chunks(self) -> AsyncIterator[bytes]:
        """Raises MailError only where a literal already begun cannot be finished: the connection must be closed."""
        kinds = self._kinds
        numbers, uids = self._rows.numbers, self._rows.uids
        for start in range(0, len(uids), BATCH):
            block = _Block(numbers[start : start + BATCH], uids[start : start + BATCH])
            if kinds:
                block.pieces = await self._pieces.read(self._state.id, self._state.pieces, kinds, block.uids)
            if self._contents:
                async for chunk in self._with_content(block):
                    yield chunk
                continue
            step = _LONG_ROWS if kinds else _SHORT_ROWS
            for first in range(0, len(block.uids), step):
                yield self._table(block.part(first, first + step), [])

    def at_once(self) -> bytes | None:
        """The whole answer, if it is short and all of it is at hand; else None, and it comes in chunks.

        Most commands ask for one message: pausing where there is nothing to wait for costs as much as the answer.
        """
        numbers, uids = self._rows.numbers, self._rows.uids
        if not 0 < len(uids) <= _AT_ONCE:
            return None
        block = _Block(numbers, uids)
        messages: list[Message] = []
        if self._kinds:
            block.pieces = self._pieces.at_hand(self._state.pieces, self._kinds, uids)
            if any(None in column for column in block.pieces):
                return None
        if self._contents:
            if len(uids) == 1:
                self._look_ahead(uids[0])
            kept = self._bodies.at_hand(self._state.id, uids)
            if kept is None or sum(message.size for message in kept) * self._contents > CHUNK:
                return None
            messages = kept
        return self._table(block, messages)

    # --- rows of what is at hand -----------------------------------------------------------------------------------

    def _table(self, block: _Block, messages: Sequence[Message]) -> bytes:
        """Responses of the block's messages; ``messages`` are their contents, if that is asked for."""
        block, messages, places = self._alive(block, messages)
        formats: list[bytes] = []
        columns: list[Iterable[int] | Iterable[bytes]] = []
        for item in self._items:
            if isinstance(item, _CONTENT):
                self._content_columns(item, block.uids, messages, formats, columns)
            else:
                written, column = self._column(item, block, places)
                formats.append(written)
                columns.append(column)
        uid_only = self._dialect.uid_only
        return form.fetch_rows(formats, block.uids if uid_only else block.numbers, columns, uid_only=uid_only)

    def _alive(
        self, block: _Block, messages: Sequence[Message]
    ) -> tuple[_Block, Sequence[Message], slice | Sequence[int]]:
        """The block without messages that are gone or have no pieces, and where the others stand in the columns."""
        places = self._state.places(block.uids)
        if isinstance(places, slice) and not any(None in column for column in block.pieces):
            return block, messages, places
        rows = range(places.start, places.stop) if isinstance(places, slice) else places
        alive = [
            index
            for index, place in enumerate(rows)
            if place >= 0 and all(column[index] is not None for column in block.pieces)
        ]
        chosen = set(alive)
        self.failed += [uid for index, uid in enumerate(block.uids) if index not in chosen]
        return block.chosen(alive), [messages[index] for index in alive] if messages else [], [rows[i] for i in alive]

    def _column(
        self, item: Attribute | Preview, block: _Block, places: slice | Sequence[int]
    ) -> tuple[bytes, Iterable[int] | Iterable[bytes]]:
        columns = self._state.columns
        if isinstance(item, Preview):
            utf8 = self._dialect.utf8
            return form.PREVIEW, [string(text, utf8) for text in self._piece(Kind.PREVIEW, block)]
        if item in _KINDS:
            return _FORMATS[item], self._piece(_KINDS[item], block)
        match item:
            case Attribute.UID:
                return form.UID, block.uids
            case Attribute.FLAGS:
                return form.FLAGS, map(self._state.flags.encoded.__getitem__, _pick(columns.masks, places))
            case Attribute.INTERNALDATE:
                return form.INTERNALDATE, map(form.date_time, _pick(columns.internal_dates, places))
            case Attribute.SAVEDATE:
                return form.SAVEDATE, map(form.date_time, _pick(columns.save_dates, places))
            case Attribute.RFC822_SIZE:
                return form.RFC822_SIZE, _pick(columns.sizes, places)
            case _:
                return form.MODSEQ, _pick(columns.modseqs, places)

    def _piece(self, kind: Kind, block: _Block) -> Sequence[bytes]:
        return cast("Sequence[bytes]", block.pieces[self._kinds.index(kind)])

    # --- content ---------------------------------------------------------------------------------------------------

    def _content_columns(
        self,
        item: Content,
        uids: Sequence[int],
        messages: Sequence[Message],
        formats: list[bytes],
        columns: list[Iterable[int] | Iterable[bytes]],
    ) -> None:
        label = item.label.replace(b"%", b"%%")
        values = self._values(item, uids, messages)
        if isinstance(item, BinarySize):
            formats.append(label + b" %d")
            columns.append([len(value or b"") for value in values])
            return
        binary = isinstance(item, BinaryPart)
        formats.append(label + b" %b%b")
        columns.append([_literal(value, binary=binary) for value in values])
        columns.append([value or b"" for value in values])

    def _values(self, item: Content, uids: Sequence[int], messages: Sequence[Message]) -> Sequence[bytes | None]:
        """The octets of an item for each of these small messages; None where there is no such part."""
        if isinstance(item, BodyPart) and item.section == _WHOLE:
            values: list[bytes | None] = [message.octets for message in messages]
        else:
            values = [self._value(item, uid, message) for uid, message in zip(uids, messages, strict=True)]
        if isinstance(item, BinarySize) or item.partial is None:
            return values
        start, count = item.partial
        return [None if value is None else value[start : start + count] for value in values]

    def _value(self, item: Content, uid: int, message: Message) -> bytes | None:
        octets = message.octets or b""
        if isinstance(item, BodyPart):
            return section_of(octets, message.root, item.section)
        try:
            return binary_of(octets, message.root, item.path)
        except UnknownEncodingError:
            self.undecodable.append(uid)
            return None

    async def _with_content(self, block: _Block) -> AsyncIterator[bytes]:
        """Rows with content; the messages of the next step are read while those of one are sent."""
        uids, folder_id = block.uids, self._state.id
        edges = self._steps(uids)
        reading = self._bodies.begin(folder_id, uids[: edges[1]])
        try:
            for start, stop, after in zip(edges, edges[1:], [*edges[2:], 0]):
                messages = await reading.result()
                if after:
                    reading = self._bodies.begin(folder_id, uids[stop:after])
                async for chunk in self._rows_with(block.part(start, stop), messages):
                    yield chunk
        finally:
            reading.cancel()

    def _steps(self, uids: Sequence[int]) -> list[int]:
        """Where to cut the messages, so that those between two cuts are few and not too large together."""
        if len(uids) == 1:
            self._look_ahead(uids[0])
            return [0, 1]
        places, sizes = self._state.places(uids), self._state.columns.sizes
        rows = range(places.start, places.stop) if isinstance(places, slice) else places
        edges, first, octets = [0], 0, 0
        for index, row in enumerate(rows):
            size = sizes[row] if row >= 0 else 0
            octets += size if size <= SMALL else 0
            count = index - first
            if count and (octets > _STEP_OCTETS or count == (_BODIES if first else _FIRST_BODIES)):
                edges.append(index)
                first, octets = index, size if size <= SMALL else 0
        return [*edges, len(uids)]

    def _look_ahead(self, uid: int) -> None:
        known = self._state.uids
        place = bisect_left(known, uid)
        before = known[place - 1] if place else 0
        self._bodies.look_ahead(self._state.id, before, uid, known[place + 1 : place + 1 + _AHEAD])

    async def _rows_with(self, block: _Block, messages: Sequence[Message | None]) -> AsyncIterator[bytes]:
        """In order: as many messages as fit a chunk as one table, those that fill one by themselves item by item."""
        first, size = 0, 0
        for index, message in enumerate([*messages, None]):
            weight = message.size * self._contents if message is not None else 0
            fits = message is not None and message.octets is not None and weight <= CHUNK
            if first < index and (not fits or size + weight > CHUNK):
                yield self._table(block.part(first, index), cast("Sequence[Message]", messages[first:index]))
                first, size = index, 0
            if fits:
                size += weight
                continue
            first = index + 1
            if message is not None:
                async for chunk in self._one(block.part(index, index + 1), message):
                    yield chunk
            elif index < len(messages):
                self.failed.append(block.uids[index])

    async def _one(self, block: _Block, message: Message) -> AsyncIterator[bytes]:
        block, alive, places = self._alive(block, [message])
        if not alive:
            return
        uid_only = self._dialect.uid_only
        lead = form.fetch_start(block.uids[0] if uid_only else block.numbers[0], uid_only=uid_only)
        for item in self._items:
            if not isinstance(item, _CONTENT):
                written, column = self._column(item, block, places)
                lead += written % next(iter(column))
            else:
                span = await self._span(item, block.uids[0], message)
                if isinstance(item, BinarySize):
                    lead += form.binary_size(item.label, span.size if span is not None else 0)
                elif span is None:
                    lead += item.label + b" NIL"
                else:
                    # RFC 3516 4.3: only a literal8 may hold NUL, and of a stream nobody knows yet.
                    binary = isinstance(item, BinaryPart) and (span.octets is None or b"\0" in span.octets)
                    yield lead + form.literal_head(item.label, span.size, binary=binary)
                    lead = b""
                    async for chunk in self._bodies.stream(message, span):
                        yield chunk
            lead += b" "
        yield lead[:-1] + form.FETCH_END

    async def _span(self, item: Content, uid: int, message: Message) -> Span | None:
        if message.octets is not None:
            (value,) = self._values(item, [uid], [message])
            return None if value is None else Span(len(value), value)
        if isinstance(item, BodyPart):
            return await self._bodies.section(message, item.section, item.partial)
        try:
            part = None if isinstance(item, BinarySize) else item.partial
            return await self._bodies.binary(message, item.path, part)
        except UnknownEncodingError:
            self.undecodable.append(uid)
            return None


class _Block:
    """Some of the messages: numbers, UIDs and pieces, one for one."""

    __slots__ = ("numbers", "pieces", "uids")

    def __init__(self, numbers: Sequence[int], uids: Sequence[int]) -> None:
        self.numbers = numbers
        self.uids = uids
        self.pieces: list[list[bytes | None]] = []

    def part(self, start: int, stop: int) -> _Block:
        made = _Block(self.numbers[start:stop], self.uids[start:stop])
        made.pieces = [column[start:stop] for column in self.pieces]
        return made

    def chosen(self, places: Sequence[int]) -> _Block:
        made = _Block([self.numbers[place] for place in places], [self.uids[place] for place in places])
        made.pieces = [[column[place] for place in places] for column in self.pieces]
        return made


def _kinds(items: Sequence[FetchItem]) -> list[Kind]:
    kinds = [_KINDS[item] for item in items if isinstance(item, Attribute) and item in _KINDS]
    if any(isinstance(item, Preview) for item in items):
        kinds.append(Kind.PREVIEW)
    return list(dict.fromkeys(kinds))


def _pick(column: list[int] | Numbers, places: slice | Sequence[int]) -> Iterable[int]:
    return column[places] if isinstance(places, slice) else [column[place] for place in places]


# RFC 3501 4.3, RFC 3516 4.3
def _literal(value: bytes | None, *, binary: bool) -> bytes:
    if value is None:
        return b"NIL"
    return (b"~{%d}\r\n" if binary and b"\0" in value else b"{%d}\r\n") % len(value)
