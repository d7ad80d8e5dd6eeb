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

import logging
from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, cast

from adapter.read_model.bodies import CHUNK, SMALL, Bodies, Message, Span, UnknownEncodingError
from adapter.read_model.encoded_attributes import BATCH, PieceReader
from adapter.read_model.fetch_plan import CONTENT, Block, Content, contents_of, plan_of
from protocol.errors import MailError, Reason
from protocol.imap.commands.fetch_items import Attribute, BinaryPart, BinarySize, BodyPart, FetchItem
from protocol.imap.responses import fetch as form
from protocol.imap.session_view import Rows, View
from protocol.imap.wire.lexer import Dialect

if TYPE_CHECKING:
    from adapter.read_model.folder_cache import FolderState

_log = logging.getLogger(__name__)

# Rows of one chunk: of flags and numbers, and of pieces, which have some 500 octets each.
_SHORT_ROWS = 4096
_LONG_ROWS = 512
# Messages whose content is read with one visit to a thread: few at first, so that the answer begins soon.
_FIRST_BODIES = 8
_BODIES = 64
_STEP_OCTETS = 1 << 20
# Messages of an answer that may be given at once.
_AT_ONCE = 16


class Fetch:
    __slots__ = (
        "_bodies",
        "_pieces",
        "_plan",
        "_rows",
        "_state",
        "_uid_only",
        "_view",
        "failed",
        "is_corrupt",
        "undecodable",
    )

    def __init__(
        self,
        state: FolderState,
        rows: Rows,
        items: Sequence[FetchItem],
        dialect: Dialect,
        pieces: PieceReader,
        bodies: Bodies,
        view: View | None = None,
    ) -> None:
        self._state = state
        self._rows = rows
        self._plan = plan_of(tuple(items), dialect.utf8, dialect.uid_only)
        self._uid_only = dialect.uid_only
        self._pieces = pieces
        self._bodies = bodies
        self._view = view if Attribute.FLAGS in items else None  # of the session that asks for flags
        #: UIDs that were left out: gone meanwhile, or not to be read. Complete when the chunks have ended.
        self.failed: list[int] = []
        #: Whether content was read and was wrong.
        self.is_corrupt = False
        #: UIDs of which BINARY was asked that nobody can decode, answered with NIL: UNKNOWN-CTE (RFC 3516 4.3)
        self.undecodable: list[int] = []

    async def chunks(self) -> AsyncIterator[bytes]:
        """Raises MailError only where a literal already begun cannot be finished: the connection must be closed."""
        kinds = self._plan.kinds
        numbers, uids = self._rows.numbers, self._rows.uids
        for start in range(0, len(uids), BATCH):
            block = Block(self._state, numbers[start : start + BATCH], uids[start : start + BATCH], view=self._view)
            if kinds:
                pieces = await self._pieces.read(self._state.id, self._state.pieces, kinds, block.uids)
                block = block._replace(pieces=pieces)
            if self._plan.contents:
                async for chunk in self._with_content(block):
                    yield chunk
                continue
            step = _LONG_ROWS if kinds else _SHORT_ROWS
            for first in range(0, len(block.uids), step):
                yield self._table(block.part(first, first + step))

    def at_once(self) -> bytes | None:
        """The whole answer, if it is short and all of it is at hand; else None, and it comes in chunks.

        Most commands ask for one message: pausing where there is nothing to wait for costs as much as the answer.
        """
        numbers, uids = self._rows.numbers, self._rows.uids
        if not 0 < len(uids) <= _AT_ONCE:
            return None
        pieces: Sequence[Sequence[bytes | None]] = ()
        if self._plan.kinds:
            pieces = self._pieces.at_hand(self._state.pieces, self._plan.kinds, uids)
            if any(None in column for column in pieces):
                return None
        messages: Sequence[Message] = ()
        if self._plan.contents:
            if len(uids) == 1:
                self._look_ahead(uids[0])
            kept = self._bodies.at_hand(self._state.id, uids)
            if kept is None or sum([message.size for message in kept]) * self._plan.contents > CHUNK:
                return None
            messages = kept
        return self._table(Block(self._state, numbers, uids, pieces, messages, view=self._view))

    def _table(self, block: Block) -> bytes:
        """Responses of the block's messages."""
        block = block.alive(self.failed)
        columns = [column for step in self._plan.steps for column in step.fill(block, self.undecodable)]
        rows = form.fetch_rows(self._plan.row, block.uids if self._uid_only else block.numbers, columns)
        return self._new_keywords() + rows

    def _new_keywords(self) -> bytes:
        """What the client has to know before it sees the flags as they are at this moment."""
        return self._view.new_keywords(self._state.flags) if self._view is not None else b""

    # --- content ---------------------------------------------------------------------------------------------------

    async def _with_content(self, block: Block) -> AsyncIterator[bytes]:
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
        self._bodies.look_ahead(self._state.id, known, bisect_left(known, uid))

    async def _rows_with(self, block: Block, messages: Sequence[Message | None]) -> AsyncIterator[bytes]:
        """In order: as many messages as fit a chunk as one table, those that fill one by themselves item by item."""
        first, size = 0, 0
        for index, message in enumerate([*messages, None]):
            weight = message.size * self._plan.contents if message is not None else 0
            fits = message is not None and message.octets is not None and weight <= CHUNK
            if first < index and (not fits or size + weight > CHUNK):
                read = cast("Sequence[Message]", messages[first:index])
                yield self._table(block.part(first, index)._replace(messages=read))
                first, size = index, 0
            if fits:
                size += weight
                continue
            first = index + 1
            if message is not None:
                try:
                    async for chunk in self._one(block.part(index, index + 1), message):
                        yield chunk
                finally:
                    message.reader = None  # it holds the whole file
            elif index < len(messages):
                self.failed.append(block.uids[index])

    async def _one(self, block: Block, message: Message) -> AsyncIterator[bytes]:
        block = block._replace(messages=[message]).alive(self.failed)
        if not block.uids:
            return
        try:
            spans = {
                step.item: await self._span(step.item, block, message)
                for step in self._plan.steps
                if isinstance(step.item, CONTENT)
            }
            await self._bodies.probe(message, [span for span in spans.values() if span is not None])
        except MailError as error:
            _log.error("message %s can not be served: %s", message.id, error)
            self.is_corrupt = self.is_corrupt or error.reason is Reason.BAD_CONTENT
            self.failed += block.uids
            return
        block = block.alive(self.failed)  # where it stands in the columns may have changed
        if not block.uids:
            return
        # Flags and the like at once: while the content is sent they may change, and keywords come up.
        short = [
            b"" if isinstance(item, CONTENT) else written % next(iter(fill(block, self.undecodable)[0]))
            for item, written, fill in self._plan.steps
        ]
        lead = self._new_keywords()
        lead += form.fetch_start(block.uids[0] if self._uid_only else block.numbers[0], uid_only=self._uid_only)
        for (item, _, _), written in zip(self._plan.steps, short, strict=True):
            if not isinstance(item, CONTENT):
                lead += written
            else:
                span = spans[item]
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
                        # Costs nothing where there is no NUL: the chunk comes back as it is.
                        yield chunk if isinstance(item, BinaryPart) else form.without_nul(chunk)
            lead += b" "
        yield lead[:-1] + form.FETCH_END

    async def _span(self, item: Content, block: Block, message: Message) -> Span | None:
        if message.octets is not None:
            (value,) = contents_of(item, block, self.undecodable)
            return None if value is None else Span(len(value), value)
        if isinstance(item, BodyPart):
            return await self._bodies.section(message, item.section, item.partial)
        try:
            part = None if isinstance(item, BinarySize) else item.partial
            if item.section is not None:
                return await self._bodies.section(message, item.section, part)
            return await self._bodies.binary(message, item.path, part)
        except UnknownEncodingError:
            self.undecodable += block.uids
            return None
