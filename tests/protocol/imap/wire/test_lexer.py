"""Tokens: each rule of the grammar, in text and in literals."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from protocol.errors import ProtocolError
from protocol.imap.wire.events import Literal
from protocol.imap.wire.lexer import PLAIN, CommandError, Dialect, Lexer

UTF8 = Dialect(utf8=True)


def lex(text: bytes, dialect: Dialect = PLAIN) -> Lexer:
    return Lexer((text,), dialect)


def test_atoms_and_astrings() -> None:
    lexer = lex(b'foo[1] bar] "q\\"u\\\\" (')
    assert lexer.atom() == b"foo[1"
    lexer.expect(b"]")
    lexer.space()
    assert lexer.astring() == b"bar]"
    lexer.space()
    assert lexer.astring() == b'q"u\\'
    assert not lexer.at_end
    with pytest.raises(CommandError):
        lexer.end()


@pytest.mark.parametrize(
    "text", [b"", b" x", b"(", b"%", b"*", b"\xc3\xa9", b"\x00", b"\x7f", b'"open', b'"a\\n"', b"{3}"]
)
def test_invalid_astrings_are_refused(text: bytes) -> None:
    with pytest.raises(CommandError):
        lex(text).astring()


def test_literals_between_text() -> None:
    lexer = Lexer((b"", Literal(b"a\r\nb", False), b" ", Literal(b"\x00", True), b" x"))
    assert lexer.at_literal
    assert lexer.astring() == b"a\r\nb"
    lexer.space()
    assert lexer.string() == b"\x00"
    lexer.space()
    assert lexer.keyword() == "X"
    assert lexer.at_end


def test_nul_only_in_binary_literals() -> None:
    with pytest.raises(CommandError, match="NUL"):
        Lexer((b"", Literal(b"\x00", False), b"")).string()


def test_text_after_a_literal_is_not_part_of_it() -> None:
    lexer = Lexer((b"x", Literal(b"y", False), b""))
    assert lexer.astring() == b"x"
    with pytest.raises(CommandError):
        lexer.space()


def test_nstring() -> None:
    assert lex(b"nil").nstring() is None
    assert lex(b'"NIL"').nstring() == b"NIL"


def test_numbers() -> None:
    assert lex(b"4294967295").number() == 4294967295
    assert lex(b"9223372036854775807").number64() == 2**63 - 1
    assert lex(b"0").modseq() == 0
    for bad in (b"4294967296", b"-1", b"", b"x", b"9" * 5000):
        with pytest.raises(CommandError):
            lex(bad).number()
    with pytest.raises(CommandError):
        lex(b"0").nz_number()
    with pytest.raises(CommandError):
        lex(b"9223372036854775808").number64()


def test_mod_sequences_of_64_bits_mean_the_largest_of_63() -> None:
    for written in (b"9223372036854775807", b"9223372036854775808", b"18446744073709551615"):
        assert lex(written).modseq() == 2**63 - 1
    with pytest.raises(CommandError):
        lex(b"18446744073709551616").modseq()


def test_sequence_sets_raise_command_errors() -> None:
    assert lex(b"$").sequence_set().saved
    with pytest.raises(CommandError):
        lex(b"0").sequence_set()


def test_lists() -> None:
    lexer = lex(b"( a  b ) ()")
    assert lexer.parenthesised(lexer.atom) == [b"a", b"b"]
    lexer.space()
    assert lexer.parenthesised(lexer.atom, empty=True) == []
    for bad in (b"()", b"(a", b"a", b"((a))", b"(a(b)"):
        lexer = lex(bad)
        with pytest.raises(CommandError):
            lexer.parenthesised(lexer.atom)


def test_flags() -> None:
    assert lex(b"(\\sEEN $Forwarded \\Seen nonjunk)").flag_list() == ("\\Seen", "$Forwarded", "nonjunk")
    for bad in (b"\\Other", b"\\*", b"\\", b"a]"):
        with pytest.raises(CommandError):
            lex(b"(" + bad + b")").flag_list()


@pytest.mark.parametrize("text", [b"1-Feb-1994", b"01-feb-1994", b'"1-FEB-1994"'])
def test_date(text: bytes) -> None:
    assert lex(text).date() == date(1994, 2, 1)


@pytest.mark.parametrize(
    "text", [b"30-Feb-1994", b"1-Foo-1994", b"0-Jan-1994", b"1-Jan-0000", b'"1-Jan-1994', b"1/2/3"]
)
def test_invalid_dates_are_refused(text: bytes) -> None:
    with pytest.raises(CommandError):
        lex(text).date()


def test_date_time() -> None:
    zone = timezone(timedelta(hours=-8))
    assert lex(b'" 7-Feb-1994 21:52:25 -0800"').date_time() == datetime(1994, 2, 7, 21, 52, 25, tzinfo=zone)
    assert lex(b'"07-FEB-1994 21:52:25 -0800"').date_time().utcoffset() == timedelta(hours=-8)
    assert lex(b'"31-Dec-2016 23:59:60 +0000"').date_time() == datetime(2016, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        b'"07-Feb-1994 25:52:25 -0800"',
        b'"07-Feb-1994 21:52:61 -0800"',
        b'"07-Feb-1994 21:52:25 -9900"',
        b'"01-Jan-0001 00:00:00 +0100"',
        b'"07-Feb-1994 21:52:25"',
        b"07-Feb-1994",
    ],
)
def test_invalid_date_times_are_refused(text: bytes) -> None:
    with pytest.raises(CommandError):
        lex(text).date_time()


def test_mailbox_names() -> None:
    assert lex(b"inbox").mailbox() == "INBOX"
    assert lex(b'"Inbox/a"').mailbox() == "INBOX/a"
    assert lex(b"inboxes").mailbox() == "inboxes"
    assert lex('"ınbox"'.encode(), UTF8).mailbox() == "ınbox"  # although its upper case is INBOX
    assert lex(b"Entw&APw-rfe").mailbox() == "Entwürfe"
    assert lex('"Entwürfe"'.encode(), UTF8).mailbox() == "Entwürfe"
    assert lex(b"Entw&APw-rfe", UTF8).mailbox() == "Entw&APw-rfe"
    assert lex(b'""').mailbox(empty=True) == ""


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        (b'""', PLAIN),
        (b"&AGE-", PLAIN),
        ('"Entwürfe"'.encode(), PLAIN),
        (b'"\xff"', UTF8),
        ('"a\u2028b"'.encode(), UTF8),
        ('"a\u0085b"'.encode(), UTF8),
        (b"a&AAk-b", PLAIN),
        (b'"a\tb"', PLAIN),
    ],
)
def test_invalid_mailbox_names_are_refused(text: bytes, dialect: Dialect) -> None:
    with pytest.raises(CommandError):
        lex(text, dialect).mailbox()


def test_patterns() -> None:
    assert lex(b"Sent%*]x").list_mailbox() == "Sent%*]x"
    assert lex(b'"&U,BTFw-/%"').list_mailbox() == "台北/%"


def test_errors_are_protocol_errors_that_carry_a_response() -> None:
    error = CommandError("No", "NO", "LIMIT")
    assert isinstance(error, ProtocolError)
    assert (error.text, error.status, error.code) == ("No", "NO", "LIMIT")


def test_long_input_is_linear() -> None:
    started = time.process_time()
    lexer = lex(b"(" + b"a " * 30_000 + b")")
    assert len(lexer.parenthesised(lexer.atom)) == 30_000
    with pytest.raises(CommandError):
        lex(b'"' + b'\\"' * 30_000).string()
    assert time.process_time() - started < 10
