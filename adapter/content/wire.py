"""Recipe: how to rebuild the original message bytes from the canonical file and its blobs.

A recipe is a list of segments that together cover all octets of the message. Each segment has its offset, so any range
can be served without building what precedes it. A recipe contains no information that is not in the file:
``front_matter.recipe_of`` derives it again, and the encoded form is only a cache.

Segment kinds:
- ``TEXT``: a YAML block scalar of the file, with every line indented by ``INDENT`` (or ``INDENT_CODED``) blanks.
- ``RAW``: a base64 scalar of the file.
- ``BODY``: the text after the front matter.
- ``BLOB``: an encoded blob.
- ``INLINE``: octets stored in the recipe itself (base64), for files with YAML that Markpost did not write.
- ``LOST``: a placeholder for lost content, only in the recipes of damaged messages.
"""

from __future__ import annotations

from binascii import a2b_base64
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import orjson

from adapter.content.encodings.codings import (
    CHUNK_BYTES,
    EIGHT_BIT,
    SEVEN_BIT,
    Coding,
    blob_range,
    encode_blob,
    encode_text,
    placeholder_range,
)
from protocol.errors import MailError, Reason

TEXT, RAW, BODY, BLOB, INLINE, LOST = range(6)
#: Blanks before each line of a text segment without parameters, and of one with parameters.
INDENT, INDENT_CODED = 6, 8
_VERSION = 1
_IDENTITY = Coding("identity")
_LINE, _LINE_CODED = b"\n" + b" " * INDENT, b"\n" + b" " * INDENT_CODED


class BlobReader(Protocol):
    def read(self, sha256: str, offset: int, length: int) -> bytes:
        """Read octets of a decoded part: fewer at its end; all remaining octets if ``length`` is -1."""
        ...


class Segment(NamedTuple):
    """``start``, ``size``: octets of the message. ``at``, ``to``: octets of the file (``to`` -1: up to its end).

    ``ended``: the text ends with a newline that is not part of the file's range. ``ref``: SHA-256 of the blob, or the
    inline octets in base64.
    """

    kind: int
    start: int
    size: int
    at: int = 0
    to: int = 0
    ended: int = 0
    coding: Coding | None = None
    ref: str = ""


class Recipe:
    __slots__ = ("segments", "size", "wire_sha256")

    def __init__(self, size: int, wire_sha256: str, segments: Iterable[Segment]) -> None:
        self.size = size
        self.wire_sha256 = wire_sha256
        self.segments = tuple(segments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and (self.size, self.wire_sha256, self.segments) == (
            other.size,
            other.wire_sha256,
            other.segments,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Recipe({self.size}, {self.wire_sha256!r}, {self.segments!r})"

    @property
    def blobs(self) -> tuple[str, ...]:
        """The digests of all blobs in order, without duplicates."""
        return tuple(dict.fromkeys([s.ref for s in self.segments if s.kind == BLOB]))

    @property
    def exact(self) -> bool:
        """True if every part was decoded: no segment is a blob of undecoded octets."""
        return not any(s.coding is not None and s.coding.encoding == "identity" for s in self.segments)

    def encode(self) -> bytes:
        rows: list[list[object]] = []
        for segment in self.segments:
            row: list[object] = list(segment)
            coding = segment.coding
            if coding is not None:
                row[6] = {
                    name: value
                    for name, value in zip(Coding._fields, coding)
                    if value != Coding._field_defaults.get(name)
                }
            while row and (row[-1] is None or row[-1] == 0 or row[-1] == ""):
                row.pop()
            rows.append(row)
        return orjson.dumps([_VERSION, self.size, self.wire_sha256, rows])

    @classmethod
    def decode(cls, encoded: bytes) -> Recipe:
        try:
            version, size, wire_sha256, rows = orjson.loads(encoded)
            if version != _VERSION:
                raise ValueError(f"recipe version {version}")
            return cls(size, wire_sha256, [_segment(row) for row in rows])
        except (ValueError, TypeError, KeyError) as error:
            raise MailError(Reason.BAD_CONTENT, f"malformed recipe in the index: {error}") from error


def _segment(row: list[Any]) -> Segment:
    row += [0] * (3 - len(row))  # trailing defaults are not encoded
    if len(row) > 6 and row[6] is not None:
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in row[6].items()}
        row[6] = Coding(**values)
    return Segment(*row)


def _build(file: bytes, segment: Segment) -> bytes:
    """Build the octets of a segment other than a blob."""
    kind, _, size, at, to, ended, coding, ref = segment
    if kind == TEXT:
        if coding is None:
            text = file[at:to].replace(_LINE, b"\r\n")
            return text + b"\r\n" if ended else text
        text = file[at:to].replace(_LINE_CODED, b"\n")
        return encode_text(text + b"\n" if ended else text, coding)
    if kind == BODY and coding is not None:
        if coding in (SEVEN_BIT, EIGHT_BIT):
            return file[at:].replace(b"\n", b"\r\n")
        return encode_text(file[at:], coding)
    if kind == LOST:
        return b"".join(placeholder_range(coding or _IDENTITY, size, 0, size))
    try:
        return a2b_base64(file[at:to] if kind == RAW else ref)
    except ValueError as error:
        raise MailError(Reason.BAD_CONTENT, "a raw segment is not base64") from error


def rebuild(file: bytes, recipe: Recipe, blobs: BlobReader) -> bytes:
    """Rebuild the octets of a message; raises MailError(BAD_CONTENT) if file, blobs and recipe do not match."""
    octets = b"".join(
        [
            _build(file, segment)
            if segment.kind != BLOB
            else encode_blob(blobs.read(segment.ref, 0, -1), segment.coding or _IDENTITY)
            for segment in recipe.segments
        ]
    )
    if len(octets) != recipe.size:
        raise MailError(Reason.BAD_CONTENT, f"rebuilt {len(octets)} octets instead of {recipe.size}")
    return octets


class RangeReader:
    """Reader for many ranges of one message; file and recipe are loaded once.

    Reading ascending ranges, such as the parts of a message, costs no more than reading the whole message: bisection
    finds the first segment, and the segment built last is cached. Thread-safe.
    """

    __slots__ = ("_blobs", "_built", "_file", "_starts", "recipe")

    def __init__(self, file: bytes, recipe: Recipe, blobs: BlobReader) -> None:
        self._file = file
        self._blobs = blobs
        self._starts = [segment.start for segment in recipe.segments]
        self._built: tuple[Segment | None, bytes] = (None, b"")
        self.recipe = recipe

    def segments(self, start: int, stop: int) -> Iterator[Segment]:
        """The segments that overlap a range."""
        for number in range(max(bisect_right(self._starts, start) - 1, 0), len(self._starts)):
            segment = self.recipe.segments[number]
            if segment.start >= stop:
                return
            if max(start, segment.start) < min(stop, segment.start + segment.size):
                yield segment

    def octets(self, start: int, stop: int) -> Iterator[bytes]:
        """Octets [start, stop) of the message in chunks of at most 256 KiB; segments before ``start`` are not built."""
        stop = min(stop, self.recipe.size)
        for segment in self.segments(start, stop):
            first = max(start, segment.start)
            last = min(stop, segment.start + segment.size)
            produced = 0
            for chunk in self._segment_octets(segment, first - segment.start, last - segment.start):
                produced += len(chunk)
                yield chunk
            if produced != last - first:
                raise MailError(Reason.BAD_CONTENT, f"a segment produced {produced} octets instead of {last - first}")

    def read(self, start: int, stop: int) -> bytes:
        return b"".join(self.octets(start, stop))

    def _segment_octets(self, segment: Segment, start: int, stop: int) -> Iterator[bytes]:
        if segment.kind in (BLOB, LOST):
            return segment_octets(self._file, segment, self._blobs, start, stop)
        last, built = self._built
        if last is not segment:
            built = _build(self._file, segment)
            self._built = (segment, built)
        return _chunks(built, start, stop)


def octets(file: bytes, recipe: Recipe, blobs: BlobReader, start: int, stop: int) -> Iterator[bytes]:
    """Octets [start, stop) of the message. Use :class:`RangeReader` to read many ranges of one message."""
    return RangeReader(file, recipe, blobs).octets(start, stop)


def segment_octets(file: bytes, segment: Segment, blobs: BlobReader, start: int, stop: int) -> Iterator[bytes]:
    if segment.kind == LOST:
        return placeholder_range(segment.coding or _IDENTITY, segment.size, start, stop)
    if segment.kind != BLOB:
        return _chunks(_build(file, segment), start, stop)

    def read(offset: int, length: int) -> bytes:
        return blobs.read(segment.ref, offset, length)

    return blob_range(read, segment.coding or _IDENTITY, segment.size, start, stop)


def _chunks(built: bytes, start: int, stop: int) -> Iterator[bytes]:
    for at in range(start, min(stop, len(built)), CHUNK_BYTES):
        yield built[at : min(at + CHUNK_BYTES, stop)]
