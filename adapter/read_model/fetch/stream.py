r"""FETCH responses as chunks of octets, ready to send.

    fetch = cache.fetch(folder, view.by_uid(uids), items, dialect)
    async for chunk in fetch.chunks():      # of at most some 256 KiB
        await connection.write(chunk)
    if fetch.failed: …

Items come in the order requested. The caller adds MODSEQ and UID where the dialect requires them, and sets ``\Seen``
before the fetch (with FLAGS among the items).

A FETCH is a table: one format for a row, a column for each item, and one formatting operation for many rows.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, cast

from adapter.read_model.fetch.bodies import CHUNK_BYTES, MAX_WHOLE_BYTES, Bodies, Message, Span, UnknownEncodingError
from adapter.read_model.fetch.encoded_attributes import BATCH_MESSAGES, AttributeLoader
from adapter.read_model.fetch.plan import CONTENT, Block, Content, contents_of, plan_of
from protocol.errors import MailError, Reason
from protocol.imap.commands.fetch_items import Attribute, BinaryPart, BinarySize, BodyPart, FetchItem
from protocol.imap.responses import fetch as form
from protocol.imap.session_view import Rows, View
from protocol.imap.wire.lexer import Dialect

if TYPE_CHECKING:
    from adapter.read_model.cached_folder import CachedFolder
    from adapter.read_model.stored_messages import StoredMessages

_log = logging.getLogger(__name__)

# Rows of one chunk: of flags and numbers, and of attributes, which have some 500 octets each.
_SHORT_ROWS = 4096
_LONG_ROWS = 512
# Messages read by one job: few at first, so that the response begins soon.
_FIRST_BODIES = 8
_BODIES = 64
_STEP_BYTES = 1 << 20
# Messages of a response without pause.
_MAX_AT_ONCE = 16


class Fetch:
    __slots__ = (
        "_attributes",
        "_bodies",
        "_folder",
        "_plan",
        "_reader",
        "_rows",
        "_uid_only",
        "_view",
        "failed",
        "is_corrupt",
        "undecodable",
    )

    def __init__(
        self,
        reader: StoredMessages,
        folder: CachedFolder,
        rows: Rows,
        items: Sequence[FetchItem],
        dialect: Dialect,
        attributes: AttributeLoader,
        bodies: Bodies,
        view: View | None = None,
    ) -> None:
        self._reader = reader
        self._folder = folder
        self._rows = rows
        self._plan = plan_of(tuple(items), dialect.utf8, dialect.uid_only)
        self._uid_only = dialect.uid_only
        self._attributes = attributes
        self._bodies = bodies
        self._view = view if Attribute.FLAGS in items else None
        #: UIDs without a response: gone, or unreadable. Complete when the chunks have ended.
        self.failed: list[int] = []
        #: True if content was read and did not match its checksum.
        self.is_corrupt = False
        #: UIDs with BINARY in an unknown encoding, answered with NIL: UNKNOWN-CTE (RFC 3516 4.3)
        self.undecodable: list[int] = []

    async def chunks(self) -> AsyncIterator[bytes]:
        """Raises MailError only inside a literal: the connection must then be closed."""
        attributes = self._plan.attributes
        numbers, uids = self._rows.numbers, self._rows.uids
        for start in range(0, len(uids), BATCH_MESSAGES):
            block = Block(
                self._folder,
                numbers[start : start + BATCH_MESSAGES],
                uids[start : start + BATCH_MESSAGES],
                view=self._view,
            )
            if attributes:
                cache = self._folder.attributes
                columns = await self._attributes.load(self._folder.id, cache, attributes, block.uids)
                block = block._replace(attributes=columns)
            if self._plan.contents:
                async for chunk in self._with_content(block):
                    yield chunk
                continue
            step = _LONG_ROWS if attributes else _SHORT_ROWS
            for first in range(0, len(block.uids), step):
                yield self._table(block.part(first, first + step))

    def at_once(self) -> bytes | None:
        """Return all responses if they are short and in memory; None: use :meth:`chunks`.

        Most commands fetch one message, for which a pause would cost as much as the response.
        """
        numbers, uids = self._rows.numbers, self._rows.uids
        if not 0 < len(uids) <= _MAX_AT_ONCE:
            return None
        attributes: Sequence[Sequence[bytes | None]] = ()
        if self._plan.attributes:
            attributes = self._attributes.in_memory(self._folder.attributes, self._plan.attributes, uids)
            if any(None in column for column in attributes):
                return None
        messages: Sequence[Message] = ()
        if self._plan.contents:
            if len(uids) == 1:
                self._read_ahead(uids[0])
            cached = self._bodies.in_memory(self._folder.id, uids)
            if cached is None or sum([message.size for message in cached]) * self._plan.contents > CHUNK_BYTES:
                return None
            messages = cached
        return self._table(Block(self._folder, numbers, uids, attributes, messages, view=self._view))

    async def failed_exist(self) -> bool:
        """True if a message of ``failed`` is still there: the folder in memory may lag behind an expunge."""
        return await self._reader.exist(self._folder.id, self.failed)

    def _table(self, block: Block) -> bytes:
        """Return the responses of the block's messages."""
        block = block.alive(self.failed)
        columns = [column for step in self._plan.steps for column in step.fill(block, self.undecodable)]
        rows = form.fetch_rows(self._plan.row, block.uids if self._uid_only else block.numbers, columns)
        return self._new_keywords() + rows

    def _new_keywords(self) -> bytes:
        """Return the FLAGS response that must precede keywords the client has not seen."""
        return self._view.new_keywords(self._folder.flags) if self._view is not None else b""

    # --- content ---------------------------------------------------------------------------------------------------

    async def _with_content(self, block: Block) -> AsyncIterator[bytes]:
        """Yield rows with content; the messages of the next step are read while those of one step are sent."""
        uids, folder_id = block.uids, self._folder.id
        edges = self._steps(uids)
        pending = self._bodies.start_reading(folder_id, uids[: edges[1]])
        try:
            for start, stop, after in zip(edges, edges[1:], [*edges[2:], 0]):
                messages = await pending.result()
                if after:
                    pending = self._bodies.start_reading(folder_id, uids[stop:after])
                async for chunk in self._rows_with(block.part(start, stop), messages):
                    yield chunk
        finally:
            pending.cancel()

    def _steps(self, uids: Sequence[int]) -> list[int]:
        """Return the edges of the steps: a step has few messages, which are not too large together."""
        if len(uids) == 1:
            self._read_ahead(uids[0])
            return [0, 1]
        places, sizes = self._folder.places(uids), self._folder.columns.sizes
        rows = range(places.start, places.stop) if isinstance(places, slice) else places
        edges, first, octets = [0], 0, 0
        for index, row in enumerate(rows):
            size = sizes[row] if row >= 0 else 0
            octets += size if size <= MAX_WHOLE_BYTES else 0
            count = index - first
            if count and (octets > _STEP_BYTES or count == (_BODIES if first else _FIRST_BODIES)):
                edges.append(index)
                first, octets = index, size if size <= MAX_WHOLE_BYTES else 0
        return [*edges, len(uids)]

    def _read_ahead(self, uid: int) -> None:
        uids = self._folder.uids
        self._bodies.read_ahead(self._folder.id, uids, bisect_left(uids, uid))

    async def _rows_with(self, block: Block, messages: Sequence[Message | None]) -> AsyncIterator[bytes]:
        """Yield rows in order: small messages as tables of up to a chunk, larger ones item by item."""
        first, size = 0, 0
        for index, message in enumerate([*messages, None]):
            weight = message.size * self._plan.contents if message is not None else 0
            fits = message is not None and message.octets is not None and weight <= CHUNK_BYTES
            if first < index and (not fits or size + weight > CHUNK_BYTES):
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
            _log.error("message %s: unreadable (%s); left out of responses", message.id, error)
            self.is_corrupt = self.is_corrupt or error.reason is Reason.BAD_CONTENT
            self.failed += block.uids
            return
        block = block.alive(self.failed)  # its place in the columns may have changed
        if not block.uids:
            return
        # Flags and the like are formatted now: they may change, and new keywords appear, while the content is sent.
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
                    # RFC 3516 4.3: only a literal8 may hold NUL, and a stream may have one anywhere.
                    binary = isinstance(item, BinaryPart) and (span.octets is None or b"\0" in span.octets)
                    yield lead + form.literal_head(item.label, span.size, binary=binary)
                    lead = b""
                    async for chunk in self._bodies.stream(message, span):
                        # Free of cost without a NUL: the chunk is returned as it is.
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
