"""Message content for FETCH: small messages whole and cached, large ones as streams.

Files are read on threads, many messages per job. A small message is rebuilt once, and its sections are slices of it.
Of a large message no more than a chunk or two is in memory, and a section costs no more than its own size: the outline
in the index's cache has the offsets of the parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import NamedTuple

from adapter.content.parts import decode_outline
from adapter.content.wire import RangeReader, Recipe
from adapter.read_model.fetch import transfer_stream
from adapter.read_model.thread_pool import ThreadPool
from adapter.store.queries import messages
from adapter.store.queries.content_rows import CacheRow
from adapter.transport import cache_fill
from adapter.transport.transport import Transport
from protocol.errors import MailError
from protocol.mime.encoding import decode_transfer
from protocol.mime.parser import Part
from protocol.mime.sections import Section, find_part, header_fields, partial, section_ranges

_log = logging.getLogger(__name__)

#: A message of at most this size is rebuilt whole.
MAX_WHOLE_BYTES = 256 << 10
#: Size of the chunks of a stream.
CHUNK_BYTES = 256 << 10
# Folders in which sequential reading is detected.
_TRACKED_FOLDERS = 1024
_READ_AHEAD_MESSAGES = 32
# Of a message, besides its octets.
_ENTRY_COST_BYTES = 400


class Message:
    """A message in memory: its octets if it is small, and the offsets of its parts."""

    __slots__ = ("_outline", "_root", "has_nul", "id", "octets", "reader", "size")

    def __init__(self, message_id: str, size: int, octets: bytes | None, encoded_outline: bytes) -> None:
        self.id = message_id
        self.size = size
        self.octets = octets  # None: too large, or a part of it is unreadable
        self.has_nul = octets is not None and b"\0" in octets  # computed once, on a thread
        self.reader: RangeReader | None = None  # of a large message, while a FETCH serves it
        self._outline = encoded_outline
        self._root: Part | None = None

    @property
    def root(self) -> Part:
        """The tree of parts: offsets, types and encodings, without headers and parameters."""
        if self._root is None:
            self._root = decode_outline(self._outline)
        return self._root

    @property
    def cost(self) -> int:
        return _ENTRY_COST_BYTES + len(self._outline) + len(self.octets or b"")


class Span(NamedTuple):
    """A section of a large message: octets in memory, or ranges of the message, encoded or not."""

    size: int
    octets: bytes | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    encoding: str = ""  # transfer encoding to undo, if any
    skip: int = 0  # decoded octets before the section


class UnknownEncodingError(Exception):
    """BINARY of a part with an unknown transfer encoding (RFC 3516 4.3)."""


_IDENTITY = frozenset({"7bit", "8bit", "binary"})
_ENCODINGS = frozenset({"base64", "quoted-printable"})


def section_of(octets: bytes, root: Part, section: Section) -> bytes | None:
    """Return ``BODY[section]`` of a message in memory; None if it has no such part."""
    if not section.what.startswith("HEADER.FIELDS"):
        ranges = section_ranges(octets, root, section)
        return None if ranges is None else b"".join([octets[start:end] for start, end in ranges])
    if not section.path:
        return header_fields(octets[root.start : root.body], section)
    block = section_ranges(octets, root, Section(section.path, "HEADER"))
    if block is None:
        return None
    return header_fields(octets[block[0][0] : block[0][1]] if block else b"", section)


# RFC 3516 4.2
def binary_part(root: Part, path: Sequence[int]) -> tuple[int, int, str] | None:
    """Return start, end and transfer encoding ("": none) of ``BINARY[path]``; None if there is no such part."""
    if not path:
        return root.start, root.end, ""
    part = find_part(root, tuple(path))
    if part is None:
        return None
    if part.encoding in _IDENTITY or part.children:
        return part.body, part.end, ""
    if part.encoding not in _ENCODINGS:
        raise UnknownEncodingError(part.encoding)
    return part.body, part.end, part.encoding


def binary_of(octets: bytes, root: Part, path: Sequence[int]) -> bytes | None:
    """Return ``BINARY[path]`` of a message in memory. Raises UnknownEncodingError."""
    location = binary_part(root, path)
    if location is None:
        return None
    start, end, encoding = location
    return decode_transfer(octets, encoding, start, end) if encoding else octets[start:end]


class PendingMessages:
    """Messages that are in memory or being read."""

    __slots__ = ("_messages", "_task")

    def __init__(self, messages: list[Message | None], task: asyncio.Task[list[Message | None]] | None) -> None:
        self._messages = messages
        self._task = task

    async def result(self) -> list[Message | None]:
        """Return one message per UID; None where it is gone or unreadable."""
        return self._messages if self._task is None else await self._task

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class Bodies:
    """Cache of message content, least recently used first, within a budget. Used from the loop's thread alone."""

    def __init__(self, transport: Transport, threads: ThreadPool, limit: int) -> None:
        self._transport = transport
        self._threads = threads
        self.limit = limit  #: octets
        self._cached: OrderedDict[tuple[int, int], Message] = OrderedDict()  # by folder and UID
        self._used_bytes = 0
        self._used_at = 0.0
        self._read_ahead: dict[tuple[int, int], asyncio.Task[None]] = {}  # under way
        self._last_uid: dict[int, int] = {}  # by folder: of the last FETCH of a single message

    def in_memory(self, folder_id: int, uids: Sequence[int]) -> list[Message] | None:
        """Return these messages if all of them are in memory."""
        messages = []
        for uid in uids:
            message = self._cached.get((folder_id, uid))
            if message is None or message.octets is None:
                return None
            self._cached.move_to_end((folder_id, uid))
            messages.append(message)
        self._used_at = time.monotonic()
        return messages

    def start_reading(self, folder_id: int, uids: Sequence[int]) -> PendingMessages:
        """Start to read those messages (UIDs ascending) that are not in memory."""
        cached = self._cached
        messages = [cached.get((folder_id, uid)) for uid in uids]
        self._used_at = time.monotonic()
        if None not in messages:
            for uid in uids:
                cached.move_to_end((folder_id, uid))
            return PendingMessages(messages, None)
        return PendingMessages(messages, asyncio.create_task(self._complete(folder_id, uids, messages)))

    async def _complete(
        self, folder_id: int, uids: Sequence[int], messages: list[Message | None]
    ) -> list[Message | None]:
        under_way = {self._read_ahead[folder_id, uid] for uid in uids if (folder_id, uid) in self._read_ahead}
        if under_way:
            await asyncio.wait(under_way)
            messages = [
                message or self._cached.get((folder_id, uid)) for uid, message in zip(uids, messages, strict=True)
            ]
        missing = [uid for uid, message in zip(uids, messages, strict=True) if message is None]
        read = await self._load(folder_id, missing) if missing else {}
        return [message or read.get(uid) for uid, message in zip(uids, messages, strict=True)]

    async def _load(self, folder_id: int, uids: Sequence[int]) -> dict[int, Message]:
        messages = await self._threads.run(self._read, folder_id, uids)
        for uid, message in messages.items():
            self._cache((folder_id, uid), message)
        self._shrink()
        return messages

    def read_ahead(self, folder_id: int, uids: Sequence[int], place: int) -> None:
        """Start to read the messages after ``place`` if the client fetches the folder message by message: it has
        fetched the one before ``place`` last."""
        last = self._last_uid.pop(folder_id, 0)
        if place >= len(uids):
            return
        self._last_uid[folder_id] = uids[place]
        if len(self._last_uid) > _TRACKED_FOLDERS:
            del self._last_uid[next(iter(self._last_uid))]
        if not place or last != uids[place - 1] or place + 1 == len(uids):
            return
        halfway = (folder_id, uids[min(place + _READ_AHEAD_MESSAGES // 2, len(uids) - 1)])
        if halfway in self._cached or halfway in self._read_ahead:
            return  # far enough ahead; checking every message would cost more
        keys = [(folder_id, after) for after in uids[place + 1 : place + 1 + _READ_AHEAD_MESSAGES]]
        missing = [key for key in keys if key not in self._cached and key not in self._read_ahead]
        if 2 * len(missing) > len(keys):
            task = asyncio.create_task(self._load_quietly(folder_id, [key[1] for key in missing]))
            self._read_ahead.update(dict.fromkeys(missing, task))
            task.add_done_callback(lambda _: [self._read_ahead.pop(key, None) for key in missing])

    async def _load_quietly(self, folder_id: int, uids: Sequence[int]) -> None:
        with contextlib.suppress(MailError):  # the FETCH of the message will report it
            await self._load(folder_id, uids)

    def drop_unused(self, unused_since: float) -> bool:
        """Drop everything if nothing was used since then (monotonic clock); return True if that freed memory."""
        if self._used_at >= unused_since or not self._cached:
            return False
        self._cached.clear()
        self._used_bytes = 0
        return True

    def _cache(self, key: tuple[int, int], message: Message) -> None:
        replaced = self._cached.pop(key, None)
        self._cached[key] = message
        self._used_bytes += message.cost - (replaced.cost if replaced else 0)

    def _shrink(self) -> None:
        while self._used_bytes > self.limit and self._cached:
            _, oldest = self._cached.popitem(last=False)
            self._used_bytes -= oldest.cost

    # --- large messages --------------------------------------------------------------------------------------------

    async def section(self, message: Message, section: Section, part: tuple[int, int] | None) -> Span | None:
        """Return ``BODY[section]<part>`` of a large message; None if it has no such part."""
        if not section.what.startswith("HEADER.FIELDS"):
            ranges = section_ranges(b"", message.root, section)
            return None if ranges is None else _span(ranges, part)
        block = section_ranges(b"", message.root, Section(section.path, "HEADER"))
        if block is None:
            return None
        header = b"".join([chunk async for chunk in self.stream(message, _span(block, None))])
        fields = header_fields(header, section)
        if part is not None:
            fields = fields[part[0] : part[0] + part[1]]
        return Span(len(fields), fields)

    async def binary(self, message: Message, path: Sequence[int], part: tuple[int, int] | None) -> Span | None:
        """Return ``BINARY[path]<part>`` of a large message. Raises UnknownEncodingError."""
        location = binary_part(message.root, path)
        if location is None:
            return None
        start, end, encoding = location
        if not encoding:
            return _span([(start, end)], part)
        whole = Span(-1, None, ((start, end),), encoding)
        size = 0
        async for chunk in self.stream(message, whole):  # only decoding shows the size
            size += len(chunk)
        first, count = part if part is not None else (0, size)
        return whole._replace(size=max(min(size - first, count), 0), skip=first)

    async def probe(self, message: Message, spans: Iterable[Span]) -> None:
        """Raise MailError if a file that these spans need cannot be opened: inside a literal it would be too late."""
        ranges = [each for span in spans if span.octets is None for each in span.ranges]
        if ranges:
            await self._threads.run(self._probe, message, ranges)

    async def stream(self, message: Message, span: Span) -> AsyncIterator[bytes]:
        """Yield a span in chunks; the next one is read while one is being sent. Raises MailError."""
        if span.octets is not None:
            yield span.octets
            return
        chunks = self._chunks(message, span)
        pending = self._threads.start(next, chunks, b"")
        while chunk := await pending:
            pending = self._threads.start(next, chunks, b"")
            yield chunk

    # --- on a thread -----------------------------------------------------------------------------------------------

    def _reader(self, message: Message) -> RangeReader:
        """Return the reader of all sections of a FETCH, of which there may be a thousand: it reads the files once."""
        reader = message.reader
        if reader is None:
            reader = message.reader = self._transport.content.ranges(message.id)
        return reader

    def _probe(self, message: Message, ranges: Sequence[tuple[int, int]]) -> None:
        self._transport.content.probe(self._reader(message), ranges)

    def _chunks(self, message: Message, span: Span) -> Iterator[bytes]:
        raw: Iterable[bytes] = self._octets(message, span.ranges)
        if span.encoding:
            raw = transfer_stream.decode(raw, span.encoding)
        if span.size >= 0:
            raw = transfer_stream.cut(raw, span.skip, span.size)
        return transfer_stream.gather(raw, CHUNK_BYTES)

    def _octets(self, message: Message, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        reader = self._reader(message)
        for start, end in ranges:
            yield from reader.octets(start, end)

    def _read(self, folder_id: int, uids: Sequence[int]) -> dict[int, Message]:
        """Read those that exist and are readable."""
        rows = self._transport.index.ask(messages.content, folder_id, uids)
        read: dict[int, Message] = {}
        for uid, message_id, recipe, encoded_outline in rows:
            try:
                read[uid] = self._message(message_id, recipe, encoded_outline)
            except MailError as error:
                _log.error("message %s: unreadable (%s); left out of responses", message_id, error)
        return read

    def _message(self, message_id: str, encoded: bytes | None, encoded_outline: bytes | None) -> Message:
        if encoded is None or encoded_outline is None:
            row = cache_fill.derive(self._transport.content, message_id)
            self._write_back(row)
            encoded, encoded_outline = row.recipe, row.outline
        recipe = Recipe.decode(encoded)
        octets = None
        if recipe.size <= MAX_WHOLE_BYTES:
            try:
                octets = self._transport.content.octets_with(message_id, recipe)
            except MailError as error:  # its readable sections are served one by one
                _log.error("message %s: a part is unreadable (%s); serving the others", message_id, error)
        return Message(message_id, recipe.size, octets, encoded_outline)

    def _write_back(self, row: CacheRow) -> None:
        try:
            cache_fill.write(self._transport, [row])
        except (MailError, OSError, sqlite3.Error) as error:
            _log.warning("index cache: write failed (%s); deriving again next time", error)


def _span(ranges: list[tuple[int, int]], part: tuple[int, int] | None) -> Span:
    if part is not None:
        ranges = partial(ranges, *part)
    return Span(sum(end - start for start, end in ranges), None, tuple(ranges))
