"""Commands other than FETCH, SEARCH and APPEND: the value of each, and invalid ones."""

from __future__ import annotations

import pytest

from protocol.imap.commands import model as c
from protocol.imap.commands.auth import sasl_response
from protocol.imap.commands.model import Command, ListReturn, ListSelect, StatusItem, StoreMode
from protocol.imap.commands.registry import parse_command
from protocol.imap.sequence_set import SAVED, SequenceSet, parse_set
from protocol.imap.wire.events import AFTER_LOGIN, CommandLine, LiteralStart
from protocol.imap.wire.framer import Framer
from protocol.imap.wire.lexer import PLAIN, CommandError, Dialect

QRESYNC = Dialect(condstore=True, qresync=True)


def parse(text: bytes, dialect: Dialect = PLAIN) -> Command:
    framer = Framer(AFTER_LOGIN)
    framer.feed(b"a " + text + b"\r\n")
    while isinstance(event := framer.next_event(), LiteralStart):
        framer.accept()
    assert isinstance(event, CommandLine)
    return parse_command(event, dialect)


def numbers(*ranges: tuple[int, int]) -> SequenceSet:
    return SequenceSet(ranges)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (b"CAPABILITY", c.Capability()),
        (b"noop ", c.Noop()),
        (b"LOGOUT", c.Logout()),
        (b"STARTTLS", c.StartTls()),
        (b"NAMESPACE", c.Namespace()),
        (b"IDLE", c.Idle()),
        (b"CHECK", c.Check()),
        (b"CLOSE", c.Close()),
        (b"UNSELECT", c.Unselect()),
        (b"EXPUNGE", c.Expunge()),
        (b"UNAUTHENTICATE", c.Unauthenticate()),
        (b"ID NIL", c.Id(())),
        (b"ID ()", c.Id(())),
        (b'ID ("Name" "x" "version" NIL)', c.Id((("name", "x"), ("version", None)))),
        (b"LOGIN bob secret", c.Login("bob", b"secret")),
        (b'LOGIN "b\\"b" {3}\r\n"\\\xff', c.Login('b"b', b'"\\\xff')),
        (b"AUTHENTICATE plain", c.Authenticate("PLAIN")),
        (b"AUTHENTICATE PLAIN AGJvYgBzZWNyZXQ=", c.Authenticate("PLAIN", b"\0bob\0secret")),
        (b"AUTHENTICATE EXTERNAL =", c.Authenticate("EXTERNAL", b"")),
        (b"ENABLE qresync UTF8=ACCEPT X", c.Enable(("QRESYNC", "UTF8=ACCEPT", "X"))),
        (b"COMPRESS deflate", c.Compress("DEFLATE")),
        (b"SELECT inbox", c.Select("INBOX", read_only=False)),
        (b'EXAMINE "a b" (CONDSTORE)', c.Select("a b", read_only=True, condstore=True)),
        (b"CREATE a/b/", c.Create("a/b")),
        (b"CREATE x (USE (\\Sent \\drafts))", c.Create("x", ("\\sent", "\\drafts"))),
        (b"DELETE {3}\r\na b", c.Delete("a b")),
        (b"RENAME inbox old", c.Rename("INBOX", "old")),
        (b"SUBSCRIBE a", c.Subscribe("a")),
        (b"UNSUBSCRIBE a", c.Unsubscribe("a")),
        (b'LSUB "" *', c.Lsub("", "*")),
        (b"STATUS a (messages UIDNEXT size MESSAGES)",
         c.Status("a", (StatusItem.MESSAGES, StatusItem.UIDNEXT, StatusItem.SIZE))),
        (b"STATUS a (RECENT UIDVALIDITY UNSEEN DELETED DELETED-STORAGE HIGHESTMODSEQ MAILBOXID APPENDLIMIT)",
         c.Status("a", (StatusItem.RECENT, StatusItem.UIDVALIDITY, StatusItem.UNSEEN, StatusItem.DELETED,
                        StatusItem.DELETED_STORAGE, StatusItem.HIGHESTMODSEQ, StatusItem.MAILBOXID,
                        StatusItem.APPENDLIMIT))),
        (b'GETQUOTA ""', c.GetQuota("")),
        (b"GETQUOTAROOT inbox", c.GetQuotaRoot("INBOX")),
        (b'SETQUOTA "" (STORAGE 512 message 9)', c.SetQuota("", (("STORAGE", 512), ("MESSAGE", 9)))),
        (b'SETQUOTA "" ()', c.SetQuota("", ())),
        (b"UID EXPUNGE 3:*", c.Expunge(numbers((3, 0)))),
        (b"COPY 1,3 Trash", c.Copy(False, numbers((1, 1), (3, 3)), "Trash")),
        (b"UID COPY $ Trash", c.Copy(True, SAVED, "Trash")),
        (b"MOVE 1:* Trash", c.Move(False, numbers((1, 0)), "Trash")),
        (b"UID MOVE 4 Trash", c.Move(True, numbers((4, 4)), "Trash")),
    ],
)  # fmt: skip
def test_commands_become_values(text: bytes, command: Command) -> None:
    assert parse(text) == command


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (b'LIST "" *', c.List("", ("*",))),
        (b'LIST "" ""', c.List("", ("",))),
        (b"LIST a/ %/b", c.List("a/", ("%/b",))),
        (b'LIST "" {3}\r\n%/%', c.List("", ("%/%",))),
        (b'LIST () "" %', c.List("", ("%",), extended=True)),
        (b'LIST "" (INBOX "a b/*")', c.List("", ("INBOX", "a b/*"), extended=True)),
        (b'LIST (SUBSCRIBED REMOTE RECURSIVEMATCH) "" *',
         c.List("", ("*",), frozenset((ListSelect.SUBSCRIBED, ListSelect.REMOTE, ListSelect.RECURSIVEMATCH)),
                extended=True)),
        (b'list (special-use) "" * return (children)',
         c.List("", ("*",), frozenset((ListSelect.SPECIAL_USE,)), frozenset((ListReturn.CHILDREN,)), extended=True)),
        (b'LIST "" % RETURN (SUBSCRIBED SPECIAL-USE STATUS (MESSAGES UNSEEN))',
         c.List("", ("%",), frozenset(), frozenset((ListReturn.SUBSCRIBED, ListReturn.SPECIAL_USE)),
                (StatusItem.MESSAGES, StatusItem.UNSEEN), extended=True)),
        (b'LIST "" % RETURN ()', c.List("", ("%",), extended=True)),
    ],
)  # fmt: skip
def test_list(text: bytes, command: Command) -> None:
    assert parse(text) == command


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (b"STORE 1 FLAGS ()", c.Store(False, numbers((1, 1)), StoreMode.REPLACE, ())),
        (b"STORE 1:2 +flags.silent \\seen",
         c.Store(False, numbers((1, 2)), StoreMode.ADD, ("\\Seen",), silent=True)),
        (b"UID STORE 9 -FLAGS (\\Deleted $Junk)",
         c.Store(True, numbers((9, 9)), StoreMode.REMOVE, ("\\Deleted", "$Junk"))),
        (b"STORE 1 (UNCHANGEDSINCE 0) FLAGS \\Seen a b",
         c.Store(False, numbers((1, 1)), StoreMode.REPLACE, ("\\Seen", "a", "b"), unchanged_since=0)),
        (b"UID STORE $ (UNCHANGEDSINCE 12) +FLAGS.SILENT (a)",
         c.Store(True, SAVED, StoreMode.ADD, ("a",), silent=True, unchanged_since=12)),
    ],
)  # fmt: skip
def test_store(text: bytes, command: Command) -> None:
    assert parse(text) == command


def test_select_qresync() -> None:
    assert parse(b"SELECT a (QRESYNC (67890007 20050715194045000))", QRESYNC) == c.Select(
        "a", read_only=False, qresync=c.QResync(67890007, 20050715194045000)
    )
    assert parse(b"SELECT a (CONDSTORE QRESYNC (1 2 41,43:211 (1,5 7,9)))", QRESYNC) == c.Select(
        "a",
        read_only=False,
        condstore=True,
        qresync=c.QResync(1, 2, parse_set(b"41,43:211"), c.SeqMatch(parse_set(b"1,5"), parse_set(b"7,9"))),
    )
    assert parse(b"SELECT a (QRESYNC (1 2 (1 1)))", QRESYNC) == c.Select(
        "a", read_only=False, qresync=c.QResync(1, 2, None, c.SeqMatch(parse_set(b"1"), parse_set(b"1")))
    )
    with pytest.raises(CommandError, match="not enabled"):
        parse(b"SELECT a (QRESYNC (1 2))")
    for bad in (
        b"(1)",
        b"(0 2)",
        b"(1 2 *)",
        b"(1 2 $)",
        b"(1 2 1 2)",
        b"(1 2 (1 1) 3)",
        b"(1 2 (1 1) (1 1))",
        b"(1 2",
    ):
        with pytest.raises(CommandError):
            parse(b"SELECT a (QRESYNC " + bad + b")", QRESYNC)


def test_seq_match_needs_message_numbers() -> None:
    with pytest.raises(CommandError) as caught:
        parse(b"SELECT a (QRESYNC (1 2 (1 1)))", Dialect(qresync=True, uid_only=True))
    assert caught.value.code == "UIDREQUIRED"


@pytest.mark.parametrize(
    "text",
    [
        b"NOOP x", b"BOGUS", b"UID", b"UID NOOP", b"LOGIN bob", b"LOGIN bob secret x", b"LOGIN", b"LOGIN (a) b",
        b"LOGIN {1}\r\n\xff x", b"AUTHENTICATE", b"AUTHENTICATE PLAIN ?", b"AUTHENTICATE PLAIN AG", b"ID", b"ID x",
        b'ID ("a")', b'ID ("a" b)', b"ID (" + b'"a" "b" ' * 31 + b")", b"ENABLE", b"COMPRESS",
        b"SELECT", b'SELECT ""', b"SELECT a b", b"SELECT a ()", b"SELECT a (X)", b"SELECT a (CONDSTORE",
        b"CREATE /", b"CREATE a (USE)", b"CREATE a (X)", b"CREATE a (USE (Sent))", b"DELETE a b", b"RENAME a",
        b"LIST", b'LIST ""', b'LIST "" * x', b'LIST "" ()', b'LIST (X) "" *', b'LIST (RECURSIVEMATCH) "" *',
        b'LIST (RECURSIVEMATCH REMOTE) "" *', b'LIST "" * RETURN', b'LIST "" * RETURN (X)',
        b'LIST "" * RETURN (STATUS)', b"STATUS a", b"STATUS a ()", b"STATUS a (X)", b"STATUS a MESSAGES",
        b"STORE 1", b"STORE 0 FLAGS ()", b"STORE 1 FLAGS", b"STORE 1 FLAGSX ()", b"STORE 1 *FLAGS (a)",
        b"STORE 1 (X 1) FLAGS ()", b"STORE 1 (UNCHANGEDSINCE 1 UNCHANGEDSINCE 2) FLAGS ()",
        b"STORE 1 FLAGS (\\Other)", b"STORE 1 FLAGS (a", b"COPY 1", b"COPY x y", b"MOVE $", b"UID EXPUNGE",
        b"EXPUNGE 1", b"SETQUOTA x", b"SETQUOTA x (a)", b"SETQUOTA x (a -1)", b"APPEND", b"APPEND INBOX",
        b"REPLACE 1 INBOX", b"UID REPLACE 1 INBOX",
    ],
)  # fmt: skip
def test_invalid_commands_are_refused(text: bytes) -> None:
    with pytest.raises(CommandError) as caught:
        parse(text)
    assert caught.value.status == "BAD"


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(parse(b"LOGIN bob secret"))
    assert "secret" not in repr(parse(b"AUTHENTICATE PLAIN AGJvYgBzZWNyZXQ="))


def test_sasl_responses() -> None:
    assert sasl_response(b"Ym9i") == b"bob"
    assert sasl_response(b"") == b""
    assert sasl_response(b"*") is None
    with pytest.raises(CommandError):
        sasl_response(b"*x")
