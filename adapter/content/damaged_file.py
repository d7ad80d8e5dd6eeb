"""Recipes of damaged messages: the original size, with placeholders for lost content.

A lost blob is replaced by a placeholder. A canonical file that fails its checksum is still used if the octets rebuilt
from it match the original. Otherwise the message is replaced by a stand-in: the headers stored in the index, a sentence
that explains the damage, and the text left in the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from email.utils import formatdate
from typing import NamedTuple

from pybase64 import b64encode_as_string

from adapter.content import front_matter, wire
from adapter.content.encodings.codings import Coding
from adapter.content.wire import BlobReader, Recipe, Segment
from protocol.errors import MailError

_MAX_TEXT_BYTES = 64 << 10  # how much of a damaged file the stand-in shows
_NOTE = (
    "The file of this message in the mail store is damaged and no intact copy was found.\r\n"
    "The text that is left in the file follows.\r\n\r\n"
)


class IndexedMessage(NamedTuple):
    """The fields of a message that the index stores."""

    size: int
    wire_sha256: str
    sender: str
    subject: str
    header_id: str
    arrived_at: int


def recipe_without_blobs(recipe: Recipe, lost: Collection[str]) -> Recipe:
    """Replace lost blobs in a recipe by placeholders of the same size."""
    segments = [
        segment._replace(kind=wire.LOST, ref="") if segment.kind == wire.BLOB and segment.ref in lost else segment
        for segment in recipe.segments
    ]
    return Recipe(recipe.size, recipe.wire_sha256, segments)


def recipe_of_damaged_file(file: bytes, indexed: IndexedMessage, blobs: BlobReader) -> Recipe:
    """Make a recipe for a canonical file that does not match its checksum."""
    try:
        recipe = front_matter.recipe_of(file)
        if hashlib.sha256(wire.rebuild(file, recipe, blobs)).hexdigest() == indexed.wire_sha256:
            return recipe  # the damage does not affect the wire octets
    except (MailError, ValueError, LookupError, TypeError):
        pass
    return _stand_in(file, indexed)


def _stand_in(file: bytes, indexed: IndexedMessage) -> Recipe:
    head = _head(indexed) + _NOTE.encode()
    octets = (head + _readable_text(file))[: indexed.size]
    segments = [Segment(wire.INLINE, 0, len(octets), ref=b64encode_as_string(octets))]
    if len(octets) < indexed.size:
        segments.append(Segment(wire.LOST, len(octets), indexed.size - len(octets), coding=Coding("8bit")))
    return Recipe(indexed.size, indexed.wire_sha256, segments)


def _head(indexed: IndexedMessage) -> bytes:
    fields = [
        ("Date", formatdate(indexed.arrived_at)),
        ("From", indexed.sender),
        ("Subject", indexed.subject),
        ("Message-ID", indexed.header_id),
        ("MIME-Version", "1.0"),
        ("Content-Type", "text/plain; charset=utf-8"),
        ("Content-Transfer-Encoding", "8bit"),
    ]
    lines = (f"{name}: {' '.join(value.split())}\r\n" for name, value in fields if value)
    return "".join(lines).encode("utf-8", "replace") + b"\r\n"


def _readable_text(file: bytes) -> bytes:
    """The text after the front matter, or the whole file if the front matter has no end."""
    try:
        _, body = front_matter.split(file)
    except MailError:
        body = 0
    text = file[body : body + _MAX_TEXT_BYTES].decode("utf-8", "replace").replace("\0", "\ufffd")
    return "\r\n".join(text.splitlines()).encode() + b"\r\n"
