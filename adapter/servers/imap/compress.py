"""COMPRESS=DEFLATE (RFC 4978): the two directions of one connection.

Invariants: what comes in is inflated in pieces of bounded size, so that a small packet can not become a large block of
memory; the peer's octets that are not yet inflated are kept and count as not yet read.
"""

from __future__ import annotations

import zlib

#: Raw deflate (RFC 4978 3), without zlib's header.
_RAW = -zlib.MAX_WBITS
#: Inflated at once, at most.
PIECE = 64 << 10
#: A window of 8 KiB and little memory: there may be thousands of connections.
_WINDOW, _MEMORY = 13, 5


class Inflater:
    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_RAW)
        self._waiting = b""

    @property
    def waiting(self) -> int:
        """Octets of the peer that are not inflated yet."""
        return len(self._waiting)

    def feed(self, data: bytes) -> None:
        self._waiting += data

    def read(self) -> bytes:
        """The next piece; empty if more is needed. Raises ValueError if it is not deflate data."""
        if self._stream.eof:
            raise ValueError("the compressed stream has ended")
        try:
            piece = self._stream.decompress(self._waiting, PIECE)
        except zlib.error as error:
            raise ValueError("not compressed data") from error
        self._waiting = self._stream.unconsumed_tail
        return piece


class Deflater:
    def __init__(self) -> None:
        self._stream = zlib.compressobj(6, zlib.DEFLATED, -_WINDOW, _MEMORY)

    def write(self, data: bytes) -> bytes:
        """All of ``data``, flushed so that the peer can read it now."""
        return self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)
