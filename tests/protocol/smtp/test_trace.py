from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from protocol.smtp import trace
from protocol.smtp.states import Service, SessionState
from protocol.smtp.trace import Hop

NOW = datetime(2026, 11, 5, 4, 44, 20, tzinfo=timezone(timedelta(hours=-5, minutes=-30)))
HOP = Hop(
    hello="client.example.test",
    peer="192.0.2.1",
    peer_name="host.example.test",
    host="mx.example.test",
    keyword="ESMTPS",
    id="msg-1",
    date=NOW,
    recipient="ada@example.test",
    tls="TLSv1.3 TLS_AES_256_GCM_SHA384",
)


def test_date_format() -> None:
    assert trace.format_date(NOW) == "Thu, 05 Nov 2026 04:44:20 -0530"
    with pytest.raises(ValueError, match="zone"):
        trace.format_date(NOW.replace(tzinfo=None))


def test_received_field() -> None:
    assert trace.received_field(HOP) == (
        b"Received: from client.example.test (host.example.test [192.0.2.1])\r\n"
        b"\tby mx.example.test with ESMTPS id msg-1\r\n"
        b"\t(using TLSv1.3 TLS_AES_256_GCM_SHA384)\r\n"
        b"\tfor <ada@example.test>;\r\n"
        b"\tThu, 05 Nov 2026 04:44:20 -0530\r\n"
    )
    plain = trace.received_field(replace(HOP, peer="2001:db8::1", peer_name=None, recipient=None, tls=None))
    assert plain == (
        b"Received: from client.example.test (unknown [IPv6:2001:db8::1])\r\n"
        b"\tby mx.example.test with ESMTPS id msg-1;\r\n"
        b"\tThu, 05 Nov 2026 04:44:20 -0530\r\n"
    )
    assert b"(local)" in trace.received_field(replace(HOP, peer=None))


def test_input_cannot_inject_lines_into_received() -> None:
    evil = "a\r\nBcc: x (\x00é"
    line = trace.received_field(replace(HOP, hello=evil, peer=evil, peer_name=evil, id=evil, tls=evil, recipient=evil))
    assert line.count(b"\r\n") == line.count(b"\n") == line.count(b"\r") == 4
    assert b"\nBcc" not in line
    assert line.isascii()
    assert b"from a??Bcc:?x????" in line


@pytest.mark.parametrize("keyword", ["ESMTPS", "UTF8SMTPS"])
def test_international_recipient_is_left_out_of_received(keyword: str) -> None:
    line = trace.received_field(replace(HOP, recipient="jürgen@bücher.test", keyword=keyword))
    assert b"for <" not in line
    assert line.isascii()


@pytest.mark.parametrize(
    ("session", "utf8", "keyword"),
    [
        (SessionState(Service.MX), False, "SMTP"),
        (SessionState(Service.MX, extended=True), False, "ESMTP"),
        (SessionState(Service.MX, extended=True, tls=True), False, "ESMTPS"),
        (SessionState(Service.SUBMISSION, extended=True, authenticated=True), False, "ESMTPA"),
        (SessionState(Service.SUBMISSION, extended=True, tls=True, authenticated=True), False, "ESMTPSA"),
        (SessionState(Service.SUBMISSION, extended=True, tls=True, authenticated=True), True, "UTF8SMTPSA"),
        (SessionState(Service.LMTP, extended=True), False, "LMTP"),
        (SessionState(Service.LMTP, extended=True, tls=True), True, "UTF8LMTPS"),
    ],
)
def test_with_keyword(session: SessionState, utf8: bool, keyword: str) -> None:
    assert trace.with_keyword(session, smtputf8=utf8) == keyword


def test_return_path_field() -> None:
    assert trace.return_path("") == b"Return-Path: <>\r\n"
    assert trace.return_path("ada@example.test") == b"Return-Path: <ada@example.test>\r\n"
    assert trace.return_path("jürgen@example.test") == "Return-Path: <jürgen@example.test>\r\n".encode()
    assert trace.return_path("a\r\nX: y") == b"Return-Path: <>\r\n"


def test_authors_are_all_sender_fields() -> None:
    header = b'From: "Ada, Countess" <ada@example.test>, bob@example.test\r\nfrom : Eve\r\n <eve@example.test>\r\n\r\n'
    assert trace.authors(header) == ["ada@example.test", "bob@example.test", "eve@example.test"]
    others = b"Resent-From: c@example.test\r\nSender: b@example.test\r\nFrom: a@example.test\r\n\r\n"
    assert trace.authors(others) == ["a@example.test", "b@example.test", "c@example.test"]
    assert trace.authors(b"Subject: From: x\r\n\r\n") is None
    assert trace.authors(b"Sender: b@example.test\r\n\r\n") is None
    assert trace.authors(b"From: a@x.test\r\nX: y\rFrom: b@x.test\r\n\r\n") is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [('"Ada <not@x.test> @ work" (a (nested) note <b@x.test>) <ada@x.test>', ["ada@x.test"]),
     ("=?utf-8?q?a@b_<c@d.test>?= <ada@x.test>", ["ada@x.test"]), ("Ada@Work <ada@x.test>", ["ada@x.test"]),
     ("Us: ada@x.test, Bob <bob@x.test>;", ["ada@x.test", "bob@x.test"]), ("<@a,@b:ada@x.test>", ["ada@x.test"]),
     ("<ada@x.test> <eve@x.test>", None), ("ada@x.test eve@x.test", None), ("Ada <ada@x.test> eve@x.test", None),
     ("<ada@x.test <eve@x.test>>", None), ('"open <ada@x.test> <eve@x.test>', None), ("(open <ada@x.test>", None),
     ("eve ada@x.test", None), ("ada@x.test eve", None), ('"Eve" ada@x.test', None),
     ("ada@x.test .test", ["ada@x.test.test"]),
     ("(Ada) ada . l @ x . test (Lovelace)", ["ada.l@x.test"]), (" " * 4000 + "ada@x.test", ["ada@x.test"]),
     ("x" * 5000 + " <ada@x.test>", None), ("(" * 3000 + " <ada@x.test>", None)],
)  # fmt: skip
def test_ambiguous_author_is_refused(value: str, expected: list[str] | None) -> None:
    assert trace.authors(f"From: {value}\r\n\r\n".encode()) == expected


def test_bcc_is_removed_from_the_header() -> None:
    header = (
        b"Bcc: a@example.test,\r\n\tb@example.test\r\nSubject: Bcc: kept\r\n Bcc: kept\r\n"
        b"BCC : c@example.test\r\nResent-Bcc:\r\nX-Bcc: kept\r\nbcc: last\r\n\r\n"
    )
    assert trace.without_private_fields(header) == b"Subject: Bcc: kept\r\n Bcc: kept\r\nX-Bcc: kept\r\n\r\n"
    assert trace.without_private_fields(b"Bcc: x") == b""
    assert trace.without_private_fields(b"") == b""
    assert trace.without_private_fields(b"RETURN-PATH : <x>\r\n y\r\nTo: z\r\n") == b"To: z\r\n"


def test_missing_fields_are_added_first() -> None:
    added = trace.add_missing_fields(b"Subject: x\r\n\r\n", date=NOW, message_id="<1@example.test>")
    assert added == (b"Date: Thu, 05 Nov 2026 04:44:20 -0530\r\nMessage-ID: <1@example.test>\r\nSubject: x\r\n\r\n")
    complete = b"DATE: whenever\r\nMessage-Id: <2@example.test>\r\n\r\n"
    assert trace.add_missing_fields(complete, date=NOW, message_id="<1@example.test>") == complete


def test_empty_fields_are_replaced() -> None:
    given = b"Date:\r\nMessage-ID: \r\n \r\nSubject: x\r\n\r\n"
    replaced = trace.add_missing_fields(given, date=NOW, message_id="<1@example.test>")
    assert replaced == b"Date: Thu, 05 Nov 2026 04:44:20 -0530\r\nMessage-ID: <1@example.test>\r\nSubject: x\r\n\r\n"
    twice = b"Message-ID:\r\nMessage-ID: <2@example.test>\r\nDate: x\r\n\r\n"
    assert trace.add_missing_fields(twice, date=NOW, message_id="<1@example.test>") == twice
