from __future__ import annotations

import time

import pytest

from protocol.smtp import replies
from protocol.smtp.data import Chunk, ChunkReader, DataReader, Intake, LineEnds, MessageLimits, count_hops, parse_bdat
from protocol.smtp.replies import Reply, SmtpError

MESSAGE = b"From: a@example.test\r\nSubject: x\r\n\r\nHello\r\n"


def read(
    stream: bytes, policy: LineEnds = LineEnds.REJECT, limits: MessageLimits | None = None
) -> tuple[DataReader, Intake, bytes]:
    intake = Intake(limits or MessageLimits(), policy)
    reader = DataReader(intake)
    return reader, intake, reader.feed(stream)


def test_header_and_body_are_returned_separately() -> None:
    reader, intake, body = read(MESSAGE + b".\r\nQUIT\r\n")
    assert reader.done
    assert reader.leftover == b"QUIT\r\n"
    assert intake.header == b"From: a@example.test\r\nSubject: x\r\n\r\n"
    assert body == b"Hello\r\n"
    assert intake.size == len(MESSAGE)
    assert intake.refusal is None


def test_stuffed_dots_are_removed() -> None:
    _, intake, body = read(b"\r\n..\r\n..a\r\n.b\r\nc.\r\n...\r\n.\r\n")
    assert intake.header == b"\r\n"
    assert body == b".\r\n.a\r\nb\r\nc.\r\n..\r\n"


def test_empty_message_is_complete() -> None:
    reader, intake, body = read(b".\r\n")
    assert reader.done
    assert intake.header == b""
    assert body == b""


def test_message_without_empty_line_is_all_header() -> None:
    _, intake, body = read(b"Subject: x\r\n.\r\n")
    assert intake.header == b"Subject: x\r\n"
    assert body == b""


@pytest.mark.parametrize(
    "mark",
    [
        b"\n.\n",
        b"\n.\r\n",
        b"\r\n.\n",
        b"\r.\r",
        b"\r\n.\r",
        b"\r.\r\n",
        b"\n.\r",
        b"\r\n\x00.\r\n",
        b"\r\n.\x00\r\n",
    ],
)
def test_no_other_sequence_ends_data(mark: bytes) -> None:
    smuggled = b"a" + mark + b"MAIL FROM:<evil@example.test>\r\n"
    reader, intake, _ = read(MESSAGE + smuggled)
    assert not reader.done
    reader.feed(b".\r\n")
    assert reader.done
    if b"\x00" not in mark:
        assert intake.refusal == replies.BARE_LINE_END


def test_bare_line_ends_are_normalised_or_kept() -> None:
    stream = b"Subject: x\n\na\rb\nc\r\r\nd\r\n.\r\n"
    _, intake, body = read(stream, LineEnds.NORMALISE)
    assert intake.refusal is None
    assert intake.header == b"Subject: x\r\n\r\n"
    assert body == b"a b\r\nc \r\nd\r\n"
    _, intake, body = read(stream, LineEnds.KEEP)
    assert intake.header == b"Subject: x\n\n"
    assert body == b"a\rb\nc\r\r\nd\r\n"


def test_oversized_message_is_read_to_its_end_and_dropped() -> None:
    limits = MessageLimits(message_size=1000)
    intake = Intake(limits, LineEnds.REJECT)
    reader = DataReader(intake)
    assert reader.feed(b"Subject: x\r\n\r\n") == b""
    kept = sum(len(reader.feed(b"x" * 98 + b"\r\n")) for _ in range(100))
    assert kept <= 1000
    assert intake.refusal == replies.TOO_BIG
    reader.feed(b".\r\nRSET\r\n")
    assert reader.done
    assert reader.leftover == b"RSET\r\n"


def test_size_limit_is_exact() -> None:
    assert read(MESSAGE + b".\r\n", limits=MessageLimits(message_size=len(MESSAGE)))[1].refusal is None
    assert read(MESSAGE + b".\r\n", limits=MessageLimits(message_size=len(MESSAGE) - 1))[1].refusal == replies.TOO_BIG


def test_header_limit_is_exact() -> None:
    header = b"X: " + b"y" * 100 + b"\r\n\r\n"
    assert read(header + b"z" * 500 + b"\r\n.\r\n", limits=MessageLimits(header_size=len(header)))[1].refusal is None
    refusal = read(header + b".\r\n", limits=MessageLimits(header_size=len(header) - 1))[1].refusal
    assert refusal == replies.HEADER_TOO_BIG


def test_hop_limit_is_exact() -> None:
    header = b"Received: a\r\n b\r\nRECEIVED: c\r\nX: \r\n received: no\r\nX-Received: no\r\n\r\n"
    assert count_hops(header) == 2
    body = b"Received: not me\r\n"
    assert read(header + body + b".\r\n", limits=MessageLimits(hops=2))[1].refusal is None
    assert read(header + body + b".\r\n", limits=MessageLimits(hops=1))[1].refusal == replies.MAIL_LOOP


@pytest.mark.parametrize(
    ("argument", "chunk"),
    [(b"0", Chunk(0, False)), (b"10 LAST", Chunk(10, True)), (b"7 last ", Chunk(7, True))],
)
def test_bdat_arguments(argument: bytes, chunk: Chunk) -> None:
    assert parse_bdat(argument) == chunk


@pytest.mark.parametrize("argument", [b"", b"-1", b"x", b"1 LAS", b"1LAST", b"1 LAST x", b"9" * 21, "١".encode()])
def test_invalid_bdat_closes_the_connection(argument: bytes) -> None:
    with pytest.raises(SmtpError) as caught:
        parse_bdat(argument)
    assert caught.value.reply.closes


def test_bdat_leaves_pipelined_commands_and_can_be_skipped() -> None:
    reader = ChunkReader(Chunk(5, True), None)
    assert reader.feed(b"abc") == b""
    assert not reader.done
    assert reader.feed(b"deQUIT\r\n") == b""
    assert reader.done
    assert reader.leftover == b"QUIT\r\n"


def test_bdat_keeps_dots_and_applies_limits() -> None:
    def run(data: bytes, limits: MessageLimits) -> tuple[bytes, Reply | None]:
        intake = Intake(limits, LineEnds.KEEP)
        body = ChunkReader(Chunk(len(data), True), intake).feed(data)
        return body, intake.refusal

    assert run(b"\r\n.\r\n..\r\n", MessageLimits()) == (b".\r\n..\r\n", None)
    assert run(b"\r\n" + b"x" * 100, MessageLimits(message_size=50)) == (b"", replies.TOO_BIG)


@pytest.mark.parametrize("unit", [b"A. line...\r\n", b"..\r\n", b"\r\n", b"\r", b"\n", b"\r\n.\r", b"."])
@pytest.mark.parametrize("step", [1460, 9_000_000])
def test_cost_is_linear(unit: bytes, step: int) -> None:
    """8 MB take a fraction of a second in packets or at once; quadratic work would take minutes."""
    stream = b"Subject: x\r\n\r\n" + unit * (8_000_000 // len(unit)) + b"\r\n.\r\n"
    reader = DataReader(Intake(MessageLimits(), LineEnds.NORMALISE))
    begin = time.process_time()
    for at in range(0, len(stream), step):
        reader.feed(stream[at : at + step])
        if reader.done:
            break
    assert reader.done
    assert time.process_time() - begin < 20
