from __future__ import annotations

import pytest

from protocol.smtp import replies
from protocol.smtp.commands import Body, OriginalRecipient, Ret, parse_auth, parse_hello, parse_mail, parse_rcpt
from protocol.smtp.paths import NULL, Path, parse_domain, parse_path
from protocol.smtp.replies import Reply, SmtpError


@pytest.mark.parametrize(
    ("text", "local", "domain", "address"),
    [
        ("<>", "", "", ""),
        ("<Ada@Example.TEST>", "Ada", "example.test", "Ada@example.test"),
        ("<@relay.test,@b.test:ada@example.test>", "ada", "example.test", "ada@example.test"),
        ('<"ada lovelace"@example.test>', "ada lovelace", "example.test", '"ada lovelace"@example.test'),
        ('<"ada"@example.test>', "ada", "example.test", "ada@example.test"),
        (r'<"a\"b\\c>"@example.test>', 'a"b\\c>', "example.test", r'"a\"b\\c>"@example.test'),
        ("<ada@[192.0.2.1]>", "ada", "[192.0.2.1]", "ada@[192.0.2.1]"),
        ("<ada@[ipv6:2001:DB8::0:1]>", "ada", "[IPv6:2001:db8::1]", "ada@[IPv6:2001:db8::1]"),
        ("<a..b.@example.test>", "a..b.", "example.test", "a..b.@example.test"),
        ("<bounces+ada=example.test@list.test>", "bounces+ada=example.test", "list.test", None),
        ("<ada@my_host>", "ada", "my_host", "ada@my_host"),
        ("<jürgen@bücher.example>", "jürgen", "bücher.example", "jürgen@bücher.example"),
        ("<postmaster>", "postmaster", "", "postmaster"),
    ],
)
def test_path_is_parsed_to_local_part_and_domain(text: str, local: str, domain: str, address: str | None) -> None:
    parsed = parse_path(text + " SIZE=1")
    assert parsed is not None
    path, rest = parsed
    assert path == Path(local, domain)
    assert rest == " SIZE=1"
    if address is not None:
        assert path.address == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ada@example.test",
        "<ada@example.test",
        "<ada@>",
        "<@example.test>",
        "<@relay.test:>",
        "<ada@exa mple.test>",
        "<ada @example.test>",
        "<ada@-example.test>",
        "<ada@example..test>",
        "<ada@example.test.>",
        "<ada@[300.1.1.1]>",
        "<ada@[IPv6:fe80::1%eth0]>",
        "<ada@[tag:x]>",
        "<ada@[1.2.3.4>",
        "<a@b@example.test>",
        '<""@example.test>',
        '<"a@example.test>',
        '<"a\rb"@example.test>',
        '<"postmaster">',
        "<a\x00b@example.test>",
        "<a\u2028b@example.test>",
        "<a\u0085b@example.test>",
        "<" + "a" * 257 + "@example.test>",
        "<a@" + "a" * 64 + ".test>",
        "<a@" + ".".join(["a" * 60] * 5) + ">",
        "< ada@example.test>",
        "<ada@example.test >",
    ],
)
def test_invalid_path_is_refused(text: str) -> None:
    assert parse_path(text) is None


def test_domains_have_one_canonical_form() -> None:
    assert parse_domain("Example.Test") == "example.test"
    assert parse_domain("xn--bcher-kva.example") == "xn--bcher-kva.example"
    assert parse_domain("") is None


def test_mail_with_every_parameter() -> None:
    command = parse_mail(
        b"FROM:<ada@example.test> SIZE=12345 body=8bitmime SMTPUTF8 RET=hdrs ENVID=QQ+2B314 "
        b"AUTH=ada+40example.test REQUIRETLS"
    )
    assert command.path.address == "ada@example.test"
    assert command.size == 12345
    assert command.body is Body.EIGHT_BIT
    assert command.smtputf8
    assert command.ret is Ret.HEADERS
    assert command.envid == "QQ+314"
    assert command.auth == "ada@example.test"
    assert command.requiretls


def test_mail_without_parameters() -> None:
    command = parse_mail(b"from: <>\t BODY=BINARYMIME  AUTH=<> ")
    assert command.path == NULL
    assert command.body is Body.BINARY
    assert command.auth == ""
    assert command.size is None


@pytest.mark.parametrize(
    ("argument", "reply"),
    [
        (b"", replies.BAD_SYNTAX),
        (b"TO:<a@b.test>", replies.BAD_SYNTAX),
        (b"FROM <a@b.test>", replies.BAD_SYNTAX),
        (b"FROM:", replies.BAD_SENDER),
        (b"FROM:<postmaster>", replies.BAD_SENDER),
        (b"FROM:<a@b.test>SIZE=1", replies.BAD_SENDER),
        (b"FROM:<\xff@b.test>", replies.BAD_SENDER),
        (b"FROM:<a@b.test> FOO=1", replies.UNKNOWN_PARAMETER),
        (b"FROM:<a@b.test> FOO", replies.UNKNOWN_PARAMETER),
        (b"FROM:<a@b.test> NOTIFY=NEVER", replies.UNKNOWN_PARAMETER),
        (b"FROM:<a@b.test> SIZE=1 size=2", replies.DUPLICATE_PARAMETER),
        (b"FROM:<a@b.test> SMTPUTF8 SMTPUTF8", replies.DUPLICATE_PARAMETER),
        (b"FROM:<a@b.test> SIZE", replies.BAD_PARAMETER),
        (b"FROM:<a@b.test> SIZE=", replies.BAD_SYNTAX),
        (b"FROM:<a@b.test> SIZE=1=2", replies.BAD_SYNTAX),
        (b"FROM:<a@b.test> SIZE=-1", replies.BAD_PARAMETER),
        (b"FROM:<a@b.test> SIZE=" + b"9" * 21, replies.BAD_PARAMETER),
        (b"FROM:<a@b.test> BODY=9BIT", replies.BAD_PARAMETER),
        (b"FROM:<a@b.test> SMTPUTF8=1", replies.BAD_PARAMETER),
        (b"FROM:<a@b.test> RET=SOME", replies.BAD_PARAMETER),
        (b"FROM:<a@b.test> ENVID=a+0D+0AEvil:", replies.BAD_PARAMETER),
        (b"FROM:<a@b.test> ENVID=+ZZ", replies.BAD_PARAMETER),
        (b"FROM:<a@b.test> ENVID=" + b"x" * 101, replies.BAD_PARAMETER),
        (b"FROM:<a@b.test> AUTH=" + b"x" * 501, replies.BAD_PARAMETER),
        ("FROM:<a@b.test> ENVID=é".encode(), replies.BAD_PARAMETER),
        ("FROM:<é@b.test>".encode(), replies.UTF8_NEEDED),
        ("FROM:<a@é.test>".encode(), replies.UTF8_NEEDED),
        (b"FROM:<a@b.test> =1", replies.BAD_SYNTAX),
    ],
)
def test_invalid_mail_is_refused(argument: bytes, reply: Reply) -> None:
    with pytest.raises(SmtpError) as caught:
        parse_mail(argument)
    assert caught.value.reply == reply


def test_parameter_that_is_not_offered_is_refused() -> None:
    assert parse_mail(b"FROM:<a@b.test> SIZE=1", {"SIZE"}).size == 1
    with pytest.raises(SmtpError) as caught:
        parse_mail(b"FROM:<a@b.test> REQUIRETLS", {"SIZE"})
    assert caught.value.reply == replies.UNKNOWN_PARAMETER


def test_rcpt_with_every_parameter() -> None:
    command = parse_rcpt(b"TO:<Bob@example.test> NOTIFY=success,DELAY ORCPT=rfc822;Bob+2Bx@Example.Test")
    assert command.path.address == "Bob@example.test"
    assert command.notify == frozenset({"SUCCESS", "DELAY"})
    assert command.orcpt == OriginalRecipient("rfc822", "Bob+x@Example.Test")
    assert command.orcpt.parameter == "rfc822;Bob+2Bx@Example.Test"
    assert parse_rcpt(b"TO:<Postmaster>").path == Path("Postmaster", "")
    assert parse_rcpt(b"TO:<a@b.test> NOTIFY=NEVER").notify == frozenset()
    assert parse_rcpt(b"TO:<a@b.test>").notify is None


def test_international_recipient_needs_smtputf8() -> None:
    argument = "TO:<jürgen@bücher.test> ORCPT=utf-8;jürgen@bücher.test".encode()
    command = parse_rcpt(argument, smtputf8=True)
    assert command.orcpt == OriginalRecipient("utf-8", "jürgen@bücher.test")
    assert command.orcpt.parameter == r"utf-8;j\x{FC}rgen@b\x{FC}cher.test"
    again = parse_rcpt(f"TO:<a@b.test> ORCPT={command.orcpt.parameter}".encode())
    assert again.orcpt == command.orcpt


@pytest.mark.parametrize(
    ("argument", "reply"),
    [
        (b"TO:<>", replies.BAD_RECIPIENT),
        (b"TO:<bob>", replies.BAD_RECIPIENT),
        (b"FROM:<a@b.test>", replies.BAD_SYNTAX),
        (b"TO:<a@b.test> NOTIFY=NEVER,DELAY", replies.BAD_PARAMETER),
        (b"TO:<a@b.test> NOTIFY=", replies.BAD_SYNTAX),
        (b"TO:<a@b.test> NOTIFY=SUCCESS,", replies.BAD_PARAMETER),
        (b"TO:<a@b.test> ORCPT=rfc822", replies.BAD_PARAMETER),
        (b"TO:<a@b.test> ORCPT=rfc822;", replies.BAD_PARAMETER),
        (b"TO:<a@b.test> ORCPT=;a", replies.BAD_PARAMETER),
        (b"TO:<a@b.test> ORCPT=rfc822;a+0Ab", replies.BAD_PARAMETER),
        (rb"TO:<a@b.test> ORCPT=utf-8;a\x{0A}b", replies.BAD_PARAMETER),
        (rb"TO:<a@b.test> ORCPT=utf-8;a\x{D800}b", replies.BAD_PARAMETER),
        (rb"TO:<a@b.test> ORCPT=utf-8;a\x{FFFFFF}b", replies.BAD_PARAMETER),
        (b"TO:<a@b.test> ORCPT=rfc822;" + b"x" * 500, replies.BAD_PARAMETER),
        (b"TO:<a@b.test> SIZE=1", replies.UNKNOWN_PARAMETER),
        ("TO:<é@b.test>".encode(), replies.UTF8_NEEDED),
    ],
)
def test_invalid_rcpt_is_refused(argument: bytes, reply: Reply) -> None:
    with pytest.raises(SmtpError) as caught:
        parse_rcpt(argument)
    assert caught.value.reply == reply


def test_arguments_of_ehlo_and_auth() -> None:
    assert parse_hello(b"[192.0.2.1]") == "[192.0.2.1]"
    assert parse_hello(b"not a name".replace(b" ", b"_")) == "not_a_name"
    for bad in (b"", b"a b", b"a\x00", b"\xff", b"x" * 256):
        with pytest.raises(SmtpError):
            parse_hello(bad)
    assert parse_auth(b"plain") == ("PLAIN", None)
    assert parse_auth(b"SCRAM-SHA-256 =") == ("SCRAM-SHA-256", b"=")
    assert parse_auth(b"XOAUTH2 " + b"A" * 20000)[1] == b"A" * 20000
    for bad in (b"", b"PLAIN a b", b"PL\xffAIN", b"A" * 21):
        with pytest.raises(SmtpError):
            parse_auth(bad)
