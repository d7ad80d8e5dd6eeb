"""The content of messages for FETCH: small ones whole and kept for a while, large ones as streams.

Files are read on threads, many messages with one visit. A small message is rebuilt once; its sections, partial or
not, are cut out of it. Of a large one no more is in memory than a chunk or two, and no section of it costs more than
what it holds: the outline in the index's cache says where the parts lie.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from adapter.content.parts import decode_outline
from adapter.content.wire import RangeReader, Recipe
from adapter.read_model import transfer_stream
from adapter.read_model.thread_pool import Threads
from adapter.transport import cache_fill
from adapter.transport.transport import Transport
from protocol.errors import MailError
from protocol.mime.encoding import decode_transfer
from protocol.mime.parser import Part
from protocol.mime.sections import Section, find_part, header_fields, partial, section_ranges

_log = logging.getLogger(__name__)

#: A message of at most this many octets is rebuilt whole.
SMALL = 256 << 10
#: Octets of a stream that are handed over at once.
CHUNK = 256 << 10
# Folders that are watched for clients that go through them.
_FOLDERS_FOLLOWED = 1024
# Messages that are read before a client that takes one after another has asked for them.
_AHEAD = 32
# What a message costs besides its octets.
_ENTRY_COST = 400

_CONTENT = """
SELECT p.uid, p.message_id, c.recipe, c.outline
FROM mailbox_projections p LEFT JOIN cache_messages c USING (message_id) WHERE p.folder_id = ?
"""
_IN_RANGE = f"{_CONTENT} AND p.uid BETWEEN ? AND ?"
_IN_LIST = f"{_CONTENT} AND p.uid IN (SELECT value FROM json_each(?))"  # noqa: S608


class Message:
    """The content of a message at hand: its octets if it is small, and where its parts lie."""

    __slots__ = ("_outline", "_root", "has_nul", "id", "octets", "reader", "size")

    def __init__(self, message_id: str, size: int, octets: bytes | None, encoded_outline: bytes) -> None:
        self.id = message_id
        self.size = size
        self.octets = octets  # None: too large, or a part of it cannot be read
        self.has_nul = octets is not None and b"\0" in octets  # found out once, on a thread
        self.reader: RangeReader | None = None  # of a large message, while a FETCH serves it
        self._outline = encoded_outline
        self._root: Part | None = None

    @property
    def root(self) -> Part:
        """Offsets, types and encodings of the parts, without headers and parameters."""
        if self._root is None:
            self._root = decode_outline(self._outline)
        return self._root

    @property
    def cost(self) -> int:
        return _ENTRY_COST + len(self._outline) + len(self.octets or b"")


class Span(NamedTuple):
    """What a section of a large message holds: octets at hand, or ranges of the message, still encoded or not."""

    size: int
    octets: bytes | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    encoding: str = ""  # transfer encoding to undo, if any
    skip: int = 0  # decoded octets before those wanted


class UnknownEncodingError(Exception):
    """BINARY of a part whose transfer encoding nobody knows (RFC 3516 4.3)."""


_IDENTITY = frozenset({"7bit", "8bit", "binary"})
_ENCODINGS = frozenset({"base64", "quoted-printable"})


def section_of(octets: bytes, root: Part, section: Section) -> bytes | None:
    """``BODY[section]`` of a message at hand; None if it has no such part."""
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
    """Where ``BINARY[path]`` lies and how it is encoded ("" if it is not); None if there is no such part."""
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
    """``BINARY[path]`` of a message at hand. Raises UnknownEncodingError."""
    found = binary_part(root, path)
    if found is None:
        return None
    start, end, encoding = found
    return decode_transfer(octets, encoding, start, end) if encoding else octets[start:end]


class Reading:
    """Messages that are at hand, or on their way."""

    __slots__ = ("_found", "_task")

    def __init__(self, found: list[Message | None], task: asyncio.Task[list[Message | None]] | None) -> None:
        self._found = found
        self._task = task

    async def result(self) -> list[Message | None]:
        """One message per UID; None where it is gone or cannot be read."""
        return self._found if self._task is None else await self._task

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class Bodies:
    """Messages read lately, the least recently used first, under a budget. Belongs to the loop's thread."""

    def __init__(self, transport: Transport, threads: Threads, limit: int) -> None:
        self._transport = transport
        self._threads = threads
        self.limit = limit  #: octets
        self._kept: OrderedDict[tuple[int, int], Message] = OrderedDict()  # by folder and UID
        self._used = 0
        self._used_at = 0.0
        self._coming: dict[tuple[int, int], asyncio.Task[None]] = {}  # read ahead
        self._last: dict[int, int] = {}  # by folder: the last message that was wanted by itself

    def at_hand(self, folder_id: int, uids: Sequence[int]) -> list[Message] | None:
        """These messages, if all of them are in memory."""
        found = []
        for uid in uids:
            message = self._kept.get((folder_id, uid))
            if message is None or message.octets is None:
                return None
            self._kept.move_to_end((folder_id, uid))
            found.append(message)
        self._used_at = time.monotonic()
        return found

    def begin(self, folder_id: int, uids: Sequence[int]) -> Reading:
        """Start to read these messages (UIDs ascending), as far as they are not at hand."""
        kept = self._kept
        found = [kept.get((folder_id, uid)) for uid in uids]
        self._used_at = time.monotonic()
        if None not in found:
            for uid in uids:
                kept.move_to_end((folder_id, uid))
            return Reading(found, None)
        return Reading(found, asyncio.create_task(self._complete(folder_id, uids, found)))

    async def _complete(self, folder_id: int, uids: Sequence[int], found: list[Message | None]) -> list[Message | None]:
        coming = {self._coming[folder_id, uid] for uid in uids if (folder_id, uid) in self._coming}
        if coming:
            await asyncio.wait(coming)
            found = [message or self._kept.get((folder_id, uid)) for uid, message in zip(uids, found, strict=True)]
        lacking = [uid for uid, message in zip(uids, found, strict=True) if message is None]
        fresh = await self._fetch(folder_id, lacking) if lacking else {}
        return [message or fresh.get(uid) for uid, message in zip(uids, found, strict=True)]

    async def _fetch(self, folder_id: int, uids: Sequence[int]) -> dict[int, Message]:
        fresh = await self._threads.run(self._read, folder_id, uids)
        for uid, message in fresh.items():
            self._keep((folder_id, uid), message)
        self._shrink()
        return fresh

    def look_ahead(self, folder_id: int, uids: Sequence[int], place: int) -> None:
        """The message at a place of the folder is wanted: if the last one wanted was the one before, a client goes
        through the folder message by message, and those that follow are read ahead."""
        last = self._last.pop(folder_id, 0)
        if place >= len(uids):
            return
        self._last[folder_id] = uids[place]
        if len(self._last) > _FOLDERS_FOLLOWED:
            del self._last[next(iter(self._last))]
        if not place or last != uids[place - 1] or place + 1 == len(uids):
            return
        halfway = (folder_id, uids[min(place + _AHEAD // 2, len(uids) - 1)])
        if halfway in self._kept or halfway in self._coming:
            return  # far enough, and it is not worth while to look at each
        keys = [(folder_id, after) for after in uids[place + 1 : place + 1 + _AHEAD]]
        lacking = [key for key in keys if key not in self._kept and key not in self._coming]
        if 2 * len(lacking) > len(keys):
            task = asyncio.create_task(self._fetch_quietly(folder_id, [key[1] for key in lacking]))
            self._coming.update(dict.fromkeys(lacking, task))
            task.add_done_callback(lambda _: [self._coming.pop(key, None) for key in lacking])

    async def _fetch_quietly(self, folder_id: int, uids: Sequence[int]) -> None:
        with contextlib.suppress(MailError):  # whoever wants them will see for himself
            await self._fetch(folder_id, uids)

    def let_go(self, unused_since: float) -> bool:
        """Drop everything if nothing was used since then (of the monotonic clock); whether that freed anything."""
        if self._used_at >= unused_since or not self._kept:
            return False
        self._kept.clear()
        self._used = 0
        return True

    def _keep(self, key: tuple[int, int], message: Message) -> None:
        before = self._kept.pop(key, None)
        self._kept[key] = message
        self._used += message.cost - (before.cost if before else 0)

    def _shrink(self) -> None:
        while self._used > self.limit and self._kept:
            _, oldest = self._kept.popitem(last=False)
            self._used -= oldest.cost

    # --- large messages --------------------------------------------------------------------------------------------

    async def section(self, message: Message, section: Section, part: tuple[int, int] | None) -> Span | None:
        """``BODY[section]<part>`` of a large message; None if it has no such part."""
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
        """``BINARY[path]<part>`` of a large message. Raises UnknownEncodingError."""
        found = binary_part(message.root, path)
        if found is None:
            return None
        start, end, encoding = found
        if not encoding:
            return _span([(start, end)], part)
        whole = Span(-1, None, ((start, end),), encoding)
        size = 0
        async for chunk in self.stream(message, whole):  # its size is known when it has been decoded
            size += len(chunk)
        first, count = part if part is not None else (0, size)
        return whole._replace(size=max(min(size - first, count), 0), skip=first)

    async def probe(self, message: Message, spans: Iterable[Span]) -> None:
        """Raise MailError if a file that these spans need cannot be opened: better now than within a literal."""
        ranges = [each for span in spans if span.octets is None for each in span.ranges]
        if ranges:
            await self._threads.run(self._probe, message, ranges)

    async def stream(self, message: Message, span: Span) -> AsyncIterator[bytes]:
        """The octets of a span in chunks; the next one is read while one is being sent. Raises MailError."""
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
        """For all sections of a FETCH, which asks for up to a thousand: file and recipe are read once."""
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
        return transfer_stream.gather(raw, CHUNK)

    def _octets(self, message: Message, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        reader = self._reader(message)
        for start, end in ranges:
            yield from reader.octets(start, end)

    def _read(self, folder_id: int, uids: Sequence[int]) -> dict[int, Message]:
        """Those that exist and can be read."""
        rows: list[tuple[Any, ...]]
        if uids[-1] - uids[0] < 2 * len(uids):
            rows = self._transport.index.query(_IN_RANGE, (folder_id, uids[0], uids[-1]))
            wanted = set(uids)
            rows = [row for row in rows if row[0] in wanted]
        else:
            rows = self._transport.index.query(_IN_LIST, (folder_id, orjson.dumps(list(uids)).decode()))
        found: dict[int, Message] = {}
        for uid, message_id, recipe, encoded_outline in rows:
            try:
                found[uid] = self._message(message_id, recipe, encoded_outline)
            except MailError as error:
                _log.error("message %s cannot be read: %s", message_id, error)
        return found

    def _message(self, message_id: str, encoded: bytes | None, encoded_outline: bytes) -> Message:
        if encoded is None:
            row = cache_fill.derive(self._transport.content, message_id)
            self._fill(row)
            encoded, encoded_outline = row.recipe, row.outline
        recipe = Recipe.decode(encoded)
        octets = None
        if recipe.size <= SMALL:
            try:
                octets = self._transport.content.octets_with(message_id, recipe)
            except MailError as error:  # the sections that do not need what cannot be read are served one by one
                _log.error("message %s can not be read as a whole: %s", message_id, error)
        return Message(message_id, recipe.size, octets, encoded_outline)

    def _fill(self, row: cache_fill.CacheRow) -> None:
        try:
            cache_fill.write(self._transport, [row])
        except (MailError, OSError, sqlite3.Error) as error:
            _log.warning("the cache of the index could not be filled: %s", error)


def _span(ranges: list[tuple[int, int]], part: tuple[int, int] | None) -> Span:
    if part is not None:
        ranges = partial(ranges, *part)
    return Span(sum(end - start for start, end in ranges), None, tuple(ranges))
