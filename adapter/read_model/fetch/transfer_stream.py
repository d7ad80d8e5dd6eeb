"""Decode transfer encodings chunk by chunk, with the same result as :mod:`protocol.mime.encoding` for the whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from protocol.mime.encoding import decode_base64, decode_quoted_printable

_NOT_BASE64 = bytes(
    octet for octet in range(256) if octet not in b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
)
# Where quoted-printable can be cut other than at a line end: after an octet that is neither a blank nor in an escape,
# preceded by two that begin no escape.
_SAFE = re.compile(rb".*[^=\r\n][^=\r\n][^=\s]", re.DOTALL)


def decode(chunks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Decode base64 or quoted-printable."""
    return _base64(chunks) if encoding == "base64" else _quoted_printable(chunks)


def _base64(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Decode complete groups of four; padding ends a run, and the next octet starts another."""
    rest = b""
    for chunk in chunks:
        clean = rest + chunk.translate(None, _NOT_BASE64)
        start = clean.rfind(b"=") + 1
        whole = start + (len(clean) - start) // 4 * 4
        rest = clean[whole:]
        yield decode_base64(clean[:whole])
    yield decode_base64(rest)


def _quoted_printable(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        text = rest + chunk
        cut = text.rfind(b"\n") + 1
        if not cut and (safe := _SAFE.match(text)):
            cut = safe.end()
        rest = text[cut:]
        yield decode_quoted_printable(text[:cut])
    yield decode_quoted_printable(rest)


def cut(chunks: Iterable[bytes], skip: int, size: int) -> Iterator[bytes]:
    """Yield ``size`` octets after the first ``skip``."""
    for chunk in chunks:
        if size <= 0:
            return
        if skip >= len(chunk):
            skip -= len(chunk)
            continue
        part = chunk[skip : skip + size]
        skip = 0
        size -= len(part)
        yield part


def gather(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the same octets in chunks of at most ``size``, none of them empty and few of them small."""
    waiting: list[bytes] = []
    length = 0
    for chunk in chunks:
        if length and length + len(chunk) > size:
            yield b"".join(waiting)
            waiting, length = [], 0
        for start in range(0, len(chunk), size):
            piece = chunk[start : start + size] if len(chunk) > size else chunk
            if len(piece) == size:
                yield piece
            else:
                waiting.append(piece)
                length += len(piece)
    if length:
        yield b"".join(waiting)
