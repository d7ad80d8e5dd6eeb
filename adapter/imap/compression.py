"""COMPRESS=DEFLATE (RFC 4978): the two directions of one connection.

Invariants: what comes in is inflated in pieces of bounded size, so that a small packet can not become a large block of
memory; the peer's octets that are not yet inflated are kept and count as not yet read.
"""

from __future__ import annotations

import zlib
from collections import deque

#: Raw deflate (RFC 4978 3), without zlib's header.
_RAW = -zlib.MAX_WBITS
#: Inflated at once, at most.
PIECE = 64 << 10
#: Given to zlib at once: what it does not take it gives back, as a copy.
_BLOCK = 4 << 10
#: A window of 8 KiB and little memory: there may be thousands of connections.
_WINDOW, _MEMORY = 13, 5


class Inflater:
    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_RAW)
        self._waiting: deque[bytes] = deque()
        self._tail = b""  # of the last block that was begun
        self.waiting = 0  #: octets of the peer that are not inflated yet

    def feed(self, data: bytes) -> None:
        self.waiting += len(data)
        self._waiting.extend(data[at : at + _BLOCK] for at in range(0, len(data), _BLOCK))

    def rest(self) -> bytes:
        """What has come in and was not inflated: it comes after the end of the stream."""
        return b"".join([self._stream.unused_data, self._tail, *self._waiting])

    def read(self) -> bytes:
        """The next piece; empty if more is needed. Raises ValueError if it is not deflate data."""
        while True:
            if self._stream.eof:
                raise ValueError("the compressed stream has ended")
            try:
                piece = self._stream.decompress(self._tail, PIECE)
            except zlib.error as error:
                raise ValueError("not compressed data") from error
            self.waiting -= len(self._tail) - len(self._stream.unconsumed_tail)
            self._tail = self._stream.unconsumed_tail
            if piece or not self._waiting:
                return piece
            if not self._tail:
                self._tail = self._waiting.popleft()


class Deflater:
    def __init__(self) -> None:
        self._stream = zlib.compressobj(6, zlib.DEFLATED, -_WINDOW, _MEMORY)

    def write(self, data: bytes) -> bytes:
        """All of ``data``, flushed so that the peer can read it now."""
        return self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)
