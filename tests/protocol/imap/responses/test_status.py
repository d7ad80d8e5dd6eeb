"""Exact octets of status responses, response codes, and data about server, account and folders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import MailError, Reason
from protocol.imap.flags import KEYWORD_LIMIT, SEEN, FlagTable
from protocol.imap.responses import codes, status
from protocol.imap.wire.lexer import PLAIN as REV1
from protocol.imap.wire.lexer import Dialect
from protocol.imap.wire.strings import astring, mailbox, string, text

REV2 = Dialect(rev2=True, utf8=True)
UTF8 = Dialect(utf8=True)


def test_conditions() -> None:
    assert status.ok(b"A1", "Done") == b"A1 OK Done\r\n"
    assert status.ok(None, "Hello", codes.capability([b"IMAP4rev1", b"IDLE"])) == (
        b"* OK [CAPABILITY IMAP4rev1 IDLE] Hello\r\n"
    )
    assert status.no(b"A1", "No", codes.TRYCREATE) == b"A1 NO [TRYCREATE] No\r\n"
    assert status.bad(None, "What") == b"* BAD What\r\n"
    assert status.bye("Down", codes.UNAVAILABLE) == b"* BYE [UNAVAILABLE] Down\r\n"
    assert status.continuation("Go") == b"+ Go\r\n"
    assert status.challenge(b"") == b"+ \r\n"
    assert status.challenge(b"VXNlcm5hbWU6") == b"+ VXNlcm5hbWU6\r\n"


@given(st.text())
def test_text_cannot_forge_a_response(line: str) -> None:
    """With any text, a response is one line without a forged response code."""
    sent = status.ok(b"A1", line)
    assert sent.count(b"\r") == sent.count(b"\n") == 1
    assert sent.isascii()
    assert len(sent) > len(b"A1 OK \r\n")
    assert not sent.startswith(b"A1 OK [")


def test_text() -> None:
    assert text("") == b"-"
    assert text("[ALERT] x") == b" [ALERT] x"
    assert text("a\r\n* BYE") == b"a?* BYE"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (codes.permanentflags(b"(\\Seen \\*)"), b"PERMANENTFLAGS (\\Seen \\*)"),
        (codes.uidnext(5), b"UIDNEXT 5"),
        (codes.uidvalidity(4294967295), b"UIDVALIDITY 4294967295"),
        (codes.unseen(3), b"UNSEEN 3"),
        (codes.appenduid(7, [5]), b"APPENDUID 7 5"),
        (codes.appenduid(7, [5, 6, 7]), b"APPENDUID 7 5:7"),
        (codes.copyuid(7, [1, 2, 3, 9], [10, 11, 12, 13]), b"COPYUID 7 1:3,9 10:13"),
        (codes.highestmodseq(1 << 62), b"HIGHESTMODSEQ 4611686018427387904"),
        (codes.modified([7, 9]), b"MODIFIED 7,9"),
        (codes.mailboxid("F1"), b"MAILBOXID (F1)"),
        (codes.inprogress(b"A1", 4, 10), b'INPROGRESS ("A1" 4 10)'),
        (codes.inprogress(b"A1"), b'INPROGRESS ("A1" NIL NIL)'),
        (codes.messagelimit(1000), b"MESSAGELIMIT 1000"),
        (codes.messagelimit(1000, 23221), b"MESSAGELIMIT 1000 23221"),
    ],
)
def test_codes(code: bytes, expected: bytes) -> None:
    assert code == expected


@pytest.mark.parametrize(
    ("name", "rev1", "utf8"),
    [
        ("INBOX", b"INBOX", b"INBOX"),
        ("a/b", b"a/b", b"a/b"),
        ("Sent Mail", b'"Sent Mail"', b'"Sent Mail"'),
        ("Entwürfe", b"Entw&APw-rfe", '"Entwürfe"'.encode()),
        ("R&D", b"R&-D", b"R&D"),
        ("nil", b'"nil"', b'"nil"'),
        ("", b'""', b'""'),
        ('a"b\\c', b'"a\\"b\\\\c"', b'"a\\"b\\\\c"'),
        ("50%", b'"50%"', b'"50%"'),
        ("(x)", b'"(x)"', b'"(x)"'),
        ("a]b", b"a]b", b"a]b"),
    ],
)
def test_mailbox_names(name: str, rev1: bytes, utf8: bytes) -> None:
    assert mailbox(name, REV1) == rev1
    assert mailbox(name, REV2) == mailbox(name, UTF8) == utf8


def test_strings() -> None:
    assert string(b"") == b'""'
    assert string(b"a\r\nb") == b"{4}\r\na\r\nb"
    assert string("ä".encode()) == b"{2}\r\n\xc3\xa4"
    assert string("ä".encode(), utf8=True) == '"ä"'.encode()
    assert string(b"a\0b", utf8=True) == b'"ab"'
    assert astring(b"A1.x-y") == b"A1.x-y"
    assert astring(b"a{1}") == b'"a{1}"'
    assert string(b"x" * 2000, utf8=True).startswith(b"{2000}\r\n")


def test_server_data() -> None:
    assert status.capability([b"IMAP4rev1", b"IDLE"]) == b"* CAPABILITY IMAP4rev1 IDLE\r\n"
    assert status.enabled([b"QRESYNC"]) == b"* ENABLED QRESYNC\r\n"
    assert status.enabled([]) == b"* ENABLED\r\n"
    assert status.id_response({"name": "Markpost", "os": None}) == b'* ID ("name" "Markpost" "os" NIL)\r\n'
    assert status.id_response({}) == b"* ID NIL\r\n"
    assert status.namespace([""], dialect=REV1) == b'* NAMESPACE (("" "/")) NIL NIL\r\n'
    assert status.namespace([""], ["Users/"], ["Gemäß/"], dialect=REV1) == (
        b'* NAMESPACE (("" "/")) (("Users/" "/")) (("Gem&AOQA3w-/" "/"))\r\n'
    )
    assert status.namespace([""], [], ["Gemäß/"], dialect=REV2).endswith('(("Gemäß/" "/"))\r\n'.encode())


def test_list() -> None:
    assert status.list_response("INBOX", [b"\\HasNoChildren"], REV1) == (b'* LIST (\\HasNoChildren) "/" INBOX\r\n')
    assert status.list_response("ä", [b"\\Sent", b"\\Subscribed"], REV1) == (
        b'* LIST (\\Sent \\Subscribed) "/" &AOQ-\r\n'
    )
    assert status.list_response("a", [], REV1, child_info=[b"SUBSCRIBED"]) == (
        b'* LIST () "/" a ("CHILDINFO" ("SUBSCRIBED"))\r\n'
    )
    assert status.list_response("new", [], REV2, old_name="old name") == (
        b'* LIST () "/" new ("OLDNAME" ("old name"))\r\n'
    )
    both = status.list_response("n", [], REV2, child_info=[b"SUBSCRIBED"], old_name="o")
    assert both == b'* LIST () "/" n ("CHILDINFO" ("SUBSCRIBED") "OLDNAME" (o))\r\n'
    assert status.lsub_response("a b", [b"\\NoSelect"], REV1) == b'* LSUB (\\NoSelect) "/" "a b"\r\n'


def test_status_and_quota() -> None:
    items: list[tuple[bytes, int | bytes]] = [(b"MESSAGES", 3), (b"MAILBOXID", b"(F1)"), (b"APPENDLIMIT", b"NIL")]
    assert status.status_response("a b", items, REV1) == (
        b'* STATUS "a b" (MESSAGES 3 MAILBOXID (F1) APPENDLIMIT NIL)\r\n'
    )
    assert status.status_response("a", [], REV1) == b"* STATUS a ()\r\n"
    assert status.quota("", [(b"STORAGE", 10, 512), (b"MESSAGE", 1, 9)]) == (
        b'* QUOTA "" (STORAGE 10 512 MESSAGE 1 9)\r\n'
    )
    assert status.quota_root("INBOX", [""], REV1) == b'* QUOTAROOT INBOX ""\r\n'
    assert status.quota_root("INBOX", [], REV1) == b"* QUOTAROOT INBOX\r\n"
    assert status.vanished([3, 4, 5, 9]) == b"* VANISHED 3:5,9\r\n"
    assert status.vanished([3], earlier=True) == b"* VANISHED (EARLIER) 3\r\n"


def select(dialect: Dialect, **changes: object) -> bytes:
    values: dict[str, object] = {
        "name": "INBOX",
        "exists": 3,
        "flags": FlagTable(["$Junk"]),
        "uidvalidity": 7,
        "uidnext": 10,
        "highestmodseq": 99,
        "mailbox_id": "F1",
        "first_unseen": 2,
    }
    return status.selected(status.SelectedFolder(**{**values, **changes}), dialect)  # type: ignore[arg-type]


def test_select_rev1() -> None:
    flags = b"\\Seen \\Answered \\Flagged \\Deleted \\Draft $Junk"
    assert select(REV1) == (
        b"* FLAGS (" + flags + b")\r\n"
        b"* OK [PERMANENTFLAGS (" + flags + b" \\*)] Flags permitted\r\n"
        b"* 3 EXISTS\r\n"
        b"* 0 RECENT\r\n"
        b"* OK [UNSEEN 2] First unseen\r\n"
        b"* OK [UIDVALIDITY 7] UIDs valid\r\n"
        b"* OK [UIDNEXT 10] Predicted next UID\r\n"
        b"* OK [HIGHESTMODSEQ 99] Highest\r\n"
        b"* OK [MAILBOXID (F1)] Ok\r\n"
    )
    assert b"UNSEEN" not in select(REV1, first_unseen=None)
    assert b"[PERMANENTFLAGS ()]" in select(REV1, read_only=True)


def test_select_other_dialects() -> None:
    rev2 = select(REV2)
    assert b"RECENT" not in rev2
    assert b"UNSEEN" not in rev2
    assert rev2.endswith(b'* LIST () "/" INBOX\r\n')
    assert b"UNSEEN" not in select(Dialect(uid_only=True))


def test_flag_table() -> None:
    table = FlagTable(["$Junk"])
    assert table.mask(["\\seen", "$JUNK", "\\Recent"]) == SEEN | 32
    assert table.encoded[SEEN | 32] == b"(\\Seen $Junk)"
    assert table.encoded[0] == b"()"
    assert table.names(33) == ["\\Seen", "$Junk"]
    assert table.mask(["New", "new"]) == 64
    assert table.keywords == ["$Junk", "New"]
    assert table.bit("NEW") == 64
    assert table.bit("other") == 0
    assert len(table) == 7


def test_flag_table_limit() -> None:
    table = FlagTable()
    table.mask([f"k{n}" for n in range(KEYWORD_LIMIT)])
    with pytest.raises(MailError) as full:
        table.mask(["\\Seen", "k5", "one-more"])
    assert full.value.reason is Reason.LIMIT
    assert table.bit("one-more") == 0
    assert b"\\*" not in table.permanent_flags(False)
    assert table.mask(["k5"]) == table.bit("K5")
    for mask in range(10_000):
        assert table.encoded[mask].endswith(b")")
    assert len(table.encoded) < 5000
