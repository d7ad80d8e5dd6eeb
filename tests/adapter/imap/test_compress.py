"""COMPRESS=DEFLATE: octets survive a round trip, in bounded pieces."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.imap.compression import PIECE_BYTES, Deflater, Inflater


def _all(inflater: Inflater) -> bytes:
    inflated = b""
    while piece := inflater.read():
        assert len(piece) <= PIECE_BYTES
        inflated += piece
    assert inflater.waiting == 0
    return inflated


@given(st.lists(st.binary(max_size=3000), max_size=10), st.integers(1, 700))
def test_round_trip(parts: list[bytes], cut: int) -> None:
    deflater, inflater = Deflater(), Inflater()
    packed = b"".join(deflater.write(part) for part in parts)
    inflated = b""
    for at in range(0, len(packed), cut):
        inflater.feed(packed[at : at + cut])
        inflated += _all(inflater)
    assert inflated == b"".join(parts)


def test_each_write_can_be_read_at_once() -> None:
    deflater, inflater = Deflater(), Inflater()
    for line in (b"* OK one\r\n", b"* OK two\r\n"):
        inflater.feed(deflater.write(line))
        assert _all(inflater) == line


def test_large_output_is_inflated_in_pieces() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    inflater = Inflater()
    inflater.feed(packer.compress(b" " * (10 << 20)) + packer.flush(zlib.Z_SYNC_FLUSH))
    assert _all(inflater) == b" " * (10 << 20)


def test_invalid_data_is_refused() -> None:
    inflater = Inflater()
    inflater.feed(b"\xff\xff\xff")
    with pytest.raises(ValueError, match="not compressed"):
        inflater.read()


def test_data_after_the_end_of_the_stream_is_refused() -> None:
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    inflater = Inflater()
    inflater.feed(packer.compress(b"bye") + packer.flush() + b"more")
    assert inflater.read() == b"bye"
    with pytest.raises(ValueError, match="has ended"):
        inflater.read()


def test_data_after_the_end_of_the_stream_is_returned_as_it_is() -> None:
    for end, after in ((zlib.Z_SYNC_FLUSH, b""), (zlib.Z_FINISH, b""), (zlib.Z_FINISH, b"b NOOP\r\n")):
        packer, inflater = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS), Inflater()
        inflater.feed(packer.compress(b"a NOOP\r\n") + packer.flush(end) + after)
        assert inflater.read() == b"a NOOP\r\n"
        assert inflater.rest() == after
