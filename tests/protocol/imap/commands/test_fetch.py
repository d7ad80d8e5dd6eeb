"""FETCH: every item and modifier, and the labels of the responses."""

from __future__ import annotations

import pytest

from protocol.imap.commands.fetch_items import Attribute, BinaryPart, BinarySize, BodyPart, FetchItem, Preview
from protocol.imap.commands.model import Command, Fetch, Partial
from protocol.imap.commands.registry import parse_command
from protocol.imap.sequence_set import SAVED, parse_set
from protocol.imap.wire.events import AFTER_LOGIN, CommandLine, LiteralStart
from protocol.imap.wire.framer import Framer
from protocol.imap.wire.lexer import PLAIN, CommandError, Dialect
from protocol.mime.sections import Section

FAST = (Attribute.FLAGS, Attribute.INTERNALDATE, Attribute.RFC822_SIZE)


def parse(text: bytes, dialect: Dialect = PLAIN) -> Command:
    framer = Framer(AFTER_LOGIN)
    framer.feed(b"a " + text + b"\r\n")
    while isinstance(event := framer.next_event(), LiteralStart):
        framer.accept()
    assert isinstance(event, CommandLine)
    return parse_command(event, dialect)


def items(text: bytes) -> tuple[FetchItem, ...]:
    command = parse(b"FETCH 1 " + text)
    assert isinstance(command, Fetch)
    return command.items


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"ALL", (*FAST, Attribute.ENVELOPE)),
        (b"fast", FAST),
        (b"FULL", (*FAST, Attribute.ENVELOPE, Attribute.BODY)),
        (b"FLAGS", (Attribute.FLAGS,)),
        (b"(UID ENVELOPE BODYSTRUCTURE BODY)",
         (Attribute.UID, Attribute.ENVELOPE, Attribute.BODYSTRUCTURE, Attribute.BODY)),
        (b"(modseq emailid THREADID savedate)",
         (Attribute.MODSEQ, Attribute.EMAILID, Attribute.THREADID, Attribute.SAVEDATE)),
        (b"(FLAGS flags FLAGS)", (Attribute.FLAGS,)),
        (b"PREVIEW", (Preview(),)),
        (b"(PREVIEW (LAZY) UID)", (Preview(lazy=True), Attribute.UID)),
        (b"BODY[]", (BodyPart(b"BODY[]", Section(), None, peek=False),)),
        (b"BODY.PEEK[]<5.10>", (BodyPart(b"BODY[]<5>", Section(), (5, 10), peek=True),)),
        (b"body[header]", (BodyPart(b"BODY[HEADER]", Section((), "HEADER"), None, peek=False),)),
        (b"BODY.PEEK[1.2.Mime]", (BodyPart(b"BODY[1.2.MIME]", Section((1, 2), "MIME"), None, peek=True),)),
        (b"BODY[1]", (BodyPart(b"BODY[1]", Section((1,)), None, peek=False),)),
        (b"BODY.PEEK[2.TEXT]", (BodyPart(b"BODY[2.TEXT]", Section((2,), "TEXT"), None, peek=True),)),
        (b"BODY.PEEK[header.fields (To Cc)]",
         (BodyPart(b"BODY[HEADER.FIELDS (To Cc)]", Section((), "HEADER.FIELDS", ("To", "Cc")), None, peek=True),)),
        (b'BODY.PEEK[3.HEADER.FIELDS.NOT ("Date" x]y "a\\"b")]<0.1>',
         (BodyPart(b'BODY[3.HEADER.FIELDS.NOT (Date x]y "a\\"b")]<0>',
                   Section((3,), "HEADER.FIELDS.NOT", ("Date", "x]y", 'a"b')), (0, 1), peek=True),)),
        (b"BODY[HEADER.FIELDS ({2}\r\nTo {3+}\r\na(b)]",
         (BodyPart(b'BODY[HEADER.FIELDS (To "a(b")]', Section((), "HEADER.FIELDS", ("To", "a(b")), None, peek=False),)),
        (b"RFC822", (BodyPart(b"RFC822", Section(), None, peek=False),)),
        (b"RFC822.HEADER", (BodyPart(b"RFC822.HEADER", Section((), "HEADER"), None, peek=True),)),
        (b"RFC822.TEXT", (BodyPart(b"RFC822.TEXT", Section((), "TEXT"), None, peek=False),)),
        (b"RFC822.SIZE", (Attribute.RFC822_SIZE,)),
        (b"BINARY[]", (BinaryPart(b"BINARY[]", (), None, peek=False),)),
        (b"BINARY.PEEK[1.2]<0.100>", (BinaryPart(b"BINARY[1.2]<0>", (1, 2), (0, 100), peek=True),)),
        (b"BINARY.SIZE[3]", (BinarySize(b"BINARY.SIZE[3]", (3,)),)),
        (b"BODY.PEEK[1]<7>", (BodyPart(b"BODY[1]<7>", Section((1,)), (7, 2**63 - 1), peek=True),)),
        (b"BINARY[2.mime]", (BinaryPart(b"BINARY[2.MIME]", (2,), None, False, Section((2,), "MIME")),)),
        (b"BINARY.SIZE[text]", (BinarySize(b"BINARY.SIZE[TEXT]", (), Section((), "TEXT")),)),
    ],
)  # fmt: skip
def test_items(text: bytes, expected: tuple[FetchItem, ...]) -> None:
    assert items(text) == expected
    assert items(text) == expected  # from the cache


def test_uid_fetch_always_asks_for_the_uid() -> None:
    assert parse(b"UID FETCH 1:* FLAGS") == Fetch(True, parse_set(b"1:*"), (Attribute.UID, Attribute.FLAGS))
    assert parse(b"UID FETCH $ (FLAGS UID)") == Fetch(True, SAVED, (Attribute.FLAGS, Attribute.UID))
    assert parse(b"FETCH $ FLAGS") == Fetch(False, SAVED, (Attribute.FLAGS,))


def test_modifiers() -> None:
    messages = parse_set(b"1:5")
    flags = (Attribute.UID, Attribute.FLAGS)
    assert parse(b"FETCH 1:5 FLAGS (CHANGEDSINCE 12345)") == Fetch(
        False, messages, (Attribute.FLAGS, Attribute.MODSEQ), changed_since=12345
    )
    assert parse(b"UID FETCH 1:5 FLAGS (changedsince 7 VANISHED)", Dialect(qresync=True)) == Fetch(
        True, messages, (*flags, Attribute.MODSEQ), changed_since=7, vanished=True
    )
    assert parse(b"UID FETCH 1:5 (FLAGS) (PARTIAL -1:-30)") == Fetch(True, messages, flags, partial=Partial(-1, -30))
    assert parse(b"FETCH 1:5 PREVIEW (LAZY) (CHANGEDSINCE 1)") == Fetch(
        False, messages, (Preview(lazy=True), Attribute.MODSEQ), changed_since=1
    )
    assert parse(b"FETCH 1:5 PREVIEW (CHANGEDSINCE 1)") == Fetch(
        False, messages, (Preview(), Attribute.MODSEQ), changed_since=1
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"BODY[]", True), (b"BODY.PEEK[]", False), (b"RFC822", True), (b"RFC822.HEADER", False),
        (b"RFC822.TEXT", True), (b"BINARY[1]", True), (b"BINARY.PEEK[1]", False),
        (b"BINARY.SIZE[1]", False), (b"(FLAGS ENVELOPE)", False),
    ],
)  # fmt: skip
def test_sets_seen(text: bytes, expected: bool) -> None:
    command = parse(b"FETCH 1 " + text)
    assert isinstance(command, Fetch)
    assert command.sets_seen is expected


def test_long_and_literal_requests_are_parsed() -> None:
    names = b" ".join(b"X-%d" % n for n in range(400))
    assert items(b"(BODY.PEEK[HEADER.FIELDS (" + names + b")])")
    assert len(items(b"(" + b" ".join(b"BODY[%d]" % n for n in range(1, 3000)) + b")")) == 2999


@pytest.mark.parametrize(
    "text",
    [
        b"", b"()", b"X", b"(X)", b"FLAGS UID", b"(FLAGS", b"(FLAGS))", b"((FLAGS))", b"BODY[", b"BODY[X]",
        b"BODY[MIME]", b"BODY[0]", b"BODY[1.]", b"BODY[.1]", b"BODY[1..2]", b"BODY[HEADER.FIELDS]",
        b"BODY[HEADER.FIELDS ()]", b"BODY[HEADER.FIELDS (a", b"BODY[HEADER.FIELDS (a b)", b"BODY[TEXT (a)]",
        b"BODY[HEADER.FIELDS (a:b)]", b'BODY[HEADER.FIELDS ("a b")]', b'BODY[HEADER.FIELDS ("")]',
        b"BODY[HEADER.FIELDS ({4}\r\na\r\nb)]", b"BODY[]<1.>", b"BODY[]<1.2", b"BODY[]<-1.2>", b"BODY[]<1.2>x",
        b"BODY.PEEK", b"BINARY", b"BINARY[FROB]", b"BINARY[0]", b"BINARY[1", b"BINARY.SIZE[1]<0.1>", b"FLAGS[]",
        b"FLAGS ()", b"FLAGS (X)", b"FLAGS (CHANGEDSINCE)", b"FLAGS (CHANGEDSINCE x)", b"FLAGS (VANISHED)",
        b"FLAGS (CHANGEDSINCE 1 VANISHED)", b"FLAGS (PARTIAL 1:-2)", b"PREVIEW (EAGER)", b"BODY[1.2.3",
    ],
)  # fmt: skip
def test_invalid_commands_are_refused(text: bytes) -> None:
    with pytest.raises(CommandError):
        parse(b"FETCH 1 " + text)


def test_vanished_needs_qresync() -> None:
    with pytest.raises(CommandError, match="not enabled"):
        parse(b"UID FETCH 1 FLAGS (CHANGEDSINCE 1 VANISHED)")
