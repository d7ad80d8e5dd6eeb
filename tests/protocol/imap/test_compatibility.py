"""The lines of COMPATIBILITY.md about commands sent by clients."""

from __future__ import annotations

import ast
from datetime import UTC, date, datetime
from importlib import resources
from pathlib import Path

import pytest

import protocol.imap
from protocol.imap.commands import model as c
from protocol.imap.commands.append import AppendParser
from protocol.imap.commands.auth import sasl_response
from protocol.imap.commands.fetch_items import Attribute, BodyPart
from protocol.imap.commands.registry import COMMANDS, parse_command
from protocol.imap.search import keys as k
from protocol.imap.sequence_set import parse_set
from protocol.imap.states import State
from protocol.imap.wire.events import AFTER_LOGIN, CommandLine, Line, LiteralStart
from protocol.imap.wire.framer import Framer
from protocol.imap.wire.lexer import PLAIN, Dialect
from protocol.mime.sections import Section

UTF8 = Dialect(utf8=True)
REV2 = Dialect(rev2=True, utf8=True)


def parse(text: bytes, dialect: Dialect = PLAIN) -> c.Command:
    framer = Framer(AFTER_LOGIN)
    framer.feed(b"a " + text + b"\r\n")
    event = framer.next_event()
    assert isinstance(event, CommandLine)
    return parse_command(event, dialect)


def test_every_line_has_its_test() -> None:
    written = resources.files(protocol.imap).joinpath("COMPATIBILITY.md").read_text("utf-8")
    module = ast.parse(Path(__file__).read_text("utf-8"))
    here = {node.name for node in module.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    here.remove("test_every_line_has_its_test")
    assert {name for name in here if f"`{name}`" not in written} == set()
    named = {line.split("`")[-2] for line in written.splitlines() if line.rstrip().endswith("` |")}
    assert {name for name in named if name.startswith("test_")} == here


def test_ampersand_under_utf8() -> None:
    assert parse('SELECT "R&D für alle"'.encode(), UTF8) == c.Select("R&D für alle", read_only=False)
    assert parse(b"SELECT R&D", REV2) == c.Select("R&D", read_only=False)


def test_ampersand_without_utf7() -> None:
    assert parse(b"SELECT R&D") == c.Select("R&D", read_only=False)
    assert parse(b"SELECT R&-D") == c.Select("R&D", read_only=False)


def test_charset_under_utf8() -> None:
    assert parse('UID SEARCH CHARSET UTF-8 SUBJECT "ü"'.encode(), UTF8) == c.Search(True, k.HeaderKey("subject", "ü"))


def test_modseq_zero() -> None:
    assert parse(b"UID FETCH 1:* (FLAGS) (CHANGEDSINCE 0)") == c.Fetch(
        True, parse_set(b"1:*"), (Attribute.UID, Attribute.FLAGS, Attribute.MODSEQ), changed_since=0
    )
    assert parse(b"STORE 1 (UNCHANGEDSINCE 0) FLAGS ()") == c.Store(
        False, parse_set(b"1"), c.StoreMode.REPLACE, (), unchanged_since=0
    )
    assert parse(b"SELECT x (QRESYNC (1 0))", Dialect(qresync=True)) == c.Select(
        "x", read_only=False, qresync=c.QResync(1, 0)
    )


def test_done_and_command_in_one_packet() -> None:
    framer = Framer(AFTER_LOGIN)
    framer.feed(b"a IDLE\r\nDONE\r\nb NOOP\r\n")
    assert framer.next_event() == CommandLine(b"a", "IDLE", (b"",))
    framer.expect_line()
    assert framer.next_event() == Line(b"DONE")
    assert framer.next_event() == CommandLine(b"b", "NOOP", (b"",))


def test_id_before_login() -> None:
    assert State.NOT_AUTHENTICATED in COMMANDS["ID"].states
    assert parse(b'ID ("name" "Mac OS X Mail")') == c.Id((("name", "Mac OS X Mail"),))


def test_id_with_an_empty_list() -> None:
    assert parse(b"ID ()") == parse(b"ID NIL") == c.Id(())


def test_quoted_words() -> None:
    assert parse(b'SELECT "INBOX"') == parse(b"SELECT INBOX")
    assert parse(b'SEARCH CHARSET "utf-8" SINCE "1-Jan-2020"') == c.Search(
        False, k.DateKey(k.DateField.INTERNAL, k.When.SINCE, date(2020, 1, 1))
    )
    assert parse(b'FETCH 1 BODY[HEADER.FIELDS ("From")]') == parse(b"FETCH 1 BODY[HEADER.FIELDS (From)]")


def test_empty_sasl_lines() -> None:
    assert parse(b"AUTHENTICATE LOGIN ") == c.Authenticate("LOGIN")
    assert parse(b"AUTHENTICATE PLAIN =") == c.Authenticate("PLAIN", b"")
    assert sasl_response(b"") == b""


def test_what_rev2_dropped() -> None:
    assert parse(b'LSUB "" "*"', REV2) == c.Lsub("", "*")
    assert parse(b"CHECK", REV2) == c.Check()
    assert parse(b"FETCH 1 RFC822.HEADER", REV2) == c.Fetch(
        False, parse_set(b"1"), (BodyPart(b"RFC822.HEADER", Section((), "HEADER"), None, peek=True),)
    )


@pytest.mark.parametrize("text", [b"UID FETCH 1 (FLAGS) ", b"uid  fetch  1  ( FLAGS )", b"UID FETCH 1 (FLAGS  )  "])
def test_spaces(text: bytes) -> None:
    assert parse(text) == parse(b"UID FETCH 1 (FLAGS)")


def test_case() -> None:
    assert parse(b"uid store 1 +flags.silent (\\seen)") == parse(b"UID STORE 1 +FLAGS.SILENT (\\Seen)")


def test_lone_lf() -> None:
    framer = Framer(AFTER_LOGIN)
    framer.feed(b"a LOGIN {1+}\nx y\nb NOOP\n")
    assert isinstance(framer.next_event(), LiteralStart)
    framer.accept()
    line = framer.next_event()
    assert isinstance(line, CommandLine)
    assert parse_command(line) == c.Login("x", b"y")
    assert framer.next_event() == CommandLine(b"b", "NOOP", (b"",))


def test_blank_lines() -> None:
    framer = Framer(AFTER_LOGIN)
    framer.feed(b"\r\n\r\na NOOP\r\n\r\nb NOOP\r\n")
    assert [framer.next_event(), framer.next_event()] == [
        CommandLine(b"a", "NOOP", (b"",)),
        CommandLine(b"b", "NOOP", (b"",)),
    ]


def test_utf8_in_quoted_strings() -> None:
    assert parse('LOGIN bob "geheimnü"'.encode()) == c.Login("bob", "geheimnü".encode())
    assert parse('SEARCH SUBJECT "Grüße"'.encode()) == c.Search(False, k.HeaderKey("subject", "Grüße"))


def append_date(text: bytes) -> datetime | None:
    start = LiteralStart(b"a", "APPEND", 1, True, False, True, (b" x " + text + b" ",))
    return AppendParser("APPEND").message(start).date


def test_one_digit_day() -> None:
    assert append_date(b'"7-Feb-1994 21:52:25 +0000"') == datetime(1994, 2, 7, 21, 52, 25, tzinfo=UTC)


def test_leap_second() -> None:
    assert append_date(b'"31-Dec-2016 23:59:60 +0000"') == datetime(2016, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_recent_is_sent_back() -> None:
    assert parse(b"STORE 1 FLAGS (\\Seen \\Recent)") == parse(b"STORE 1 FLAGS \\recent \\Seen")
    start = LiteralStart(b"a", "APPEND", 1, True, False, True, (b" x (\\Recent) ",))
    assert AppendParser("APPEND").message(start).flags == ()


def test_macro_inside_a_list() -> None:
    assert parse(b"FETCH 1 (FAST)") == parse(b"FETCH 1 FAST")


def test_empty_partial() -> None:
    assert parse(b"FETCH 1 BODY.PEEK[]<0.0>") == c.Fetch(
        False, parse_set(b"1"), (BodyPart(b"BODY[]<0>", Section(), (0, 0), peek=True),)
    )


def test_create_with_trailing_delimiter() -> None:
    assert parse(b'CREATE "a/b/"') == c.Create("a/b")


def test_inbox_in_any_case() -> None:
    assert parse(b"SELECT inBox") == c.Select("INBOX", read_only=False)
    assert parse(b"SELECT inbox/x") == c.Select("INBOX/x", read_only=False)


def test_enable_while_selected() -> None:
    assert State.SELECTED in COMMANDS["ENABLE"].states


def test_chains_of_or() -> None:
    command = parse(b"SEARCH " + b"".join(b"OR FROM a%d " % n for n in range(500)) + b"FROM b")
    assert isinstance(command, c.Search)
    assert isinstance(command.key, k.Or)


def test_long_sets() -> None:
    uids = range(100_000, 109_000)
    command = parse(b"UID STORE " + b",".join(b"%d" % uid for uid in uids) + b" +FLAGS (\\Seen)")
    assert isinstance(command, c.Store)
    assert command.messages.uid_positions([5, 100_000, 100_001, 200_000]) == [range(1, 3)]


def test_sets_beyond_the_mailbox() -> None:
    command = parse(b"COPY 2:4294967295 x")
    assert isinstance(command, c.Copy)
    assert command.messages.positions(3) == [range(1, 3)]
    assert parse_set(b"*").positions(0) == []


def test_charset_names() -> None:
    assert parse(b"SEARCH CHARSET utf8 ALL") == parse(b"SEARCH CHARSET ascii ALL") == c.Search(False, k.All())


def test_quoted_keyword() -> None:
    assert parse(b'SEARCH KEYWORD "$Junk"') == c.Search(False, k.KeywordKey("$Junk"))
