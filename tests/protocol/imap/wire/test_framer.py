"""The framer: commands, all kinds of literals, limits, line mode, and synchronisation after refusals."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from protocol.errors import ProtocolError
from protocol.imap.wire.events import (
    AFTER_LOGIN,
    BEFORE_LOGIN,
    NEED_DATA,
    CommandLimits,
    CommandLine,
    Event,
    Line,
    Literal,
    LiteralChunk,
    LiteralStart,
    Refused,
)
from protocol.imap.wire.framer import Framer


def run(framer: Framer, data: bytes) -> list[Event]:
    """Feed the framer and collect its events, accepting every literal."""
    framer.feed(data)
    events: list[Event] = []
    while (event := framer.next_event()) is not NEED_DATA:
        events.append(event)
        if isinstance(event, LiteralStart):
            framer.accept()
    return events


def after_login(**changes: int | None) -> Framer:
    return Framer(replace(AFTER_LOGIN, **changes))  # type: ignore[arg-type]


NOOP = CommandLine(b"z", "NOOP", (b"",))


def test_plain_commands() -> None:
    assert run(Framer(), b"a1 noop\r\na2  UID  Fetch 1:* (FLAGS)\r\nA+") == [
        CommandLine(b"a1", "NOOP", (b"",)),
        CommandLine(b"a2", "UID FETCH", (b" 1:* (FLAGS)",)),
    ]


def test_lone_lf_and_blank_lines() -> None:
    assert run(Framer(), b"\r\n\na NOOP\n\r\n\r\nb NOOP\r\n") == [
        CommandLine(b"a", "NOOP", (b"",)),
        CommandLine(b"b", "NOOP", (b"",)),
    ]


def test_argument_literals_are_kept() -> None:
    framer = Framer()
    events = run(framer, b"a LOGIN {3}\r\nbob {5+}\r\nse\r\nt\r\nz NOOP\r\n")
    assert events == [
        LiteralStart(b"a", "LOGIN", 3, True, False, False, ()),
        LiteralStart(b"a", "LOGIN", 5, False, False, False, ()),
        CommandLine(b"a", "LOGIN", (b" ", Literal(b"bob", False), b" ", Literal(b"se\r\nt", False), b"")),
        NOOP,
    ]


def test_binary_literal() -> None:
    events = run(after_login(), b"a SEARCH TEXT ~{2+}\r\n\x00\xff\r\n")
    assert events[-1] == CommandLine(b"a", "SEARCH", (b" TEXT ", Literal(b"\x00\xff", True), b""))


def test_literal_must_be_accepted_or_refused_before_the_next_event() -> None:
    framer = Framer()
    framer.feed(b"a LOGIN {3+}\r\nbob x\r\n")
    assert isinstance(framer.next_event(), LiteralStart)
    with pytest.raises(RuntimeError):
        framer.next_event()
    framer.accept()
    with pytest.raises(RuntimeError):
        framer.accept()
    with pytest.raises(RuntimeError):
        framer.refuse("NO", "too late")
    assert isinstance(framer.next_event(), CommandLine)


def test_append_streams() -> None:
    framer = after_login()
    assert run(framer, b'a APPEND "Sent" (\\Seen) {10}\r\n0123') == [
        LiteralStart(b"a", "APPEND", 10, True, False, True, (b' "Sent" (\\Seen) ',)),
        LiteralChunk(b"0123", False),
    ]
    assert run(framer, b"456789\r\nz NOOP\r\n") == [
        LiteralChunk(b"456789", True),
        CommandLine(b"a", "APPEND", (b"",)),
        NOOP,
    ]


def test_multiappend_and_literal_mailbox_name() -> None:
    events = run(after_login(), b"a APPEND {4+}\r\nSent {1+}\r\nx (\\Seen) UTF8 (~{2+}\r\nyz)\r\n")
    assert events == [
        LiteralStart(b"a", "APPEND", 4, False, False, False, ()),
        LiteralStart(b"a", "APPEND", 1, False, False, True, (b" ", Literal(b"Sent", False), b" ")),
        LiteralChunk(b"x", True),
        LiteralStart(b"a", "APPEND", 2, False, True, True, (b" (\\Seen) UTF8 (",)),
        LiteralChunk(b"yz", True),
        CommandLine(b"a", "APPEND", (b")",)),
    ]


@pytest.mark.parametrize("name", [b"REPLACE", b"uid replace"])
def test_replace_streams(name: bytes) -> None:
    starts = [
        event.message
        for event in run(after_login(), b"a " + name + b" 7 {6+}\r\nDrafts {3+}\r\nabc\r\n")
        if isinstance(event, LiteralStart)
    ]
    assert starts == [False, True]


def test_empty_message_literal() -> None:
    assert run(after_login(), b"a APPEND x {0+}\r\n\r\n")[1:] == [
        LiteralChunk(b"", True),
        CommandLine(b"a", "APPEND", (b"",)),
    ]


def test_nothing_streams_before_login() -> None:
    events = run(Framer(), b"a APPEND x {3+}\r\nabc\r\n")
    assert events[-1] == CommandLine(b"a", "APPEND", (b" x ", Literal(b"abc", False), b""))


def test_refused_synchronising_literal_ends_the_command() -> None:
    framer = after_login()
    framer.feed(b"a APPEND nowhere {10}\r\nz NOOP\r\n")
    assert isinstance(framer.next_event(), LiteralStart)
    framer.refuse("NO", "No such folder", "TRYCREATE")
    assert framer.next_event() == Refused(b"a", "NO", "TRYCREATE", "No such folder")
    assert framer.next_event() == NOOP


def test_refused_non_synchronising_literal_is_drained() -> None:
    framer = after_login()
    framer.feed(b"a APPEND nowhere {10+}\r\n0123")
    assert isinstance(framer.next_event(), LiteralStart)
    framer.refuse("NO", "No such folder", "TRYCREATE")
    assert framer.next_event() is NEED_DATA
    assert run(framer, b"456789 {3+}\r\na\nb\r\nz NOOP\r\n") == [
        Refused(b"a", "NO", "TRYCREATE", "No such folder"),
        NOOP,
    ]


def test_refused_in_the_middle_of_a_message() -> None:
    framer = after_login()
    assert run(framer, b"a APPEND x {6}\r\n012")[-1] == LiteralChunk(b"012", False)
    framer.refuse("NO", "Disk full", "UNAVAILABLE")
    assert run(framer, b"345 (\\Seen) {4}\r\nz NOOP\r\n") == [
        Refused(b"a", "NO", "UNAVAILABLE", "Disk full"),
        NOOP,
    ]


LIMITED = CommandLimits(line=40, literal=8, command=100, message=16, drain=1000)


@pytest.mark.parametrize(
    ("data", "refused"),
    [
        (b"a APPEND x {17}\r\n", Refused(b"a", "NO", "TOOBIG", "Messages may hold 16 octets")),
        (
            b"a APPEND x {17+}\r\n" + b"m" * 17 + b"\r\n",
            Refused(b"a", "NO", "TOOBIG", "Messages may hold 16 octets"),
        ),
        (b"a LOGIN {9}\r\n", Refused(b"a", "NO", "LIMIT", "Literals may hold 8 octets here")),
        (
            b"a LOGIN {9+}\r\n{9+}\r\n{9+} x\r\n",
            Refused(b"a", "NO", "LIMIT", "Literals may hold 8 octets here"),
        ),
        (
            b"a LOGIN {99999999999999999999}\r\n",
            Refused(b"a", "NO", "LIMIT", "Literals may hold 8 octets here"),
        ),
        (b"a NOOP " + b"x" * 40 + b"\r\n", Refused(b"a", "BAD", None, "Command line is too long")),
        (
            b"a NOOP " + b"x" * 40 + b" {3+}\r\nx\ny\r\n",
            Refused(b"a", "BAD", None, "Command line is too long"),
        ),
        (b"a LIST {1+}\r\nx" + b"y" * 42 + b"\r\n", Refused(b"a", "BAD", None, "Command line is too long")),
        (b"a LIST" + b" {8+}\r\n01234567" * 4 + b"\r\n", Refused(b"a", "BAD", None, "Command is too long")),
        (
            b"a LIST" + b" {8+}\r\n01234567" * 2 + b"x" * 40 + b"\r\n",
            Refused(b"a", "BAD", None, "Command is too long"),
        ),
        (b"a\r\n", Refused(b"a", "BAD", None, "Command name is missing or invalid")),
        (b'a "x"\r\n', Refused(b"a", "BAD", None, "Command name is missing or invalid")),
        (b"+ NOOP\r\n", Refused(b"*", "BAD", None, "Tag is missing or invalid")),
        (b" NOOP {2+}\r\n\r\n\r\n", Refused(b"*", "BAD", None, "Tag is missing or invalid")),
        (b"\x16\x03\x01\x02\x00\x01\r\n", Refused(b"*", "BAD", None, "Tag is missing or invalid")),
    ],
)
def test_limits_refuse_and_stay_in_sync(data: bytes, refused: Refused) -> None:
    for size in (1, 2, 7, 1000):
        framer = Framer(LIMITED)
        events: list[Event] = []
        stream = data + b"z NOOP\r\n"
        for start in range(0, len(stream), size):
            events += [e for e in run(framer, stream[start : start + size]) if not isinstance(e, LiteralStart)]
        assert events == [refused, NOOP]


def test_tags_are_echoed_and_so_bounded() -> None:
    assert run(Framer(), b"t" * 255 + b" NOOP\r\n") == [CommandLine(b"t" * 255, "NOOP", (b"",))]
    assert run(Framer(), b"t" * 256 + b" NOOP\r\n") == [Refused(b"*", "BAD", None, "Tag is missing or invalid")]


def test_literal_minus() -> None:
    framer = after_login(non_sync=4096)
    data = b"a APPEND x {4096+}\r\n" + b"m" * 4096 + b"\r\n"
    assert run(framer, data)[-1] == CommandLine(b"a", "APPEND", (b"",))
    data = b"a APPEND x {4097+}\r\n" + b"m" * 4097 + b"\r\n"
    assert run(framer, data) == [Refused(b"a", "BAD", "TOOBIG", "Non-synchronising literals may hold 4096 octets")]
    assert isinstance(run(framer, b"a APPEND x {4097}\r\n")[0], LiteralStart)


@pytest.mark.parametrize(
    "data", [b"a LOGIN {1001+}\r\n", b"x" * 1001, b"a NOOP {600+}\r\n" + b"x" * 600 + b"{600+}\r\n"]
)
def test_refused_command_too_long_to_skip_is_fatal(data: bytes) -> None:
    framer = Framer(LIMITED)
    with pytest.raises(ProtocolError):
        run(framer, data)
    with pytest.raises(ProtocolError):
        framer.next_event()


def test_sixty_four_kibibyte_lines() -> None:
    for limits in (BEFORE_LOGIN, AFTER_LOGIN):
        line = b"a NOOP " + b"x" * (65536 - 7)
        assert run(Framer(limits), line + b"\r\n") == [CommandLine(b"a", "NOOP", (line[6:],))]
        refused = Refused(b"a", "BAD", None, "Command line is too long")
        assert run(Framer(limits), line + b"x\r\n") == [refused]
        assert run(Framer(limits), line + b"x\r\nz NOOP\r\n") == [refused, NOOP]


def test_idle_with_done_and_the_next_command_in_one_packet() -> None:
    framer = Framer()
    assert run(framer, b"a IDLE\r\n") == [CommandLine(b"a", "IDLE", (b"",))]
    framer.expect_line()
    framer.feed(b"done\r\nz NOOP\r\n")
    line = framer.next_event()
    assert isinstance(line, Line)
    assert line.done
    assert framer.next_event() == NOOP


def test_authenticate_lines() -> None:
    framer = Framer()
    framer.feed(b"a AUTHENTICATE LOGIN\r\nYm9i\r\n*\r\nb NOOP {5}\r\n")
    assert framer.next_event() == CommandLine(b"a", "AUTHENTICATE", (b" LOGIN",))
    for expected in (b"Ym9i", b"*", b"b NOOP {5}"):  # a requested line is a Line, whatever its content
        framer.expect_line()
        assert framer.next_event() == Line(expected)


def test_too_long_line_ends_the_command_that_requested_it() -> None:
    framer = Framer(LIMITED)
    assert run(framer, b"a IDLE\r\n")
    framer.expect_line()
    assert run(framer, b"x" * 60) == []
    with pytest.raises(RuntimeError):
        framer.expect_line()
    assert run(framer, b"x {5+}\r\nz NOOP\r\n") == [Refused(b"a", "BAD", None, "Line is too long"), NOOP]


def test_input_before_starttls_is_discarded() -> None:
    framer = Framer()
    framer.feed(b"a STARTTLS\r\nb LOGIN eve x\r\n")
    assert isinstance(framer.next_event(), CommandLine)
    assert framer.buffered == 15
    assert framer.take_buffered() == b"b LOGIN eve x\r\n"
    assert framer.next_event() is NEED_DATA
    assert run(framer, b"z NOOP\r\n") == [NOOP]


def test_streamed_octets_are_not_copied() -> None:
    framer = after_login()
    run(framer, b"a APPEND x {2000000}\r\n")
    block = b"m" * 1_000_000
    (chunk,) = run(framer, block)
    assert isinstance(chunk, LiteralChunk)
    assert chunk.data is block


def test_octet_by_octet_is_linear() -> None:
    def cost(size: int) -> float:
        framer = after_login()
        stream = b"a SEARCH TEXT {%d+}\r\n" % size + b"t" * size + b" OR " + b"x" * size + b"\r\n"
        started = time.process_time()
        seen = [e for octet in stream for e in run(framer, bytes((octet,)))]
        assert isinstance(seen[-1], CommandLine)
        return time.process_time() - started

    small = min(cost(8_000) for _ in range(3))
    large = min(cost(64_000) for _ in range(2))
    assert large < 24 * small


def test_pipelined_commands_are_linear() -> None:
    framer = Framer()
    started = time.process_time()
    assert len(run(framer, b"a NOOP\r\n" * 100_000)) == 100_000
    assert time.process_time() - started < 20


def test_idle_connection_buffers_nothing() -> None:
    framer = after_login()
    run(framer, b"a LOGIN {3+}\r\nbob " + b"x" * 60_000 + b"\r\n")
    run(framer, b"a APPEND x {3+}\r\nabc\r\n")
    held = [getattr(framer, name) for name in ("_buffer", "_pieces", "_literal")]
    assert held == [b"", [], None]
