"""FETCH plans, prepared once per list of items: clients fetch the same items of one message after another.

A plan is the format of a whole row and, for each item, the function that fills its places: with one column, or with two
for content (the head of the literal and its octets).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

from adapter.read_model.fetch.bodies import Message, UnknownEncodingError, binary_of, section_of
from adapter.read_model.fetch.encoded_attributes import CachedAttribute
from adapter.read_model.folder_columns import Numbers
from protocol.imap.commands.fetch_items import Attribute, BinaryPart, BinarySize, BodyPart, FetchItem, Preview
from protocol.imap.responses import fetch as form
from protocol.imap.wire.strings import string
from protocol.mime.sections import Section

if TYPE_CHECKING:
    from adapter.read_model.cached_folder import CachedFolder
    from protocol.imap.session_view import View

Content: TypeAlias = BodyPart | BinaryPart | BinarySize
CONTENT: Final = (BodyPart, BinaryPart, BinarySize)

_CACHED: Final = {
    Attribute.ENVELOPE: CachedAttribute.ENVELOPE,
    Attribute.BODY: CachedAttribute.BODY,
    Attribute.BODYSTRUCTURE: CachedAttribute.STRUCTURE,
    Attribute.EMAILID: CachedAttribute.EMAIL_ID,
    Attribute.THREADID: CachedAttribute.THREAD_ID,
}
_FORMATS: Final = {
    Attribute.UID: form.UID,
    Attribute.FLAGS: form.FLAGS,
    Attribute.INTERNALDATE: form.INTERNALDATE,
    Attribute.SAVEDATE: form.SAVEDATE,
    Attribute.RFC822_SIZE: form.RFC822_SIZE,
    Attribute.MODSEQ: form.MODSEQ,
    Attribute.ENVELOPE: form.ENVELOPE,
    Attribute.BODY: form.BODY,
    Attribute.BODYSTRUCTURE: form.BODYSTRUCTURE,
    Attribute.EMAILID: form.EMAILID,
    Attribute.THREADID: form.THREADID,
}
_WHOLE: Final = Section()
# Plans with more are not cached.
_MAX_ITEMS: Final = 32
_MAX_LABEL_BYTES: Final = 2048

Column: TypeAlias = Iterable[int] | Iterable[bytes]


class Block(NamedTuple):
    """Some messages, as columns: numbers, UIDs, the cached attributes, contents if the FETCH needs them, and the places
    in the columns of the folder."""

    folder: CachedFolder
    numbers: Sequence[int]
    uids: Sequence[int]
    attributes: Sequence[Sequence[bytes | None]] = ()
    messages: Sequence[Message] = ()
    places: slice | Sequence[int] = ()
    view: View | None = None  # of the session, if FLAGS are fetched

    def part(self, start: int, stop: int) -> Block:
        """Return some of these messages, without contents and places."""
        attributes = [column[start:stop] for column in self.attributes]
        return Block(self.folder, self.numbers[start:stop], self.uids[start:stop], attributes, view=self.view)

    def alive(self, failed: list[int]) -> Block:
        """Return the messages that exist and have all attributes, with their places; add the others to ``failed``."""
        places = self.folder.places(self.uids)
        if isinstance(places, slice) and not (self.attributes and any(None in column for column in self.attributes)):
            return self._replace(places=places)
        rows = range(places.start, places.stop) if isinstance(places, slice) else places
        alive = [
            index
            for index, place in enumerate(rows)
            if place >= 0 and all(column[index] is not None for column in self.attributes)
        ]
        chosen = set(alive)
        failed += [uid for index, uid in enumerate(self.uids) if index not in chosen]
        return Block(
            self.folder,
            [self.numbers[index] for index in alive],
            [self.uids[index] for index in alive],
            [[column[index] for index in alive] for column in self.attributes],
            [self.messages[index] for index in alive] if self.messages else (),
            [rows[index] for index in alive],
            self.view,
        )

    def of(self, column: list[int] | Numbers) -> Iterable[int]:
        """Return the values of these messages in a column of the folder."""
        places = self.places
        return column[places] if isinstance(places, slice) else [column[place] for place in places]


#: Returns the columns of an item, and adds UIDs with undecodable content to the list.
Fill: TypeAlias = Callable[[Block, list[int]], Sequence[Column]]


class Step(NamedTuple):
    item: FetchItem
    format: bytes
    fill: Fill


class Plan(NamedTuple):
    steps: tuple[Step, ...]
    attributes: tuple[CachedAttribute, ...]
    contents: int  # items that need the content
    row: bytes  # its format


def plan_of(items: tuple[FetchItem, ...], utf8: bool, uid_only: bool) -> Plan:
    """Return the plan of these items. Plans of ordinary requests are cached; others could take much memory."""
    labels = sum(len(item.label) for item in items if isinstance(item, CONTENT))
    ordinary = len(items) <= _MAX_ITEMS and labels <= _MAX_LABEL_BYTES
    return (_plan_of if ordinary else _plan_of.__wrapped__)(items, utf8, uid_only)


@lru_cache(512)
def _plan_of(items: tuple[FetchItem, ...], utf8: bool, uid_only: bool) -> Plan:
    needed = dict.fromkeys(_CACHED[item] for item in items if isinstance(item, Attribute) and item in _CACHED)
    if any(isinstance(item, Preview) for item in items):
        needed[CachedAttribute.PREVIEW] = None
    attributes = tuple(needed)
    steps = tuple(_step(item, attributes, utf8) for item in items)
    contents = sum(isinstance(item, CONTENT) for item in items)
    return Plan(steps, attributes, contents, form.row_format([step.format for step in steps], uid_only=uid_only))


def _step(item: FetchItem, attributes: Sequence[CachedAttribute], utf8: bool) -> Step:
    if isinstance(item, CONTENT):
        if isinstance(item, BinarySize):
            return Step(item, item.label + b" %d", _sizes(item))
        return Step(item, form.section(item.label) + b"%b", _literals(item))
    if isinstance(item, Preview):
        place = attributes.index(CachedAttribute.PREVIEW)
        return Step(
            item, form.PREVIEW, lambda block, _: ([string(cast("bytes", p), utf8) for p in block.attributes[place]],)
        )
    if item in _CACHED:
        place = attributes.index(_CACHED[item])
        return Step(item, _FORMATS[item], lambda block, _: (cast("Sequence[bytes]", block.attributes[place]),))
    return Step(item, _FORMATS[item], _FILL[item])


def _flags(block: Block) -> Iterable[bytes]:
    masks, flags = block.of(block.folder.columns.masks), block.folder.flags
    if block.view is None:
        return map(flags.encoded.__getitem__, masks)
    return block.view.encoded_flags(block.uids, masks, flags)


_FILL: Final[dict[Attribute, Fill]] = {
    Attribute.UID: lambda block, _: (block.uids,),
    Attribute.FLAGS: lambda block, _: (_flags(block),),
    Attribute.INTERNALDATE: lambda block, _: (map(form.date_time, block.of(block.folder.columns.internal_dates)),),
    Attribute.SAVEDATE: lambda block, _: (map(form.date_time, block.of(block.folder.columns.save_dates)),),
    Attribute.RFC822_SIZE: lambda block, _: (block.of(block.folder.columns.sizes),),
    Attribute.MODSEQ: lambda block, _: (block.of(block.folder.columns.modseqs),),
}


# --- content ---------------------------------------------------------------------------------------------------------


def contents_of(item: Content, block: Block, undecodable: list[int]) -> Sequence[bytes | None]:
    """Return the octets of an item for each of these small messages; None where there is no such part."""
    if isinstance(item, BodyPart) and item.section == _WHOLE:
        values: list[bytes | None] = [_text(message) for message in block.messages]
    else:
        pairs = zip(block.uids, block.messages, strict=True)
        values = [_content(item, uid, message, undecodable) for uid, message in pairs]
    if isinstance(item, BinarySize) or item.partial is None:
        return values
    start, count = item.partial
    return [None if value is None else value[start : start + count] for value in values]


def _content(item: Content, uid: int, message: Message, undecodable: list[int]) -> bytes | None:
    octets = message.octets or b""
    if isinstance(item, BodyPart):
        value = section_of(octets, message.root, item.section)
        return value if value is None or not message.has_nul else form.without_nul(value)
    if item.section is not None:
        return section_of(octets, message.root, item.section)
    try:
        return binary_of(octets, message.root, item.path)
    except UnknownEncodingError:
        undecodable.append(uid)
        return None


def _text(message: Message) -> bytes:
    octets = message.octets or b""
    return form.without_nul(octets) if message.has_nul else octets


def _sizes(item: Content) -> Fill:
    return lambda block, undecodable: ([len(value or b"") for value in contents_of(item, block, undecodable)],)


def _literals(item: Content) -> Fill:
    binary = isinstance(item, BinaryPart)
    if isinstance(item, BodyPart) and item.section == _WHOLE and item.partial is None:
        return _whole

    def fill(block: Block, undecodable: list[int]) -> Sequence[Column]:
        values = contents_of(item, block, undecodable)
        return [_literal(value, binary=binary) for value in values], [value or b"" for value in values]

    return fill


def _whole(block: Block, _: list[int]) -> Sequence[Column]:
    octets = [_text(message) for message in block.messages]
    return [b"{%d}\r\n" % len(each) for each in octets], octets


# RFC 3501 4.3, RFC 3516 4.3
def _literal(value: bytes | None, *, binary: bool) -> bytes:
    if value is None:
        return b"NIL"
    return (b"~{%d}\r\n" if binary and b"\0" in value else b"{%d}\r\n") % len(value)
