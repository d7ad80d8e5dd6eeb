"""COMPRESS=DEFLATE (RFC 4978): the two directions of one connection.

Invariants: input is inflated in pieces of bounded size, so that a small packet cannot allocate a large block of memory;
input that is not inflated yet is kept and counts as unread.
"""

from __future__ import annotations

import zlib
from collections import deque
from typing import Final

#: Raw deflate (RFC 4978 3), without the zlib header.
_RAW: Final = -zlib.MAX_WBITS
#: The largest piece inflated at once.
PIECE_BYTES: Final = 64 << 10
#: The largest block passed to zlib at once: zlib returns a copy of what it does not consume.
_BLOCK_BYTES: Final = 4 << 10
#: A window of 8 KiB and little memory, since there may be thousands of connections.
_WINDOW_BITS: Final = 13
_MEMORY_LEVEL: Final = 5


class Inflater:
    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_RAW)
        self._blocks: deque[bytes] = deque()
        self._tail = b""  # of the block that zlib has begun
        self.waiting = 0  #: octets received that are not inflated yet

    def feed(self, data: bytes) -> None:
        self.waiting += len(data)
        self._blocks.extend(data[at : at + _BLOCK_BYTES] for at in range(0, len(data), _BLOCK_BYTES))

    def rest(self) -> bytes:
        """Return the input that is not inflated: it follows the end of the compressed stream."""
        return b"".join([self._stream.unused_data, self._tail, *self._blocks])

    def read(self) -> bytes:
        """Inflate the next piece; empty if more input is needed. Raises ValueError for anything but deflate data."""
        while True:
            if self._stream.eof:
                raise ValueError("the compressed stream has ended")
            try:
                piece = self._stream.decompress(self._tail, PIECE_BYTES)
            except zlib.error as error:
                raise ValueError("not compressed data") from error
            self.waiting -= len(self._tail) - len(self._stream.unconsumed_tail)
            self._tail = self._stream.unconsumed_tail
            if piece or not self._blocks:
                return piece
            if not self._tail:
                self._tail = self._blocks.popleft()


class Deflater:
    def __init__(self) -> None:
        self._stream = zlib.compressobj(6, zlib.DEFLATED, -_WINDOW_BITS, _MEMORY_LEVEL)

    def write(self, data: bytes) -> bytes:
        """Compress ``data`` and flush the stream, so that the peer can read all of it now."""
        return self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)
