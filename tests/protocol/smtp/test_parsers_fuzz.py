"""Arbitrary octets: a parser returns a valid value or refuses with a reply, and never raises anything else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.smtp import trace
from protocol.smtp.commands import (
    OriginalRecipient,
    decode_xtext,
    encode_xtext,
    parse_auth,
    parse_hello,
    parse_mail,
    parse_rcpt,
)
from protocol.smtp.data import parse_bdat
from protocol.smtp.dsn import Action, Outcome, Report, build
from protocol.smtp.lines import LineBuffer, split_command
from protocol.smtp.paths import Path, parse_domain, parse_path
from protocol.smtp.proxy_protocol import Proxied, ProxyReader
from protocol.smtp.replies import Reply, SmtpError
from protocol.smtp.xclient import parse_xclient

FUZZ = settings(max_examples=300, deadline=None)
WORDS = [
    *(
        b"FROM:",
        b"TO:",
        b"<",
        b">",
        b"@",
        b'"',
        b"\\",
        b".",
        b" ",
        b"\t",
        b"[",
        b"]",
        b"IPv6:",
        b":",
        b",",
        b"a",
        b"example.test",
    ),
    *(
        b"<a@b.test>",
        b"SIZE=",
        b"1",
        b"BODY=8BITMIME",
        b"SMTPUTF8",
        b"ENVID=",
        b"+0A",
        b"+",
        b"=",
        b"NOTIFY=NEVER",
        b"ORCPT=",
    ),
    *(
        b"rfc822;",
        b"utf-8;",
        b"\\x{e9}",
        "é".encode(),
        b"\xff",
        b"\x00",
        b"\r",
        b"\n",
        b"ADDR=",
        b"NAME=",
        b"LAST",
        b"192.0.2.1",
    ),
]
OCTETS = st.lists(st.sampled_from(WORDS), max_size=12).map(b"".join) | st.binary(max_size=60)


@FUZZ
@given(
    st.sampled_from([parse_mail, parse_rcpt, parse_hello, parse_auth, parse_bdat, parse_xclient]),
    st.sampled_from([b"", b"FROM:", b"TO:", b"FROM:<a@b.test> ", b"TO:<a@b.test> "]),
    OCTETS,
)
def test_arguments_are_parsed_or_refused(parse: Callable[[bytes], Any], prefix: bytes, octets: bytes) -> None:
    try:
        parse(prefix + octets)
        code = 250
    except SmtpError as error:
        code = error.reply.code
    assert code in {250, 501, 521, 553, 555}


@FUZZ
@given(OCTETS, OCTETS)
def test_parsed_values_are_safe_in_a_header(path: bytes, value: bytes) -> None:
    argument = b"FROM:<" + path + b"@example.test> SMTPUTF8 ENVID=" + value + b" AUTH=" + value
    try:
        command = parse_mail(argument)
    except SmtpError:
        return
    for text in (command.path.address, command.envid or "", command.auth or ""):
        assert text.isprintable()
        text.encode()


LOCALS = st.text(st.characters(blacklist_categories=("C", "Z")) | st.just(" "), min_size=1, max_size=20)
DOMAINS = st.sampled_from(["example.test", "b_c", "[192.0.2.1]", "[IPv6:2001:db8::1]", "bücher.test", "xn--x.test"])


@FUZZ
@given(LOCALS, DOMAINS)
def test_paths_round_trip(local: str, domain: str) -> None:
    path = Path(local, domain)
    assert parse_path(f"<{path.address}>") == (path, "")
    assert parse_path(f"<@relay.test:{path.address}> SIZE=1") == (path, " SIZE=1")


@FUZZ
@given(OCTETS.map(lambda octets: octets.decode("utf-8", "replace")))
def test_paths_and_domains_are_total_and_stable(text: str) -> None:
    parsed = parse_path(f"<{text}>")
    if parsed is not None:
        assert parse_path(f"<{parsed[0].address}>") == (parsed[0], "")
    domain = parse_domain(text)
    if domain is not None:
        assert parse_domain(domain) == domain


@FUZZ
@given(st.binary(max_size=60))
def test_xtext_round_trips(data: bytes) -> None:
    assert decode_xtext(encode_xtext(data).encode()) == data
    decode_xtext(data)


@FUZZ
@given(
    st.sampled_from(["rfc822", "utf-8", "x400"]),
    st.text(st.characters(blacklist_categories=("C", "Z")), min_size=1, max_size=40),
)
def test_original_recipients_round_trip(kind: str, address: str) -> None:
    if kind != "utf-8":
        address = address.encode("ascii", "replace").decode("ascii")
    orcpt = OriginalRecipient(kind, address)
    if len(orcpt.parameter) <= 500:
        assert parse_rcpt(f"TO:<a@b.test> ORCPT={orcpt.parameter}".encode()).orcpt == orcpt


@FUZZ
@given(st.integers(200, 599), st.text(max_size=700))
def test_replies_are_lines(code: int, text: str) -> None:
    wire = Reply(code, "2.0.0", "Text").about(text).wire
    assert wire.endswith(b"\r\n")
    assert wire.count(b"\n") == wire.count(b"\r") == 1
    assert all(len(line) <= 510 for line in Reply(code, "", text).wire.split(b"\r\n"))


def lines(pieces: list[bytes], limit: int) -> list[bytes | None]:
    buffer = LineBuffer()
    lines_read: list[bytes | None] = []
    for piece in pieces:
        buffer.feed(piece)
        while True:
            try:
                line = buffer.line(limit)
            except SmtpError:
                lines_read.append(None)
                continue
            if line is None:
                break
            lines_read.append(line)
    return lines_read


@FUZZ
@given(
    st.lists(st.sampled_from([b"\r\n", b"\n", b"\r", b"NOOP", b"AUTH ", b"x" * 30]), max_size=30).map(b"".join),
    st.integers(1, 9),
)
def test_lines_do_not_depend_on_packets(stream: bytes, size: int) -> None:
    whole = lines([stream], 40)
    assert lines([stream[at : at + size] for at in range(0, len(stream), size)], 40) == whole
    for line in whole:
        if line is not None:
            verb, argument = split_command(line)
            assert verb == verb.upper()
            assert argument == argument.strip(b" \t")


SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def proxied(pieces: list[bytes]) -> tuple[Proxied, bytes] | str | None:
    reader = ProxyReader()
    for number, piece in enumerate(pieces):
        try:
            result = reader.feed(piece)
        except ProtocolError:
            return "refused"
        if result is not None:
            return result, reader.leftover + b"".join(pieces[number + 1 :])
    return None


@FUZZ
@given(
    st.sampled_from([b"PROXY TCP4 ", b"PROXY UNKNOWN", SIGNATURE, SIGNATURE + b"\x21\x11\x00\x0c", b""]),
    st.lists(
        st.sampled_from([b"192.0.2.1 ", b"25 ", b"25", b"\r\n", b"\x21\x11\x00\x0c", b"\0" * 12, b"x"]), max_size=12
    ).map(b"".join)
    | st.binary(max_size=150),
    st.integers(1, 7),
)
def test_proxy_headers_do_not_depend_on_packets(start: bytes, rest: bytes, size: int) -> None:
    stream = start + rest
    whole = proxied([stream])
    assert proxied([stream[at : at + size] for at in range(0, len(stream), size)]) == whole


FIELDS = st.lists(
    st.sampled_from(
        [
            b"Bcc: a\r\n",
            b"bcc\t: b\r\n",
            b" folded\r\n",
            b"To: c\r\n",
            b"Resent-BCC:\r\n",
            b"From: a@b\r\n",
            b"junk\r\n",
        ]
    )
    | st.binary(max_size=12),
    max_size=12,
).map(b"".join)


@FUZZ
@given(FIELDS)
def test_header_edits_are_total_and_idempotent(header: bytes) -> None:
    without = trace.without_private_fields(header)
    assert trace.without_private_fields(without) == without
    assert len(without) <= len(header)
    when = datetime(2026, 1, 1, tzinfo=UTC)
    completed = trace.add_missing_fields(header, date=when, message_id="<m@x>")
    assert completed.endswith(header)
    assert trace.add_missing_fields(completed, date=when, message_id="<n@x>") == completed
    trace.authors(header)


@FUZZ
@given(st.text(max_size=300), st.text(max_size=300), st.sampled_from(["ESMTP", "UTF8SMTP"]), st.integers(-1439, 1439))
def test_received_is_one_folded_field(one: str, two: str, keyword: str, minutes: int) -> None:
    when = datetime(2026, 1, 1, tzinfo=timezone(timedelta(minutes=minutes)))
    field = trace.received_field(trace.Hop(one, two, one, two, keyword, one, when, two, one))
    *rows, end = field.split(b"\r\n")
    assert end == b""
    assert rows[0].startswith(b"Received: ")
    assert all(row.startswith(b"\t") for row in rows[1:])
    assert all(len(row) <= 998 and b"\r" not in row and b"\n" not in row for row in rows)


TEXT = st.text(max_size=40)
OUTCOMES = st.builds(
    Outcome,
    address=TEXT,
    action=st.sampled_from(Action),
    status=TEXT,
    diagnostic=TEXT,
    remote=TEXT,
    orcpt=st.none() | st.builds(OriginalRecipient, TEXT, TEXT),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(OUTCOMES, min_size=1, max_size=3), TEXT, FIELDS, st.none() | FIELDS)
def test_reports_are_always_clean_messages(
    outcomes: list[Outcome], to: str, header: bytes, message: bytes | None
) -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    report = Report("mx.test", to, "<r@mx.test>", when, when, tuple(outcomes), header, message, envid=to)
    octets = build(report)
    assert octets.count(b"\r\n") == octets.count(b"\n") == octets.count(b"\r")
    assert b"\0" not in octets
    assert max(map(len, octets.split(b"\r\n"))) <= 998
    boundary = octets.split(b'boundary="', 1)[1].split(b'"', 1)[0]
    assert octets.count(b"--" + boundary) == 4
    fields = octets.split(b"--" + boundary)[2]
    assert fields.count(b"\nAction: ") == fields.count(b"\nStatus: ") == len(outcomes)
