"""Any octets, split anywhere: events or ProtocolError, the same for every split, and a bounded buffer."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.imap.wire.events import (
    NEED_DATA,
    CommandLimits,
    CommandLine,
    Event,
    Line,
    LiteralChunk,
    LiteralStart,
    Refused,
)
from protocol.imap.wire.framer import Framer

SMALL = CommandLimits(line=30, literal=12, command=90, message=20, drain=200, non_sync=25)
CLOSED = Refused(b"", "BYE", None, "")

fragments = st.one_of(
    st.sampled_from(
        b'a NOOP|b APPEND x |c uid replace 1 |d LOGIN |e IDLE|DONE|*|+| |(|"|\r\n|\n|\r|\r\n\r\n|{0}\r\n|{3+}\r\nabc'
        b"|{5}\r\n|~{7+}\r\n|{13+}\r\n|{21}\r\n|{26+}\r\n|{300+}\r\n|{99999999999999999999+}\r\n"
        b"|xxxxxxxxxxxxxxxxxxxxxxxxxxxxx|}|{|\x00\xff".split(b"|")
    ),
    st.binary(max_size=8),
)
streams = st.lists(fragments, max_size=25).map(b"".join)


def cut(stream: bytes, points: list[int]) -> list[bytes]:
    edges = [0, *sorted(p % (len(stream) + 1) for p in points), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


def events_of(parts: list[bytes], refuse_every: int) -> list[Event]:
    """Drive a framer as a session does: IDLE requests a line, every n-th literal is refused."""
    framer = Framer(SMALL)
    events: list[Event] = []
    literals = 0
    for part in parts:
        framer.feed(part)
        while True:
            try:
                event = framer.next_event()
            except ProtocolError:
                return [*events, CLOSED]
            if event is NEED_DATA:
                break
            if isinstance(event, LiteralStart):
                literals += 1
                if refuse_every and literals % refuse_every == 0:
                    framer.refuse("NO", "refused")
                else:
                    framer.accept()
            elif isinstance(event, CommandLine) and event.name == "IDLE":
                framer.expect_line()
            last = events[-1] if events else None
            if isinstance(event, LiteralChunk) and isinstance(last, LiteralChunk) and not last.last:
                events[-1] = LiteralChunk(last.data + event.data, event.last)
            else:
                events.append(event)
        assert framer.buffered <= SMALL.line + 1 + SMALL.literal
    return events


@settings(max_examples=400)
@given(streams, st.lists(st.integers(0, 1 << 16), max_size=8), st.integers(0, 3))
def test_events_do_not_depend_on_how_the_stream_is_split(stream: bytes, points: list[int], refuse_every: int) -> None:
    whole = events_of([stream], refuse_every)
    assert events_of(cut(stream, points), refuse_every) == whole
    assert events_of([bytes((octet,)) for octet in stream], refuse_every) == whole


@settings(max_examples=400)
@given(streams, st.integers(0, 3))
def test_events_keep_their_invariants(stream: bytes, refuse_every: int) -> None:
    expected_chunks = 0
    for event in events_of([stream], refuse_every):
        if isinstance(event, CommandLine):
            assert event.name == event.name.upper() != ""
            assert len(event.pieces) % 2 == 1
            assert all(isinstance(piece, bytes) == (i % 2 == 0) for i, piece in enumerate(event.pieces))
            assert sum(len(p if isinstance(p, bytes) else p.data) for p in event.pieces) <= SMALL.command
        elif isinstance(event, LiteralStart):
            assert event.size <= (SMALL.message if event.message else SMALL.literal)  # type: ignore[operator]
            expected_chunks = event.size
        elif isinstance(event, LiteralChunk):
            assert len(event.data) <= expected_chunks
            assert len(event.data) == expected_chunks or not event.last
        elif isinstance(event, Line):
            assert len(event.data) <= SMALL.line + 1


@given(streams)
def test_framer_recovers_from_any_input(stream: bytes) -> None:
    """After any input, enough line ends and octets return the framer to the start of a command."""
    tail = b"\r\n" + b"\r\n" * 40 + b"z NOOP\r\nz NOOP\r\n"
    events = events_of([stream, tail], 0)
    assert events[-1] == CLOSED or CommandLine(b"z", "NOOP", (b"",)) in events
