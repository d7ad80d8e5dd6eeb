"""Base64 as mailers write it: lines of equal length with one kind of line ending, none after the last line.

A base64 range is *exact* if it equals ``encode(decode(range), line, eol)``. The decoded octets, the line length and the
line ending then suffice to reproduce it, and any octet range can be encoded without what precedes it. Line length 0
means a single line.
"""

from __future__ import annotations

from binascii import Error
from collections.abc import Callable, Iterator
from functools import lru_cache
from struct import Struct

from pybase64 import b64decode, b64encode

from protocol.mime.parser import Buffer

CHUNK_BYTES = 192 * 1024
_MAX_LINE_BYTES = 16 * 1024
_EDGE_BYTES = 4096


class InexactError(Exception):
    """Encoding the decoded form does not reproduce the octets."""


@lru_cache(maxsize=64)
def _splitter(line: int, count: int) -> Callable[[bytes], tuple[bytes, ...]]:
    return Struct(f"{line}s" * count).unpack


def fold(characters: bytes, line: int, eol: bytes) -> bytes:
    """Break ``characters`` into lines, without a line ending after the last."""
    if not line or len(characters) <= line:
        return characters
    count, rest = divmod(len(characters), line)
    if count <= 256:
        lines: list[bytes] = [characters[i : i + line] for i in range(0, count * line, line)]
    else:  # one C call per 256 lines is three times faster than slicing
        split, step = _splitter(line, 256), line * 256
        batched = count - count % 256
        lines = []
        for i in range(0, batched * line, step):
            lines += split(characters[i : i + step])
        lines += [characters[i : i + line] for i in range(batched * line, count * line, line)]
    if rest:
        lines.append(characters[-rest:])
    return eol.join(lines)


def encode(data: bytes, line: int, eol: bytes) -> bytes:
    return fold(b64encode(data), line, eol)


def detect(buffer: Buffer, start: int, end: int) -> tuple[int, int, int, bytes]:
    """Trim newlines and blanks around a range and detect its line format: (start, end, line length, line ending)."""
    head = bytes(buffer[start : min(end, start + _EDGE_BYTES)])
    start += len(head) - len(head.lstrip(b"\r\n \t"))
    tail = bytes(buffer[max(start, end - _EDGE_BYTES) : end])
    end -= len(tail) - len(tail.rstrip(b"\r\n \t"))
    first = bytes(buffer[start : min(end, start + _MAX_LINE_BYTES)])
    line = first.find(b"\n")
    if line < 0:
        return start, end, 0, b"\r\n"
    if first[line - 1 : line] == b"\r":
        return start, end, line - 1, b"\r\n"
    return start, end, line, b"\n"


def decode_exact(buffer: Buffer, start: int, end: int, line: int, eol: bytes) -> Iterator[bytes]:
    """Decode an exact range in chunks; raises :class:`InexactError` at the first octet that would differ."""
    if start >= end:
        raise InexactError
    # A multiple of four lines is a multiple of four characters whatever the line length.
    step = max(1, CHUNK_BYTES // (4 * (line + len(eol)))) * 4 * (line + len(eol)) if line else CHUNK_BYTES
    for at in range(start, end, step):
        stop = min(at + step, end)
        encoded = bytes(buffer[at:stop])
        characters = _unfold(encoded, line, eol) if line else encoded
        if characters.endswith(b"=") if stop < end else encoded.endswith(eol):
            raise InexactError
        try:
            data = b64decode(characters, validate=True)
        except Error as error:
            raise InexactError from error
        if b64encode(data) != characters:  # non-zero padding bits
            raise InexactError
        yield data


def _unfold(encoded: bytes, line: int, eol: bytes) -> bytearray:
    """Undo :func:`fold`: remove the line endings. Every line except the last must have this length."""
    stride = line + len(eol)
    ends = len(encoded) // stride
    characters = bytearray(encoded)
    for position, octet in enumerate(eol, line):
        if encoded[position::stride] != bytes([octet]) * ends:
            raise InexactError
        del characters[line :: stride - (position - line)]  # four times faster than searching for them
    return characters


def encoded_range(
    read: Callable[[int, int], bytes], line: int, eol: bytes, size: int, start: int, stop: int
) -> Iterator[bytes]:
    """Octets [start, stop) of the ``size`` encoded octets, in chunks; ``read(offset, length)`` returns decoded data."""
    stride = line + len(eol) if line else 0
    lines_per_chunk = max(1, CHUNK_BYTES // stride) if line else 0
    at = start
    while at < stop:
        if line:
            first = at // stride
            count = min(lines_per_chunk, (stop - 1) // stride - first + 1)
            base, characters = first * stride, first * line
            length = count * line
        else:
            base = characters = at - at % 4
            length = min(CHUNK_BYTES, stop - base)
        skew = characters % 4
        groups = (skew + length + 3) // 4
        encoded = b64encode(read((characters - skew) // 4 * 3, groups * 3))
        chunk = fold(encoded[skew : skew + length], line, eol)
        if line and base + count * stride < size:
            chunk += eol
        chunk = chunk[at - base : stop - base]
        if not chunk:  # the blob is shorter than recorded; the caller detects the missing octets
            return
        yield chunk
        at += len(chunk)


def decode_tolerant(buffer: Buffer, start: int, end: int) -> Iterator[bytes]:
    """Decode an inexact base64 range as mail readers do: skip invalid characters, never raise."""
    rest = b""
    for at in range(start, end, CHUNK_BYTES):
        characters = rest + bytes(buffer[at : min(at + CHUNK_BYTES, end)]).translate(None, _NOT_BASE64)
        whole = len(characters) // 4 * 4
        rest = characters[whole:]
        if whole:
            yield b64decode(characters[:whole], validate=True)
    if len(rest) > 1:
        yield b64decode(rest + b"=" * (4 - len(rest)), validate=True)


_NOT_BASE64 = bytes(set(range(256)) - set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"))
