"""Blobs of a message during ingest: hashed and deduplicated, small ones in memory, large ones in a sink."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

#: Larger parts (in octets on the wire) are processed in chunks and written to the sink.
LARGE_PART_BYTES = 256 * 1024


class BlobWriter(Protocol):
    """A blob file being written. The caller calls either ``finish`` or ``abort``, exactly once."""

    def write(self, chunk: bytes) -> object: ...
    def finish(self) -> object:
        """Close the file and return a handle to it."""
        ...

    def abort(self) -> None: ...


class BlobSink(Protocol):
    def start(self) -> BlobWriter: ...


@dataclass(frozen=True, slots=True)
class BlobDraft:
    """A blob to store: either ``data`` in memory or the ``handle`` that the sink returned."""

    sha256: str
    size: int
    data: bytes | None
    handle: object | None


class BlobDrafts:
    """The blobs of one message. Also a BlobReader for the blobs in memory."""

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
        """Add a large blob and return (sha256, size). If ``chunks`` raises, the partial blob is discarded."""
        if self._sink is None:
            data = b"".join(chunks)
            return self.add(data), len(data)
        hasher, size = sha256(), 0
        writer = self._sink.start()
        try:
            for chunk in chunks:
                hasher.update(chunk)
                size += len(chunk)
                writer.write(chunk)
        except BaseException:
            writer.abort()
            raise
        digest = hasher.hexdigest()
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

    def retain(self, digests: Iterable[str]) -> None:
        """Drop in-memory blobs that are not in ``digests``. Blobs in the sink stay listed for the caller to delete."""
        retained = set(digests)
        for digest in [d for d, draft in self._drafts.items() if draft.data is not None and d not in retained]:
            del self._drafts[digest]


def release_pages(buffer: object, start: int, end: int) -> None:
    """Release the memory of a range of a mapped file (madvise); a later access reads the range from disk again."""
    advise: Callable[[int, int, int], None] | None = getattr(buffer, "madvise", None)
    if advise is None:
        return
    # MADV_DONTNEED would discard changes in a writable mapping.
    with memoryview(buffer) as view:  # type: ignore[arg-type]
        if not view.readonly:
            return
    from mmap import MADV_DONTNEED, PAGESIZE

    start += -start % PAGESIZE
    end -= end % PAGESIZE
    if start < end:
        advise(MADV_DONTNEED, start, end - start)
