from __future__ import annotations

import email
import email.policy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage

from protocol.smtp.commands import OriginalRecipient, Ret
from protocol.smtp.dsn import MAX_RETURNED_BYTES, Action, Outcome, Report, build

NOW = datetime(2026, 11, 5, 4, 44, 20, tzinfo=UTC)
HEADER = b"From: ada@example.test\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\nMessage-ID: <1@example.test>\r\n\r\n"
FAILED = Outcome(
    "bob@remote.test",
    Action.FAILED,
    "5.1.1",
    "550 5.1.1 No such user",
    "mx.remote.test",
    OriginalRecipient("rfc822", "Bob@Remote.Test"),
    NOW,
)
REPORT = Report(
    host="mx.example.test",
    to="ada@example.test",
    message_id="<dsn-1@mx.example.test>",
    now=NOW,
    arrived=NOW - timedelta(days=5),
    outcomes=(FAILED,),
    header=HEADER,
    message=HEADER + b"Hello\r\n",
    envid="QQ314159",
)


def parse(report: Report) -> tuple[EmailMessage, list[EmailMessage]]:
    octets = build(report)
    assert octets.count(b"\r\n") == octets.count(b"\n") == octets.count(b"\r")
    assert b"\0" not in octets
    assert max(map(len, octets.split(b"\r\n"))) <= 998
    message = email.message_from_bytes(octets, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    parts = [part for part in message.iter_parts() if isinstance(part, EmailMessage)]
    assert len(parts) == 3
    return message, parts


def status(part: EmailMessage) -> list[dict[str, str]]:
    groups = part.get_payload()
    assert isinstance(groups, list)
    return [{k: str(v) for k, v in group.items()} for group in groups if not isinstance(group, str)]


def test_failure_report() -> None:
    message, parts = parse(REPORT)
    assert message.get_content_type() == "multipart/report"
    assert message["Content-Type"].params["report-type"] == "delivery-status"
    assert message["To"] == "ada@example.test"
    assert message["Auto-Submitted"] == "auto-replied"
    assert message["References"] == "<1@example.test>"
    assert message["Message-ID"] == "<dsn-1@mx.example.test>"
    text = parts[0].get_content()
    assert "<bob@remote.test>" in text
    assert "mx.remote.test said: 550 5.1.1 No such user" in text
    assert "Grüße" in text
    about, recipient = status(parts[1])
    assert about["Reporting-MTA"] == "dns; mx.example.test"
    assert about["Original-Envelope-Id"] == "QQ314159"
    assert about["Arrival-Date"] == "Sat, 31 Oct 2026 04:44:20 +0000"
    assert recipient == {
        "Original-Recipient": "rfc822;Bob@Remote.Test",
        "Final-Recipient": "rfc822;bob@remote.test",
        "Action": "failed",
        "Status": "5.1.1",
        "Remote-MTA": "dns; mx.remote.test",
        "Diagnostic-Code": "smtp; 550 5.1.1 No such user",
        "Last-Attempt-Date": "Thu, 05 Nov 2026 04:44:20 +0000",
    }
    assert parts[2].get_content_type() == "message/rfc822"
    assert b"Hello" in parts[2].as_bytes()


def test_report_with_headers_only() -> None:
    for report in (
        replace(REPORT, ret=Ret.HEADERS),
        replace(REPORT, message=None),
        replace(REPORT, message=HEADER + b"x\r\n" * MAX_RETURNED_BYTES),
        replace(REPORT, message=HEADER + b"x\0y\r\n"),
        replace(REPORT, message=HEADER + b"bare\nline\r\n"),
        replace(REPORT, message=HEADER + b"x" * 999 + b"\r\n"),
    ):
        _, parts = parse(report)
        assert parts[2].get_content_type() == "text/rfc822-headers"
        assert "Message-ID: <1@example.test>" in parts[2].get_content()
        assert b"Hello" not in build(report)


def test_delay_report() -> None:
    until = NOW + timedelta(days=4)
    outcome = replace(FAILED, action=Action.DELAYED, status="4.4.1", diagnostic="", retry_until=until)
    message, parts = parse(replace(REPORT, outcomes=(outcome,)))
    assert "delayed" in message["Subject"]
    assert status(parts[1])[1]["Will-Retry-Until"] == "Mon, 09 Nov 2026 04:44:20 +0000"
    assert parts[2].get_content_type() == "text/rfc822-headers"


def test_international_report() -> None:
    outcome = replace(FAILED, address="jürgen@bücher.test", orcpt=OriginalRecipient("utf-8", "jürgen@bücher.test"))
    octets = build(replace(REPORT, outcomes=(outcome,), to="ärger@example.test"))
    assert b"Content-Type: message/global-delivery-status\r\n" in octets
    assert "Final-Recipient: utf-8;jürgen@bücher.test\r\n".encode() in octets
    assert "To: <ärger@example.test>\r\n".encode() in octets
    header = "Subject: Grüße\r\n\r\n".encode()
    octets = build(replace(REPORT, header=header, message=header + b"x\r\n"))
    assert b"Content-Type: message/global\r\nContent-Transfer-Encoding: 8bit\r\n" in octets
    wrong = b"Subject: Gr\xfc\xdfe\r\n\r\n"
    octets = build(replace(REPORT, header=wrong, message=wrong + b"x\r\n"))
    assert b"Content-Type: message/rfc822\r\nContent-Transfer-Encoding: 8bit\r\n" in octets
    octets = build(replace(REPORT, header=wrong, message=None))
    assert b"Subject: Gr=FC=DFe\r\n" in octets


def test_input_cannot_inject_fields_or_parts() -> None:
    evil = "x\r\nAction: delivered\r\n\r\n--=_\x00é\ud800" * 100
    outcome = replace(
        FAILED, address=evil, diagnostic=evil, remote=evil, status=evil, orcpt=OriginalRecipient(evil, evil)
    )
    report = replace(
        REPORT,
        outcomes=(outcome,),
        host=evil,
        to=evil,
        envid=evil,
        header=b"Subject: " + evil.encode("utf-8", "replace"),
    )
    octets = build(report)
    assert octets.count(b"\r\nAction: ") == 1
    assert octets.count(b"\n") == octets.count(b"\r\n")


def test_returned_message_cannot_contain_the_boundary() -> None:
    first = build(REPORT)
    boundary = first.split(b'boundary="')[1].split(b'"')[0]
    message = HEADER + b"--" + boundary + b"--\r\nHello\r\n"
    _, parts = parse(replace(REPORT, message=message))
    assert b"Hello" in parts[2].as_bytes()
