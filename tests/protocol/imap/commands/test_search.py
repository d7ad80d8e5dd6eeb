"""SEARCH, SORT and THREAD."""

from __future__ import annotations

import time
from datetime import date

import pytest

from protocol.imap.commands import model as c
from protocol.imap.commands.model import Command, Partial, SearchReturn
from protocol.imap.commands.registry import parse_command
from protocol.imap.commands.search import MAX_DEPTH
from protocol.imap.search import keys as k
from protocol.imap.search.sort import SortCriterion, SortKey
from protocol.imap.wire.events import AFTER_LOGIN, CommandLine, LiteralStart
from protocol.imap.wire.framer import Framer
from protocol.imap.wire.lexer import PLAIN, CommandError, Dialect

SEEN = k.FlagKey("\\Seen")
DAY = date(2020, 1, 2)


def parse(text: bytes, dialect: Dialect = PLAIN) -> Command:
    framer = Framer(AFTER_LOGIN)
    framer.feed(b"a " + text + b"\r\n")
    while isinstance(event := framer.next_event(), LiteralStart):
        framer.accept()
    assert isinstance(event, CommandLine)
    return parse_command(event, dialect)


def key(text: bytes) -> k.SearchKey:
    command = parse(b"SEARCH " + text)
    assert isinstance(command, c.Search)
    return command.key


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"ALL", k.All()),
        (b"answered", k.FlagKey("\\Answered")),
        (b"DELETED", k.FlagKey("\\Deleted")),
        (b"DRAFT", k.FlagKey("\\Draft")),
        (b"FLAGGED", k.FlagKey("\\Flagged")),
        (b"SEEN", SEEN),
        (b"RECENT", k.FlagKey("\\Recent")),
        (b"UNANSWERED", k.Not(k.FlagKey("\\Answered"))),
        (b"UNDELETED", k.Not(k.FlagKey("\\Deleted"))),
        (b"UNDRAFT", k.Not(k.FlagKey("\\Draft"))),
        (b"UNFLAGGED", k.Not(k.FlagKey("\\Flagged"))),
        (b"UNSEEN", k.Not(SEEN)),
        (b"OLD", k.Not(k.FlagKey("\\Recent"))),
        (b"NEW", k.And((k.FlagKey("\\Recent"), k.Not(SEEN)))),
        (b"KEYWORD $Junk", k.KeywordKey("$Junk")),
        (b"UNKEYWORD $Junk", k.Not(k.KeywordKey("$Junk"))),
        (b'BCC "a b"', k.HeaderKey("bcc", "a b")),
        (b"CC a", k.HeaderKey("cc", "a")),
        (b"FROM a", k.HeaderKey("from", "a")),
        (b"SUBJECT a", k.HeaderKey("subject", "a")),
        (b"TO a", k.HeaderKey("to", "a")),
        (b'HEADER Message-ID ""', k.HeaderKey("Message-ID", "")),
        (b"BODY {4}\r\na\r\nb", k.BodyKey("a\r\nb")),
        (b"TEXT {2+}\r\n\xc3\xa9", k.TextKey("é")),
        (b"BEFORE 2-Jan-2020", k.DateKey(k.DateField.INTERNAL, k.When.BEFORE, DAY)),
        (b'ON "2-Jan-2020"', k.DateKey(k.DateField.INTERNAL, k.When.ON, DAY)),
        (b"SINCE 02-Jan-2020", k.DateKey(k.DateField.INTERNAL, k.When.SINCE, DAY)),
        (b"SENTBEFORE 2-Jan-2020", k.DateKey(k.DateField.SENT, k.When.BEFORE, DAY)),
        (b"SENTON 2-Jan-2020", k.DateKey(k.DateField.SENT, k.When.ON, DAY)),
        (b"SENTSINCE 2-Jan-2020", k.DateKey(k.DateField.SENT, k.When.SINCE, DAY)),
        (b"SAVEDBEFORE 2-Jan-2020", k.SavedKey(k.When.BEFORE, DAY)),
        (b"SAVEDON 2-Jan-2020", k.SavedKey(k.When.ON, DAY)),
        (b"SAVEDSINCE 2-Jan-2020", k.SavedKey(k.When.SINCE, DAY)),
        (b"SAVEDATESUPPORTED", k.SaveDateSupported()),
        (b"LARGER 5", k.SizeKey(k.SizeIs.LARGER, 5)),
        (b"SMALLER 5000000000", k.SizeKey(k.SizeIs.SMALLER, 5000000000)),
        (b"OLDER 60", k.Within(k.Age.OLDER, 60)),
        (b"YOUNGER 60", k.Within(k.Age.YOUNGER, 60)),
        (b"EMAILID M6d99", k.EmailId("M6d99")),
        (b"THREADID T-_9", k.ThreadId("T-_9")),
        (b"MODSEQ 620162338", k.ModSeqKey(620162338)),
        (b'MODSEQ "/flags/\\\\draft" all 7', k.ModSeqKey(7)),
        (b"1:5,*", k.SeqKey(((1, 5), (0, 0)))),
        (b"*:4", k.SeqKey(((0, 4),))),
        (b"UID 7:*", k.UidKey(((7, 0),))),
        (b"$", k.ResultKey()),
        (b"UID $", k.ResultKey()),
        (b"SEEN ALL", k.And((SEEN, k.All()))),
        (b"(SEEN)", SEEN),
        (b"((SEEN) (ALL (1)))", k.And((SEEN, k.All(), k.SeqKey(((1, 1),))))),
        (b"( SEEN ALL ) ALL ", k.And((SEEN, k.All(), k.All()))),
        (b"NOT SEEN", k.Not(SEEN)),
        (b"NOT NOT SEEN", SEEN),
        (b"NOT (SEEN ALL)", k.Not(k.And((SEEN, k.All())))),
        (b"NOT UNSEEN", k.Not(k.Not(SEEN))),
        (b"OR SEEN ALL", k.Or(SEEN, k.All())),
        (b"OR (SEEN ALL) NOT ALL 1", k.And((k.Or(k.And((SEEN, k.All())), k.Not(k.All())), k.SeqKey(((1, 1),))))),
        (b"OR OR SEEN ALL 1", k.Or(k.Or(SEEN, k.All()), k.SeqKey(((1, 1),)))),
        (b"OR SEEN OR ALL OR 1 2",
         k.Or(k.Or(SEEN, k.All()), k.Or(k.SeqKey(((1, 1),)), k.SeqKey(((2, 2),))))),
        (b"OR NOT OR SEEN ALL 1", k.Or(k.Not(k.Or(SEEN, k.All())), k.SeqKey(((1, 1),)))),
    ],
)  # fmt: skip
def test_keys(text: bytes, expected: k.SearchKey) -> None:
    assert key(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"()", SearchReturn(all=True)),
        (b"(MIN max COUNT)", SearchReturn(min=True, max=True, count=True)),
        (b"(ALL SAVE)", SearchReturn(all=True, save=True)),
        (b"(SAVE)", SearchReturn(save=True)),
        (b"(PARTIAL 1:500 COUNT)", SearchReturn(count=True, partial=Partial(1, 500))),
        (b"(PARTIAL 500:1)", SearchReturn(partial=Partial(1, 500))),
        (b"(PARTIAL -1:-100)", SearchReturn(partial=Partial(-1, -100))),
    ],
)
def test_return_options(text: bytes, expected: SearchReturn) -> None:
    assert parse(b"UID SEARCH RETURN " + text + b" CHARSET utf-8 ALL") == c.Search(True, k.All(), expected)
    assert parse(b"SORT RETURN " + text + b" (DATE) UTF-8 ALL") == c.Sort(
        False, (SortCriterion(SortKey.DATE),), k.All(), expected
    )


def test_modseq_key_is_reported() -> None:
    assert parse(b"SEARCH OR NOT (ALL MODSEQ 3) ALL") == c.Search(
        False,
        k.Or(k.Not(k.And((k.All(), k.ModSeqKey(3)))), k.All()),
        uses_modseq=True,
    )


def test_sort() -> None:
    assert parse(b"UID SORT (REVERSE DATE subject DISPLAYFROM) utf-8 UNSEEN") == c.Sort(
        True,
        (
            SortCriterion(SortKey.DATE, reverse=True),
            SortCriterion(SortKey.SUBJECT),
            SortCriterion(SortKey.DISPLAYFROM),
        ),
        k.Not(SEEN),
    )


def test_thread() -> None:
    assert parse(b"THREAD references US-ASCII ALL") == c.Thread(False, c.ThreadAlgorithm.REFERENCES, k.All())
    assert parse(b"UID THREAD ORDEREDSUBJECT UTF-8 1") == c.Thread(
        True, c.ThreadAlgorithm.ORDEREDSUBJECT, k.SeqKey(((1, 1),))
    )


@pytest.mark.parametrize("text", [b"SEARCH CHARSET KOI8-R ALL", b"SORT (DATE) x ALL", b"UID THREAD REFERENCES x ALL"])
def test_unknown_charset(text: bytes) -> None:
    with pytest.raises(CommandError) as caught:
        parse(text)
    assert (caught.value.status, caught.value.code) == ("NO", "BADCHARSET (US-ASCII UTF-8)")


@pytest.mark.parametrize(
    "text",
    [
        b"SEARCH", b"SEARCH ", b"SEARCH RETURN (ALL)", b"SEARCH RETURN ALL", b"SEARCH RETURN (X) ALL",
        b"SEARCH RETURN (PARTIAL 1:2 ALL) ALL", b"SEARCH RETURN (PARTIAL 1:2 PARTIAL 3:4) ALL",
        b"SEARCH RETURN (PARTIAL 0:1) ALL", b"SEARCH RETURN (PARTIAL -1:1) ALL", b"SEARCH RETURN (PARTIAL *) ALL",
        b"SEARCH CHARSET UTF-8", b"SEARCH ()", b"SEARCH (", b"SEARCH (ALL", b"SEARCH ALL)", b"SEARCH (ALL))",
        b"SEARCH NOT", b"SEARCH OR ALL", b"SEARCH OR (ALL ALL)", b"SEARCH (NOT)", b"SEARCH (OR ALL) ALL",
        b"SEARCH BOGUS",
        b"SEARCH FROM", b"SEARCH HEADER x", b"SEARCH BEFORE x", b"SEARCH LARGER -1", b"SEARCH OLDER 0",
        b"SEARCH KEYWORD", b"SEARCH EMAILID a.b", b'SEARCH MODSEQ "x" all 3', b'SEARCH MODSEQ "/flags/a" x 3',
        b"SEARCH 0", b"SEARCH UID", b"SEARCH UID x", b"SEARCH $,1", b"SEARCH TEXT {1}\r\n\xff", b"SEARCH ALL ALL(ALL)",
        b"SORT DATE UTF-8 ALL", b"SORT () UTF-8 ALL", b"SORT (REVERSE) UTF-8 ALL", b"SORT (DATE) UTF-8",
        b"SORT (X) UTF-8 ALL", b"THREAD X UTF-8 ALL", b"THREAD REFERENCES ALL",
    ],
)  # fmt: skip
def test_invalid_commands_are_refused(text: bytes) -> None:
    with pytest.raises(CommandError):
        parse(text)


def test_message_numbers_under_uidonly() -> None:
    dialect = Dialect(uid_only=True)
    with pytest.raises(CommandError) as caught:
        parse(b"UID SEARCH OR ALL 1:*", dialect)
    assert caught.value.code == "UIDREQUIRED"
    assert parse(b"UID SEARCH UID 1:* $", dialect)


def depth(node: k.SearchKey) -> int:
    match node:
        case k.Or():
            return 1 + max(depth(node.left), depth(node.right))
        case k.Not():
            return 1 + depth(node.key)
        case k.And():
            return 1 + max(map(depth, node.keys))
        case _:
            return 1


def test_nesting_is_limited() -> None:
    deepest = MAX_DEPTH - 1
    assert key(b"(" * deepest + b"ALL" + b")" * deepest) == k.All()
    for text in (
        b"(" * (deepest + 1) + b"ALL" + b")" * (deepest + 1),
        b"NOT OR " * 1000,
        b"(" * 60_000,
        b"NOT (" * 9000,
    ):
        with pytest.raises(CommandError, match="nested"):
            key(text)


def test_long_chains_become_shallow() -> None:
    started = time.process_time()
    assert key(b"NOT " * 15_000 + b"ALL") == k.All()
    for text in (b"OR ALL " * 9000 + b"ALL", b"OR " * 9000 + b"ALL " * 9001):
        assert depth(key(text)) < 20
    wide = key(b"ALL " * 16_000)
    assert isinstance(wide, k.And)
    assert len(wide.keys) == 16_000
    assert time.process_time() - started < 10
