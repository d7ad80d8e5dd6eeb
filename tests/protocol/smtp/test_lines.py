from __future__ import annotations

import pytest

from protocol.smtp.lines import LineBuffer, split_command
from protocol.smtp.replies import SmtpError


def test_lines_are_split_and_the_rest_is_kept() -> None:
    buffer = LineBuffer()
    buffer.feed(b"EHLO x\r\nDATA\nhello")
    assert buffer.line() == b"EHLO x"
    assert buffer.line() == b"DATA"
    assert buffer.line() is None
    assert buffer.take() == b"hello"
    assert buffer.line() is None


def test_long_line_is_dropped_and_the_next_is_read() -> None:
    buffer = LineBuffer()
    for _ in range(100):
        buffer.feed(b"x" * 10)
        assert buffer.line(50) is None
    buffer.feed(b"tail\r\nNOOP\r\n")
    with pytest.raises(SmtpError):
        buffer.line(50)
    assert buffer.line(50) == b"NOOP"
    buffer.feed(b"y" * 51 + b"\r\n")
    with pytest.raises(SmtpError):
        buffer.line(50)


def test_auth_lines_may_be_longer() -> None:
    buffer = LineBuffer()
    line = b"auth XOAUTH2 " + b"A" * 20000
    buffer.feed(line)
    assert buffer.line() is None
    buffer.feed(b"\r\n" + b"B" * 20000 + b"\r\n")
    assert buffer.line() == line
    with pytest.raises(SmtpError):
        buffer.line()


def test_line_is_split_into_command_and_argument() -> None:
    assert split_command(b"mail FROM:<>  ") == ("MAIL", b"FROM:<>")
    assert split_command(b"NOOP") == ("NOOP", b"")
    assert split_command(b"RCPT\tTO:<x>") == ("RCPT", b"TO:<x>")
    for bad in (b"", b" NOOP", b"\xffNOOP", b"MAIL:x", b"Host: x", b"x" * 17, b"NO\x00OP"):
        assert split_command(bad) == ("", b"")
