"""The message does not depend on the cuts of the stream, and equals that of a line-by-line reader."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.smtp import replies
from protocol.smtp.data import Chunk, ChunkReader, DataReader, Intake, LineEnds, MessageLimits

# An alphabet in which every interesting sequence is likely.
WORDS = [b"\r", b"\n", b"\r\n", b".", b"\r\n.", b"a", b"\r\n.\r\n", b"Received: x\r\n", b"\x00\xff"]
STREAMS = st.lists(st.sampled_from(WORDS), max_size=40).map(b"".join)
LIMITS = MessageLimits(message_size=60, header_size=30, hops=1)
Outcome = tuple[bytes | None, bytes, int, replies.Reply | None, bytes]


def read(pieces: list[bytes], policy: LineEnds, limits: MessageLimits) -> Outcome:
    intake = Intake(limits, policy)
    reader = DataReader(intake)
    body = b""
    for number, piece in enumerate(pieces):
        body += reader.feed(piece)
        if reader.done:
            rest = reader.leftover + b"".join(pieces[number + 1 :])
            if intake.refusal is None:
                assert intake.header is not None
                assert intake.size == len(intake.header) + len(body)
                return intake.header, body, intake.size, None, rest
            return None, b"", intake.size, intake.refusal, rest
    raise AssertionError("the end was not found")


def reference(stream: bytes) -> tuple[bytes, bytes]:
    """RFC 5321 4.5.2 to the letter: split at CRLF, stop at the line of one dot, drop a leading dot."""
    lines: list[bytes] = []
    rest = stream
    while True:
        line, mark, rest = rest.partition(b"\r\n")
        assert mark
        if line == b".":
            return b"".join(lines), rest
        lines.append(line.removeprefix(b".") + b"\r\n")


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(marks)]


@settings(max_examples=400, deadline=None)
@given(STREAMS, st.lists(st.integers(0, 1000), max_size=8), st.sampled_from(LineEnds), st.booleans())
def test_result_does_not_depend_on_the_cuts(data: bytes, places: list[int], policy: LineEnds, tight: bool) -> None:
    stream = data + b"\r\n.\r\n" + b"QUIT\r\n"
    limits = LIMITS if tight else MessageLimits()
    whole = read([stream], policy, limits)
    assert read(cut(stream, places), policy, limits) == whole
    assert read([stream[i : i + 1] for i in range(len(stream))], policy, limits) == whole


@settings(max_examples=400, deadline=None)
@given(STREAMS)
def test_result_equals_that_of_a_line_by_line_reader(data: bytes) -> None:
    stream = data + b"\r\n.\r\n"
    message, rest = reference(stream)
    header, body, size, refusal, leftover = read([stream], LineEnds.KEEP, MessageLimits())
    assert refusal is None
    assert (header or b"") + body == message
    assert leftover == rest
    assert size == len(message)


@settings(max_examples=400, deadline=None)
@given(STREAMS)
def test_bare_line_ends_are_detected_and_normalised(data: bytes) -> None:
    stream = data + b"\r\n.\r\n"
    message, _ = reference(stream)
    pairs = message.count(b"\r\n")
    bare = message.count(b"\r") != pairs or message.count(b"\n") != pairs
    refusal = read([stream], LineEnds.REJECT, MessageLimits())[3]
    assert refusal == (replies.BARE_LINE_END if bare else None)
    header, body, *_ = read([stream], LineEnds.NORMALISE, MessageLimits())
    mended = (header or b"") + body
    assert mended.count(b"\r") == mended.count(b"\n") == mended.count(b"\r\n")
    if not bare:
        assert mended == message


@settings(max_examples=300, deadline=None)
@given(STREAMS, st.lists(st.integers(0, 1000), max_size=6), st.lists(st.integers(0, 1000), max_size=6))
def test_bdat_returns_the_octets(data: bytes, chunks: list[int], packets: list[int]) -> None:
    intake = Intake(MessageLimits(), LineEnds.KEEP)
    parts = cut(data, chunks) or [b""]
    body = b""
    for number, part in enumerate(parts):
        reader = ChunkReader(Chunk(len(part), number == len(parts) - 1), intake)
        for packet in cut(part, packets) or [b""]:
            assert not reader.done
            body += reader.feed(packet)
        assert reader.done
        assert reader.leftover == b""
    assert (intake.header or b"") + body == data
    assert intake.size == len(data)


@settings(max_examples=200, deadline=None)
@given(STREAMS, st.lists(st.integers(0, 1000), max_size=6))
def test_bdat_normalises_line_ends_across_chunks(data: bytes, chunks: list[int]) -> None:
    def run(parts: list[bytes]) -> bytes:
        intake = Intake(MessageLimits(), LineEnds.NORMALISE)
        body = b"".join(ChunkReader(Chunk(len(part), False), intake).feed(part) for part in parts)
        body += ChunkReader(Chunk(0, True), intake).feed(b"")
        return (intake.header or b"") + body

    assert run(cut(data, chunks)) == run([data])
