"""APPEND and REPLACE, parsed while they are received."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from protocol.imap.commands.append import AppendParser
from protocol.imap.commands.model import Append, AppendMessage, Replace
from protocol.imap.wire.events import AFTER_LOGIN, NEED_DATA, CommandLine, LiteralStart, Refused
from protocol.imap.wire.framer import Framer
from protocol.imap.wire.lexer import PLAIN, CommandError, Dialect

DATE = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)


def drive(stream: bytes, dialect: Dialect = PLAIN) -> Append | Replace | Refused | str:
    """Parse a stream as a session does: return the command, its refusal, or the text of the final error."""
    framer = Framer(AFTER_LOGIN)
    framer.feed(b"a " + stream + b"\r\n")
    parser: AppendParser | None = None
    while (event := framer.next_event()) is not NEED_DATA:
        if isinstance(event, LiteralStart):
            if event.message:
                parser = parser or AppendParser(event.name, dialect)
                try:
                    parser.message(event)
                except CommandError as error:
                    framer.refuse(error.status, error.text, error.code)
                    continue
            framer.accept()
        elif isinstance(event, CommandLine):
            assert parser is not None
            try:
                return parser.finish(event)
            except CommandError as error:
                return error.text
        elif isinstance(event, Refused):
            return event
    raise AssertionError("the command did not end")


@pytest.mark.parametrize(
    ("stream", "command"),
    [
        (b"APPEND inbox {3+}\r\nabc", Append("INBOX", (AppendMessage(3),))),
        (b'APPEND "a b" (\\seen $x) {0+}\r\n', Append("a b", (AppendMessage(0, ("\\Seen", "$x")),))),
        (b'APPEND x () " 2-Jan-2020 03:04:05 +0000" ~{1}\r\n\x00',
         Append("x", (AppendMessage(1, (), DATE, binary=True),))),
        (b'APPEND {1+}\r\nx "02-Jan-2020 03:04:05 +0000" {1}\r\nm ', Append("x", (AppendMessage(1, (), DATE),))),
        (b"APPEND x UTF8 (~{2+}\r\nmm)", Append("x", (AppendMessage(2, binary=True, utf8=True),))),
        (b"APPEND x (a) {1+}\r\nm (b) utf8 (~{2+}\r\nmm) {1+}\r\nm",
         Append("x", (AppendMessage(1, ("a",)), AppendMessage(2, ("b",), binary=True, utf8=True), AppendMessage(1)))),
        (b"REPLACE 4 Drafts (\\Draft) {1+}\r\nm", Replace(False, 4, "Drafts", AppendMessage(1, ("\\Draft",)))),
        (b"REPLACE * {6+}\r\nDrafts {1+}\r\nm", Replace(False, 0, "Drafts", AppendMessage(1))),
        (b"UID REPLACE 99 Drafts ~{1+}\r\nm", Replace(True, 99, "Drafts", AppendMessage(1, binary=True))),
    ],
)  # fmt: skip
def test_commands_become_values(stream: bytes, command: Append | Replace) -> None:
    assert drive(stream) == command


@pytest.mark.parametrize(
    "stream",
    [
        b"APPEND x{1+}\r\nm", b"APPEND x (\\Other) {1+}\r\nm", b"APPEND x (a {1+}\r\nm",
        b'APPEND x "yesterday" {1+}\r\nm',
        b"APPEND x y {1+}\r\nm", b"APPEND x CATENATE (TEXT {1+}\r\nm)", b"APPEND x UTF8 ({1+}\r\nm)",
        b'APPEND "" {1+}\r\nm',
        b"REPLACE 0 x {1+}\r\nm", b"REPLACE x y {1+}\r\nm", b"REPLACE 1:2 y {1+}\r\nm",
        b"APPEND x {1+}\r\nm{1+}\r\nm", b"REPLACE 1 x {1+}\r\nm {1+}\r\nm", b"APPEND x UTF8 (~{1+}\r\nm {1+}\r\nm",
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused_before_the_message_is_sent(stream: bytes) -> None:
    refused = drive(stream)
    assert isinstance(refused, Refused)
    assert (refused.tag, refused.status) == (b"a", "BAD")


def test_invalid_mailbox_name_is_refused_with_no_instead_of_bad() -> None:
    refused = drive(b"APPEND &AGE- {1+}\r\nm")
    assert isinstance(refused, Refused)
    assert (refused.tag, refused.status, refused.code) == (b"a", "NO", "CANNOT")


@pytest.mark.parametrize("stream", [b"APPEND x {1+}\r\nm x", b"APPEND x {1+}\r\nm)", b"APPEND x UTF8 (~{1+}\r\nm"])
def test_invalid_end_is_refused(stream: bytes) -> None:
    assert isinstance(drive(stream), str)


def test_command_without_a_message_is_refused() -> None:
    with pytest.raises(CommandError):
        AppendParser("APPEND").finish(CommandLine(b"a", "APPEND", (b" x",)))


def test_mailbox_is_parsed_before_the_message_is_sent() -> None:
    parser = AppendParser("APPEND", Dialect(utf8=True))
    start = LiteralStart(b"a", "APPEND", 9, True, False, True, (' "Entwürfe" '.encode(),))
    assert parser.message(start) == AppendMessage(9)
    assert parser.mailbox == "Entwürfe"
