"""Reading stored content: octets of a message, whole or in part, without loading more than needed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator

from adapter.content import damaged_file, front_matter, wire
from adapter.content.parts import decode_outline
from adapter.content.wire import RangeReader, Recipe
from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.store.index import Index
from adapter.store.queries import content_rows
from protocol.errors import MailError, Reason
from protocol.mime.parser import Part, scan
from protocol.mime.sections import Section, section_bytes, section_ranges


class ContentReader:
    """Also the :class:`~adapter.content.wire.BlobReader` of the store."""

    def __init__(self, directories: Directories, index: Index) -> None:
        self._directories = directories
        self._index = index

    def file(self, message_id: str) -> bytes:
        """The canonical Markdown file. Raises ``NO_SUCH_MESSAGE``, or ``UNREADABLE`` if it cannot be read now."""
        try:
            with self._directories.stable(layout.message_directory(message_id)) as directory:
                return disk.read_file(directory, layout.message_name(message_id))
        except (OSError, ValueError) as error:
            raise _failed_read(message_id, error) from error

    def recipe(self, message_id: str, file: bytes | None = None) -> Recipe:
        """The recipe for rebuilding the octets: from the index's cache, else from the file itself."""
        cached = self._index.ask(content_rows.cached_recipe, message_id)
        if cached is not None:
            return Recipe.decode(cached)
        return self.derive_recipe(message_id, self.file(message_id) if file is None else file)

    def derive_recipe(self, message_id: str, file: bytes) -> Recipe:
        """The recipe from the file; for a damaged message one with placeholders for lost parts."""
        parts = self._index.ask(content_rows.damaged_parts, message_id)
        if not parts:
            return front_matter.recipe_of(file)
        if "" not in parts:
            return damaged_file.recipe_without_blobs(front_matter.recipe_of(file), parts.keys())
        if hashlib.sha256(file).hexdigest() != parts[""]:
            raise MailError(Reason.UNREADABLE, f"{message_id}: changed since the last repair; run markpost repair")
        indexed = self._index.ask(content_rows.indexed_message, message_id)
        if indexed is None:
            raise MailError(Reason.NO_SUCH_MESSAGE, message_id)
        return damaged_file.recipe_of_damaged_file(file, indexed, self)

    def octets(self, message_id: str) -> bytes:
        """Exactly the octets that arrived."""
        file = self.file(message_id)
        return wire.rebuild(file, self.recipe(message_id, file), self)

    def octets_with(self, message_id: str, recipe: Recipe) -> bytes:
        """The same, for a caller that has the recipe already (many messages: one query for all recipes)."""
        return wire.rebuild(self.file(message_id), recipe, self)

    def ranges(self, message_id: str, recipe: Recipe | None = None) -> RangeReader:
        """A reader of many ranges of one message: its file is read now, and not again."""
        file = self.file(message_id)
        return RangeReader(file, self.recipe(message_id, file) if recipe is None else recipe, self)

    def stream(self, message_id: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """A range of the octets in chunks; octets outside the range are not rebuilt."""
        reader = self.ranges(message_id)
        return reader.octets(start, reader.recipe.size if stop is None else stop)

    def probe(self, reader: RangeReader, ranges: Iterable[tuple[int, int]]) -> None:
        """Raise the error that reading these ranges would raise for a blob that cannot be read.

        Opens every blob that the ranges need and reads its first octet; an I/O error further inside is not detected.
        """
        blobs = {segment.ref for each in ranges for segment in reader.segments(*each) if segment.kind == wire.BLOB}
        for sha256 in blobs:
            self.read(sha256, 0, 1)

    def section(self, message_id: str, section: Section) -> list[tuple[int, int]] | bytes | None:
        """The content of ``BODY[section]``: ranges for :meth:`stream`, or the octets of chosen header fields.

        None if the message has no such part. No more than one header block is loaded.
        """
        root = self.outline(message_id)
        if not section.what.startswith("HEADER.FIELDS"):
            return section_ranges(b"", root, section)
        block = section_ranges(b"", root, Section(section.path, "HEADER"))
        if not block:
            return None if block is None else b""
        header = b"".join(self.stream(message_id, *block[0]))
        return section_bytes(header, scan(header), Section((), section.what, section.fields))

    def outline(self, message_id: str) -> Part:
        """Offsets of the parts: from the index's cache, else from a scan of the octets."""
        cached = self._index.ask(content_rows.cached_outline, message_id)
        return decode_outline(cached) if cached is not None else scan(self.octets(message_id))

    def read(self, sha256: str, offset: int, length: int) -> bytes:
        """Part of a blob; ``length`` -1 is everything from ``offset`` on. Raises as :meth:`file` does."""
        try:
            with self._directories.stable(layout.blob_directory(sha256)) as directory:
                fd = disk.open_read(directory, sha256)
            try:
                if length < 0:
                    length = os.fstat(fd).st_size - offset
                return os.pread(fd, length, offset)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:
            raise _failed_read(f"blob {sha256}", error) from error


def _failed_read(what: str, error: OSError | ValueError) -> MailError:
    unreadable = isinstance(error, OSError) and disk.is_unreadable(error)
    return MailError(Reason.UNREADABLE if unreadable else Reason.NO_SUCH_MESSAGE, f"{what}: {error}")
