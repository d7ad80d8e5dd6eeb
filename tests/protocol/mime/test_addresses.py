"""Address lists in all their forms."""

from __future__ import annotations

import pytest

from protocol.mime.addresses import MAX_ADDRESSES, Address, Mailbox, mailboxes, parse_addresses


def a(name: bytes | None, mailbox: bytes | None, host: bytes | None, route: bytes | None = None) -> Address:
    return Address(name, route, mailbox, host)


END = Address(None, None, None, None)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"a@x.test", [a(None, b"a", b"x.test")]),
        (b"<a@x.test>", [a(None, b"a", b"x.test")]),
        (b"Ada Lovelace <a@x.test>", [a(b"Ada Lovelace", b"a", b"x.test")]),
        (
            b'"Lovelace, Ada" <a@x.test>, b@y.test',
            [a(b"Lovelace, Ada", b"a", b"x.test"), a(None, b"b", b"y.test")],
        ),
        (b'"A \\"Q\\" B"<a@x.test>', [a(b'A "Q" B', b"a", b"x.test")]),
        (b'John "Q" Public <a@x.test>', [a(b"John Q Public", b"a", b"x.test")]),
        (b"John Q. Public\r\n <a@x.test>", [a(b"John Q. Public", b"a", b"x.test")]),
        (b"a@x.test (Ada L.)", [a(b"Ada L.", b"a", b"x.test")]),
        (b"(c (nested\\)) d) a@x.test", [a(b"c (nested)) d", b"a", b"x.test")]),
        (b'"odd local"@x.test', [a(None, b"odd local", b"x.test")]),
        (b'N <"odd @ local"@x.test>', [a(b"N", b"odd @ local", b"x.test")]),
        (b"a@[192.0.2.1]", [a(None, b"a", b"[192.0.2.1]")]),
        (b"john . doe @ x . test", [a(None, b"john.doe", b"x.test")]),
        (b"Big John. John @ x.test (c)", [a(b"Big", b"John.John", b"x.test")]),
        (b"N <@r1.test,@r2.test:a@x.test>", [a(b"N", b"a", b"x.test", b"@r1.test,@r2.test")]),
        (b"=?utf-8?Q?G,r=C3=BC?= <a@x.test>", [a(b"=?utf-8?Q?G,r=C3=BC?=", b"a", b"x.test")]),
        ("Grüße <a@x.test>".encode(), [a("Grüße".encode(), b"a", b"x.test")]),
        # groups
        (b"undisclosed-recipients:;", [a(None, b"undisclosed-recipients", None), END]),
        (
            b"A Group: Ed <e@x.test>, j@y.test;, z@z.test",
            [
                a(None, b"A Group", None),
                a(b"Ed", b"e", b"x.test"),
                a(None, b"j", b"y.test"),
                END,
                a(None, b"z", b"z.test"),
            ],
        ),
        (b"open: a@x.test", [a(None, b"open", None), a(None, b"a", b"x.test"), END]),
        # broken, but readable
        (b"", []),
        (b" , ,", []),
        (b"a", [a(None, b"a", b"")]),
        (b"Just A Name", [a(b"Just A Name", b"", b"")]),
        (b"Name <>", [a(b"Name", b"", b"")]),
        (b"<a>", [a(None, b"a", b"")]),
        (b"@x.test", [a(None, b"", b"x.test")]),
        (b"Ada a@x.test", [a(b"Ada", b"a", b"x.test")]),
        (b"a@x.test; b@y.test", [a(None, b"a", b"x.test"), a(None, b"b", b"y.test")]),
        (b"<<a@x.test>>", [a(None, b"a", b"x.test")]),
        (b"Ada <a@x.test, b@y.test", [a(b"Ada", b"a", b"x.test"), a(None, b"b", b"y.test")]),
        (b'"Ada <a@x.test>, B <b@y.test>', [a(b"Ada", b"a", b"x.test"), a(b"B", b"b", b"y.test")]),
        (b'"\\"Ada\\" <a@x.test>', [a(b"\\ Ada\\", b"a", b"x.test")]),
        (b"a@x.test (unfinished", [a(b"unfinished", b"a", b"x.test")]),
        (b"a@b@x.test", [a(None, b"a@b", b"x.test")]),
        (b"<a@b@x.test>", [a(None, b"a@b", b"x.test")]),
        (b"a@x.test b@y.test", [a(None, b"a", b"x.test")]),
    ],
)
def test_address_lists_are_parsed(raw: bytes, expected: list[Address]) -> None:
    assert parse_addresses(raw) == expected


def test_mailboxes_are_decoded_and_groups_flattened() -> None:
    raw = b'=?utf-8?Q?Gr=C3=BC=C3=9Fe?= <a@x.test>, G: "b c"@y.test, plain;, None <>, <>, "a\\"b"@z.test'
    assert mailboxes(raw) == [
        Mailbox("Grüße", "a@x.test"),
        Mailbox("", '"b c"@y.test'),
        Mailbox("", "plain"),
        Mailbox("None", ""),
        Mailbox("", '"a\\"b"@z.test'),
    ]


@pytest.mark.parametrize("raw", [b"a@x.test, ", b"a:;", b"G: b c <a@x.test>,"])
def test_endless_list_is_truncated(raw: bytes) -> None:
    assert MAX_ADDRESSES <= len(parse_addresses(raw * (MAX_ADDRESSES + 1000))) <= MAX_ADDRESSES + 2
