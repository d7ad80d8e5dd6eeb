"""Commands are parsed in every spelling that the grammar allows; anything else is a ProtocolError."""

from __future__ import annotations

import time
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.imap.commands import model as c
from protocol.imap.commands.append import AppendParser
from protocol.imap.commands.registry import COMMANDS, parse_command
from protocol.imap.search import keys as k
from protocol.imap.sequence_set import SAVED, Ranges, SequenceSet
from protocol.imap.wire import utf7
from protocol.imap.wire.events import AFTER_LOGIN, NEED_DATA, CommandLine, LiteralStart, Refused
from protocol.imap.wire.framer import Framer
from protocol.imap.wire.lexer import PLAIN, Dialect

DIALECTS = st.builds(Dialect, utf8=st.booleans(), qresync=st.booleans(), uid_only=st.booleans())
Answer = c.Command | Refused


def drive(stream: bytes, dialect: Dialect) -> list[Answer]:
    """Parse a stream as a session does: every command becomes a value or a refusal."""
    framer = Framer(AFTER_LOGIN)
    framer.feed(stream)
    answers: list[Answer] = []
    append: AppendParser | None = None
    while True:
        try:
            event = framer.next_event()
        except ProtocolError:
            return answers
        if event is NEED_DATA:
            return answers
        try:
            if isinstance(event, LiteralStart):
                if event.message:
                    append = append or AppendParser(event.name, dialect)
                    append.message(event)
                framer.accept()
            elif isinstance(event, CommandLine):
                answers.append(append.finish(event) if append else parse_command(event, dialect))
                append = None
            elif isinstance(event, Refused):
                answers.append(event)
                append = None
        except ProtocolError as error:
            if isinstance(event, LiteralStart):
                framer.refuse("BAD", str(error))
            else:
                answers.append(Refused(b"a", "BAD", None, str(error)))
                append = None


def spellings(value: str) -> st.SearchStrategy[bytes]:
    """Generate all spellings of an astring."""
    octets = value.encode()
    ways = [b"{%d+}\r\n%b" % (len(octets), octets), b"~{%d+}\r\n%b" % (len(octets), octets)]
    if not any(ch in value for ch in "\r\n\0"):
        ways.append(b'"' + octets.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"')
    if octets.isalnum():
        ways.append(octets)
    return st.sampled_from(ways)


@st.composite
def any_case(draw: st.DrawFn, word: bytes) -> bytes:
    return draw(st.sampled_from([word, word.lower(), word.title()]))


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
names = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=8).filter(
    lambda name: not name.upper().startswith("INBOX") and not name.endswith("/")
)
seq_numbers = st.integers(0, 99) | st.just(4294967295)
ranges = st.lists(st.tuples(seq_numbers, seq_numbers), min_size=1, max_size=3).map(tuple)
sets = ranges.map(SequenceSet) | st.just(SAVED)
keywords = st.from_regex(r"\A\$?[A-Za-z][A-Za-z0-9]{0,8}\Z")
flags = st.lists(st.sampled_from(["\\Seen", "\\Deleted", "\\Draft"]) | keywords, unique=True, max_size=3).map(tuple)
days = st.dates(date(1, 1, 1))


def write_ranges(value: Ranges) -> bytes:
    def end(number: int) -> str:
        return str(number) if number else "*"

    return ",".join(end(a) if a == b else f"{end(a)}:{end(b)}" for a, b in value).encode()


def write_set(value: SequenceSet) -> bytes:
    return b"$" if value.saved else write_ranges(value.ranges)


def write_date(draw: st.DrawFn, day: date) -> bytes:
    month = draw(any_case("JanFebMarAprMayJunJulAugSepOctNovDec"[day.month * 3 - 3 : day.month * 3].encode()))
    text = b"%d-%b-%04d" % (day.day, month, day.year)
    return draw(st.sampled_from([text, b'"' + text + b'"']))


leaves: st.SearchStrategy[k.SearchKey] = st.one_of(
    st.just(k.All()),
    st.just(k.SaveDateSupported()),
    st.just(k.ResultKey()),
    st.sampled_from(["\\Seen", "\\Answered", "\\Deleted", "\\Draft", "\\Flagged", "\\Recent"]).map(k.FlagKey),
    st.builds(k.KeywordKey, keywords),
    st.builds(k.DateKey, st.sampled_from(k.DateField), st.sampled_from(k.When), days),
    st.builds(k.SavedKey, st.sampled_from(k.When), days),
    st.builds(k.SizeKey, st.sampled_from(k.SizeIs), st.integers(0, 2**63 - 1)),
    st.builds(k.HeaderKey, st.sampled_from(["from", "to", "cc", "bcc", "subject", "X-Odd"]), texts),
    st.builds(k.BodyKey, texts),
    st.builds(k.TextKey, texts),
    st.builds(k.SeqKey, ranges),
    st.builds(k.UidKey, ranges),
    st.builds(k.ModSeqKey, st.integers(0, 2**63 - 1)),
    st.builds(k.Within, st.sampled_from(k.Age), st.integers(1, 99)),
    st.builds(k.EmailId, st.from_regex(r"\A[A-Za-z0-9_-]{1,20}\Z")),
    st.builds(k.ThreadId, st.from_regex(r"\A[A-Za-z0-9_-]{1,20}\Z")),
)


def grow(inner: st.SearchStrategy[k.SearchKey]) -> st.SearchStrategy[k.SearchKey]:
    """Generate keys in the parser's normal form: no NOT in NOT, no AND in AND, no OR in OR."""
    return st.one_of(
        inner.filter(lambda key: not isinstance(key, k.Not)).map(k.Not),
        st.lists(inner.filter(lambda key: not isinstance(key, k.And)), min_size=2, max_size=3).map(
            lambda keys: k.And(tuple(keys))
        ),
        st.tuples(*[inner.filter(lambda key: not isinstance(key, k.Or))] * 2).map(lambda pair: k.Or(*pair)),
    )


search_keys = st.recursive(leaves, grow, max_leaves=8)


def write_key(draw: st.DrawFn, key: k.SearchKey) -> bytes:
    def word(name: str) -> bytes:
        return draw(any_case(name.encode()))

    match key:
        case k.All():
            return word("ALL")
        case k.SaveDateSupported():
            return word("SAVEDATESUPPORTED")
        case k.ResultKey():
            return draw(st.sampled_from([b"$", b"UID $"]))
        case k.Not(k.FlagKey(name)) if name != "\\Recent" and draw(st.booleans()):
            return word("UN" + name[1:].upper())
        case k.Not(inner):
            return word("NOT") + b" " + write_operand(draw, inner)
        case k.Or(left, right):
            return b" ".join((word("OR"), write_operand(draw, left), write_operand(draw, right)))
        case k.And(keys):
            return b"(" + b" ".join(write_key(draw, one) for one in keys) + b")"
        case k.FlagKey(name):
            return word(name[1:].upper())
        case k.KeywordKey(name):
            return word("KEYWORD") + b" " + name.encode()
        case k.DateKey(field, when, day):
            return word(("SENT" if field is k.DateField.SENT else "") + when.name) + b" " + write_date(draw, day)
        case k.SavedKey(when, day):
            return word("SAVED" + when.name) + b" " + write_date(draw, day)
        case k.SizeKey(size_is, octets):
            return word(size_is.name) + b" %d" % octets
        case k.HeaderKey(name, text):
            head = word("HEADER") + b" " + name.encode() if name == "X-Odd" else word(name.upper())
            return head + b" " + draw(spellings(text))
        case k.BodyKey(text):
            return word("BODY") + b" " + draw(spellings(text))
        case k.TextKey(text):
            return word("TEXT") + b" " + draw(spellings(text))
        case k.SeqKey(value):
            return write_ranges(value)
        case k.UidKey(value):
            return word("UID") + b" " + write_ranges(value)
        case k.ModSeqKey(modseq):
            entry = draw(st.sampled_from([b"", b'"/flags/\\\\seen" all ', b'"/flags/x" PRIV ']))
            return word("MODSEQ") + b" " + entry + b"%d" % modseq
        case k.Within(age, seconds):
            return word(age.name) + b" %d" % seconds
        case k.EmailId(value):
            return word("EMAILID") + b" " + value.encode()
        case k.ThreadId(value):
            return word("THREADID") + b" " + value.encode()


def write_operand(draw: st.DrawFn, key: k.SearchKey) -> bytes:
    text = write_key(draw, key)
    return b"(" + text + b")" if draw(st.booleans()) else text


@st.composite
def written_keys(draw: st.DrawFn) -> tuple[bytes, k.SearchKey]:
    key = draw(search_keys)
    return write_key(draw, key), key


@settings(max_examples=200)
@given(written_keys(), st.sampled_from([b"", b"CHARSET UTF-8 ", b'charset "us-ascii" ']), st.booleans())
def test_every_spelling_of_search_keys_is_parsed(
    expected: tuple[bytes, k.SearchKey], charset: bytes, uid: bool
) -> None:
    text, key = expected
    (command,) = drive(b"a %bSEARCH %b%b\r\n" % (b"UID " * uid, charset, text), PLAIN)
    assert isinstance(command, c.Search)
    assert (command.uid, command.key, command.returns) == (uid, key, None)
    assert command.uses_modseq == ("ModSeqKey" in repr(key))


@st.composite
def written(draw: st.DrawFn) -> tuple[bytes, c.Command, Dialect]:
    """Generate a command in some spelling, its value, and its dialect."""
    dialect = draw(DIALECTS)

    def mailbox(name: str) -> bytes:
        return draw(spellings(name if dialect.utf8 else utf7.encode(name).decode()))

    def word(name: str) -> bytes:
        return draw(any_case(name.encode()))

    uid = draw(st.booleans())
    form = b"UID " * uid
    name, other, chosen = draw(names), draw(names), draw(sets)
    kind = draw(
        st.sampled_from(["delete", "rename", "copy", "move", "store", "select", "status", "list", "login", "append"])
    )
    match kind:
        case "delete":
            return word("DELETE") + b" " + mailbox(name), c.Delete(name), dialect
        case "rename":
            return b" ".join((word("RENAME"), mailbox(name), mailbox(other))), c.Rename(name, other), dialect
        case "copy":
            return (
                b" ".join((form + word("COPY"), write_set(chosen), mailbox(name))),
                c.Copy(uid, chosen, name),
                dialect,
            )
        case "move":
            return (
                b" ".join((form + word("MOVE"), write_set(chosen), mailbox(name))),
                c.Move(uid, chosen, name),
                dialect,
            )
        case "store":
            mode, silent, since = (
                draw(st.sampled_from(c.StoreMode)),
                draw(st.booleans()),
                draw(st.none() | st.integers(0, 9)),
            )
            values = draw(flags)
            text = b" ".join(value.encode() for value in values)
            item = word(mode.value + ".SILENT" * silent)
            modifier = b"" if since is None else b"(%b %d) " % (word("UNCHANGEDSINCE"), since)
            bare = bool(values) and draw(st.booleans())
            stored = b"%bSTORE %b %b%b %b" % (
                form,
                write_set(chosen),
                modifier,
                item,
                text if bare else b"(" + text + b")",
            )
            return stored, c.Store(uid, chosen, mode, values, silent, since), dialect
        case "select":
            read_only, condstore = draw(st.booleans()), draw(st.booleans())
            text = word("EXAMINE" if read_only else "SELECT") + b" " + mailbox(name)
            return text + b" (CONDSTORE)" * condstore, c.Select(name, read_only, condstore), dialect
        case "status":
            items = tuple(draw(st.lists(st.sampled_from(c.StatusItem), min_size=1, unique=True)))
            text = b" ".join(word(item.value) for item in items)
            return b"%b %b (%b)" % (word("STATUS"), mailbox(name), text), c.Status(name, items), dialect
        case "list":
            patterns = tuple(draw(st.lists(names, min_size=2, max_size=3)))
            text = b" ".join(mailbox(pattern) for pattern in patterns)
            return b'%b "" (%b)' % (word("LIST"), text), c.List("", patterns, extended=True), dialect
        case "login":
            user, password = draw(texts), draw(texts)
            text = b" ".join((word("LOGIN"), draw(spellings(user)), draw(spellings(password))))
            return text, c.Login(user, password.encode()), dialect
        case _:
            values, octets, binary = draw(flags), draw(st.binary(max_size=40)), draw(st.booleans())
            literal = b"%b{%d+}\r\n%b" % (b"~" * binary, len(octets), octets)
            text = b" ".join(value.encode() for value in values)
            message = c.AppendMessage(len(octets), values, None, binary)
            return (
                b"%b %b (%b) %b" % (word("APPEND"), mailbox(name), text, literal),
                c.Append(name, (message,)),
                dialect,
            )


@settings(max_examples=200)
@given(st.lists(written(), min_size=1, max_size=3), st.sampled_from([b"", b" "]))
def test_every_spelling_of_a_command_is_parsed(
    expected: list[tuple[bytes, c.Command, Dialect]], trailing: bytes
) -> None:
    for text, command, dialect in expected:
        assert drive(b"tag1 " + text + trailing + b"\r\n", dialect) == [command]
    first = expected[0][2]
    stream = b"".join(b"x " + text + b"\r\n" for text, _, dialect in expected if dialect == first)
    assert drive(stream, first) == [command for _, command, dialect in expected if dialect == first]


words = st.sampled_from(
    b"FLAGS BODY[] BODY.PEEK[HEADER.FIELDS (A)]<0.1> PREVIEW (LAZY) CHANGEDSINCE VANISHED PARTIAL 1:2 -1:-2 RETURN MIN"
    b" SAVE CHARSET UTF-8 OR NOT ALL UID SINCE 1-Jan-2020 $ * 1:* 0 99999999999 NIL USE \\Seen \\* \\ QRESYNC CONDSTORE"
    b' (STATUS UNCHANGEDSINCE +FLAGS.SILENT UTF8 (~{1+}\r\nx) {2+}\r\nab {0} ( ) ) ( [ ] < > " "" "a" &- & &AOk- %'
    b" \xff \x00 REVERSE DATE REFERENCES INBOX".split(b" ")
)
hostile = st.lists(words | st.binary(max_size=4), max_size=12)


@settings(max_examples=600)
@given(st.sampled_from(sorted(COMMANDS)), hostile, st.sampled_from([b" ", b""]), DIALECTS)
def test_hostile_arguments_are_commands_or_refused(
    name: str, parts: list[bytes], glue: bytes, dialect: Dialect
) -> None:
    drive(b"a " + name.encode() + b" " + glue.join(parts) + b"\r\nb NOOP\r\n", dialect)


@settings(max_examples=200)
@given(st.binary(max_size=200), DIALECTS)
def test_any_octets_are_commands_or_refused(stream: bytes, dialect: Dialect) -> None:
    drive(stream, dialect)


@settings(max_examples=200)
@given(st.data(), written())
def test_damaged_commands_are_commands_or_refused(
    data: st.DataObject, expected: tuple[bytes, c.Command, Dialect]
) -> None:
    text, _, dialect = expected
    start = data.draw(st.integers(0, len(text)))
    stop = start + data.draw(st.integers(0, 3))
    drive(b"a " + text[:start] + data.draw(st.binary(max_size=3)) + text[stop:] + b"\r\n", dialect)


@pytest.mark.parametrize(
    "text",
    [
        b"SEARCH " + b"(" * 65000,
        b"SEARCH " + b"NOT " * 16000 + b"ALL",
        b"SEARCH " + b"OR " * 10000 + b"ALL " * 10000 + b"ALL",
        b"SEARCH OR " + b" " * 65000 + b"ALL",
        b"SEARCH TEXT \"" + b"\\\\" * 32000 + b"\"",
        b"SEARCH TEXT \"" + b"\\" * 65000,
        b"SEARCH " + b"1," * 32000 + b"1",
        b"SEARCH " + b"9" * 65000,
        b"SEARCH SUBJECT " + b"x" * 65000,
        b"FETCH 1 (" + b"FLAGS " * 10000 + b")",
        b"FETCH 1 (" + b" " * 65000,
        b"FETCH 1 BODY[" + b"1." * 32000 + b"1]",
        b"FETCH 1 BODY[HEADER.FIELDS (" + b"a " * 32000 + b"a)]",
        b"FETCH 1 BODY[HEADER.FIELDS (" + b"\"a\" " * 16000,
        b"FETCH 1 BINARY[" + b"1." * 32000,
        b"FETCH 1 PREVIEW" + b" " * 65000,
        b"STORE 1 FLAGS (" + b"\\Seen " * 10000 + b")",
        b"STORE 1 FLAGS " + b"a " * 32000,
        b"LIST \"\" (" + b"* " * 32000 + b")",
        b"SELECT " + b"&AOk-" * 13000,
        b"SELECT " + b"&" * 65000,
        b"CREATE " + b"/" * 65000,
        b"ENABLE" + b" X" * 32000,
        b"ID (" + b"\"a\" NIL " * 8000 + b")",
        b"STATUS x (" + b"MESSAGES " * 7000 + b")",
        b"SORT (" + b"REVERSE DATE " * 5000 + b") UTF-8 ALL",
        b"NOOP" + b" " * 65000,
        b"LIST" + b" {1+}\r\nx" * 4000,
    ],
    ids=lambda text: text[:24].decode("latin-1"),
)  # fmt: skip
def test_long_commands_cost_little(text: bytes) -> None:
    started = time.process_time()
    answers = drive(b"a " + text + b"\r\n", PLAIN)
    assert len(answers) == 1
    assert time.process_time() - started < 10
