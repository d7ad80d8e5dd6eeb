"""Blobs of a message being taken in: hashed, kept once each, small ones in memory and large ones in a sink."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

#: Parts of at most this many octets on the wire are handled in one piece.
LARGE = 256 * 1024


class BlobWriter(Protocol):
    """A file in the making; either ``finish`` or ``abort`` is called, once."""

    def write(self, chunk: bytes) -> object: ...
    def finish(self) -> object:
        """Returns a handle for what was written."""
        ...

    def abort(self) -> None: ...


class BlobSink(Protocol):
    def start(self) -> BlobWriter: ...


@dataclass(frozen=True, slots=True)
class BlobDraft:
    """A blob to be stored: ``data`` in memory, or ``handle`` as the sink returned it."""

    sha256: str
    size: int
    data: bytes | None
    handle: object | None


class Drafts:
    """The blobs of one message. Reads back those in memory, as a BlobReader."""

    def __init__(self, sink: BlobSink | None) -> None:
        self._sink = sink
        self._drafts: dict[str, BlobDraft] = {}

    def all(self) -> tuple[BlobDraft, ...]:
        return tuple(self._drafts.values())

    def add(self, data: bytes) -> str:
        digest = sha256(data).hexdigest()
        if digest not in self._drafts:
            self._drafts[digest] = BlobDraft(digest, len(data), data, None)
        return digest

    def add_chunks(self, chunks: Iterable[bytes]) -> tuple[str, int]:
        """(sha256, size) of a large blob; an exception of the chunks leaves nothing behind."""
        if self._sink is None:
            data = b"".join(chunks)
            return self.add(data), len(data)
        whole, size = sha256(), 0
        writer = self._sink.start()
        try:
            for chunk in chunks:
                whole.update(chunk)
                size += len(chunk)
                writer.write(chunk)
        except BaseException:
            writer.abort()
            raise
        digest = whole.hexdigest()
        if digest in self._drafts:
            writer.abort()
        else:
            self._drafts[digest] = BlobDraft(digest, size, None, writer.finish())
        return digest, size

    def size(self, digest: str) -> int:
        return self._drafts[digest].size

    def in_memory(self, digest: str) -> bool:
        return self._drafts[digest].data is not None

    def read(self, sha256: str, offset: int, length: int) -> bytes:
        data = self._drafts[sha256].data or b""
        return data[offset:] if length < 0 else data[offset : offset + length]

    def keep(self, digests: Iterable[str]) -> None:
        """Forget all in memory that are not named; what went to the sink stays known, for the caller to dispose of."""
        wanted = set(digests)
        for digest in [d for d, draft in self._drafts.items() if draft.data is not None and d not in wanted]:
            del self._drafts[digest]


def release_pages(buffer: object, start: int, end: int) -> None:
    """Let go of the memory of a mapped file's range that is done with; it is read again if it is touched again."""
    advise: Callable[[int, int, int], None] | None = getattr(buffer, "madvise", None)
    if advise is None:
        return
    # Only a read-only mapping has nothing to lose.
    with memoryview(buffer) as view:  # type: ignore[arg-type]
        if not view.readonly:
            return
    from mmap import MADV_DONTNEED, PAGESIZE

    start += -start % PAGESIZE
    end -= end % PAGESIZE
    if start < end:
        advise(MADV_DONTNEED, start, end - start)
