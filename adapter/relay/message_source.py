"""Outgoing messages: stream the stored octets, find out which extensions they need, and encode them for DATA.

Invariants: memory stays bounded whatever the size; only the end of the message yields ``<CRLF>.<CRLF>`` (RFC 5321
4.5.2); bare CR and LF, which DATA cannot carry (RFC 5321 2.3.8), become CRLF; the Return-Path written for local
recipients is removed (RFC 5321 4.4); nothing else is changed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass

from adapter.transport.transport import Transport
from protocol.smtp import trace

_MAX_MEMORY_BYTES = 1 << 20  # larger messages are read twice
_LINE_END = re.compile(rb"\r\n|\r|\n")
_MAX_LINE_BYTES = 998  # RFC 5321 4.5.3.1.6, without CR and LF
_MAX_HEADER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class MessageTraits:
    """The properties of a message that decide how it can be sent."""

    size: int  # as sent after DATA, without the dots (RFC 1870)
    eight_bit: bool
    eight_bit_header: bool
    binary: bool  # bare CR or LF, NUL or lines too long for DATA


class OutgoingMessage:
    """One stored message; its methods raise :class:`~protocol.errors.MailError` or OSError if it cannot be read."""

    def __init__(self, transport: Transport, message_id: str, sender: str) -> None:
        self._transport = transport
        self._message_id = message_id
        self._return_path = trace.return_path(sender)
        self._start = 0  # offset of the first octet to send
        self._chunks: list[bytes] | None = None

    async def measure(self) -> MessageTraits:
        return await asyncio.to_thread(self._measure)

    def _measure(self) -> MessageTraits:
        chunks_in_memory: list[bytes] | None = []

        def keep(chunks: Iterator[bytes]) -> Iterator[bytes]:
            nonlocal chunks_in_memory
            size = 0
            for chunk in chunks:
                size += len(chunk)
                if size > _MAX_MEMORY_BYTES:
                    chunks_in_memory = None
                elif chunks_in_memory is not None:
                    chunks_in_memory.append(chunk)
                yield chunk

        length = len(self._return_path)
        head = b"".join(self._transport.content.stream(self._message_id, 0, length))
        self._start = length if head == self._return_path else 0
        traits = measure(keep(self._stream()))
        self._chunks = chunks_in_memory
        return traits

    def _stream(self) -> Iterator[bytes]:
        return self._transport.content.stream(self._message_id, self._start)

    async def chunks(self) -> AsyncIterator[bytes]:
        if self._chunks is not None:
            for chunk in self._chunks:
                yield chunk
            return
        stream = await asyncio.to_thread(self._stream)
        while (piece := await asyncio.to_thread(next, stream, None)) is not None:
            yield piece


def measure(chunks: Iterable[bytes]) -> MessageTraits:
    """The traits of a message given in chunks."""
    size = bare = 0
    eight_bit = eight_bit_header = binary = False
    header: bytes | None = b""
    line = 0  # length of the unfinished line
    held = b""  # a CR; its LF may be in the next chunk
    last = b""
    for chunk in chunks:
        size += len(chunk)
        eight_bit = eight_bit or not chunk.isascii()
        if header is not None:
            header += chunk
            end = min((at for mark in (b"\r\n\r\n", b"\n\n") if (at := header.find(mark)) >= 0), default=-1)
            if end >= 0 or len(header) > _MAX_HEADER_BYTES:
                eight_bit_header = not header[: end if end >= 0 else None].isascii()
                header = None
        text = held + chunk
        held = text[-1:] if text.endswith(b"\r") else b""
        text = text[: len(text) - len(held)]
        pairs = text.count(b"\r\n")
        bare += text.count(b"\n") + text.count(b"\r") - 2 * pairs
        lengths = [len(each) for each in text.split(b"\n")]
        lengths[0] += line
        line = lengths[-1]
        binary = binary or b"\0" in text or max(lengths) > _MAX_LINE_BYTES + 1
        last = chunk[-1:] or last
    if header:
        eight_bit_header = not header.isascii()
    bare += len(held)
    binary = binary or bare > 0 or line > _MAX_LINE_BYTES
    final_line_end = 0 if last in (b"", b"\r", b"\n") else 2
    return MessageTraits(size + bare + final_line_end, eight_bit, eight_bit_header, binary)


class DataEncoder:
    """Dot-stuffing and line ends for DATA; the result does not depend on the chunks."""

    __slots__ = ("_held", "_line_start")

    def __init__(self) -> None:
        self._held = b""
        self._line_start = True

    def feed(self, chunk: bytes) -> bytes:
        text = self._held + chunk
        self._held = b"\r" if text.endswith(b"\r") else b""
        return self._encode(text[: len(text) - len(self._held)])

    def finish(self) -> bytes:
        rest = self._encode(self._held)
        return rest + (b"" if self._line_start else b"\r\n") + b".\r\n"

    def _encode(self, text: bytes) -> bytes:
        if not text:
            return b""
        pairs = text.count(b"\r\n")
        if text.count(b"\n") != pairs or text.count(b"\r") != pairs:
            text = _LINE_END.sub(b"\r\n", text)
        stuffed = text.replace(b"\r\n.", b"\r\n..")
        if self._line_start and text.startswith(b"."):
            stuffed = b"." + stuffed
        self._line_start = text.endswith(b"\r\n")
        return stuffed
