"""Recipes of damaged messages: exactly as many octets as arrived, with placeholders for what is lost.

A lost blob is replaced part by part. A canonical file that does not match its checksum is used if it still gives the
octets that arrived; else the message is a stand-in: the headers that the index knows, a sentence that says what
happened, and the text that the file still has.
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

_MAX_TEXT = 64 << 10  # octets of a damaged file that are shown
_NOTE = (
    "The file of this message in the mail store is damaged and no intact copy was found.\r\n"
    "What follows is the text that the file still has.\r\n\r\n"
)


class Known(NamedTuple):
    """What the index knows of a message."""

    size: int
    wire_sha256: str
    sender: str
    subject: str
    header_id: str
    arrived_at: int


def without_blobs(recipe: Recipe, lost: Collection[str]) -> Recipe:
    """The same octets, with placeholders for these blobs."""
    segments = [
        segment._replace(kind=wire.LOST, ref="") if segment.kind == wire.BLOB and segment.ref in lost else segment
        for segment in recipe.segments
    ]
    return Recipe(recipe.size, recipe.wire_sha256, segments)


def of_damaged_file(file: bytes, known: Known, blobs: BlobReader) -> Recipe:
    """A recipe for a canonical file that does not match its checksum."""
    try:
        recipe = front_matter.recipe_of(file)
        if hashlib.sha256(wire.rebuild(file, recipe, blobs)).hexdigest() == known.wire_sha256:
            return recipe  # the damage is in what only people read
    except (MailError, ValueError, LookupError, TypeError):
        pass
    return _stand_in(file, known)


def _stand_in(file: bytes, known: Known) -> Recipe:
    head = _head(known) + _NOTE.encode()
    octets = (head + _readable_text(file))[: known.size]
    segments = [Segment(wire.INLINE, 0, len(octets), ref=b64encode_as_string(octets))]
    if len(octets) < known.size:
        segments.append(Segment(wire.LOST, len(octets), known.size - len(octets), coding=Coding("8bit")))
    return Recipe(known.size, known.wire_sha256, segments)


def _head(known: Known) -> bytes:
    fields = [
        ("Date", formatdate(known.arrived_at)),
        ("From", known.sender),
        ("Subject", known.subject),
        ("Message-ID", known.header_id),
        ("MIME-Version", "1.0"),
        ("Content-Type", "text/plain; charset=utf-8"),
        ("Content-Transfer-Encoding", "8bit"),
    ]
    lines = (f"{name}: {' '.join(value.split())}\r\n" for name, value in fields if value)
    return "".join(lines).encode("utf-8", "replace") + b"\r\n"


def _readable_text(file: bytes) -> bytes:
    """The text behind the front matter, or all of the file if that cannot be told."""
    try:
        _, body = front_matter.split(file)
    except MailError:
        body = 0
    text = file[body : body + _MAX_TEXT].decode("utf-8", "replace").replace("\0", "\ufffd")
    return "\r\n".join(text.splitlines()).encode() + b"\r\n"
