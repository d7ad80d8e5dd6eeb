"""Submission: sender checks, header edits, the copy in Sent, the outbox, and delivery reports."""

from __future__ import annotations

import email
import email.policy
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from adapter.config.loader import Seconds
from adapter.config.schema import Account, RelaySettings, Settings, Submission
from adapter.store.effects import Actor
from adapter.store.flags import Flag
from adapter.store.queries import outbox
from tests.support.certificates import make_certificate
from tests.support.smtpd import Running, SmtpClient, from_ada, make_store, serving
from tests.support.store.journals import actors
from tests.support.stores import ADA, BOB, rows

ALIASES = {"info@example.test": (ADA, BOB), "boss@example.test": (BOB,)}


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    make_store(tmp_path / "store")
    async with serving(tmp_path / "store", Settings(aliases=ALIASES)) as running:
        yield running


async def logged_in(running: Running) -> SmtpClient:
    client = await running.hello("submission")
    assert (await client.login()).code == 235
    return client


# --- senders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sender", "code"),
    [(ADA, 250), ("Ada@EXAMPLE.test", 250), ("ada+lists@example.test", 250), ("info@example.test", 250), ("", 250),
     (BOB, 550), ("boss@example.test", 550), ("ada@elsewhere.test", 550), ("nobody@example.test", 550)],
)  # fmt: skip
async def test_envelope_sender_must_belong_to_the_account(server: Running, sender: str, code: int) -> None:
    client = await logged_in(server)
    assert (await client.ask(f"MAIL FROM:<{sender}>")).code == code


@pytest.mark.parametrize(
    ("field", "code"),
    [("From: ada@example.test", 250), ("From: Info <info@example.test>", 250), ("From: x <ada+y@example.test>", 250),
     ("From: bob@example.test", 550), ("From: ada@example.test, bob@example.test", 550), ("X-From: none", 550),
     ("From: ada@example.test\r\nFrom: bob@example.test", 550), ("From: ada@example.test <bob@example.test>", 550),
     ("From: (ada@example.test) bob@example.test", 550), ("From: <ada@example.test> <bob@example.test>", 550),
     ("From: ada@example.test\r\nSender: info@example.test", 250),
     ("From: ada@example.test\r\nSender: bob@example.test", 550),
     ("From: ada@example.test\r\nResent-From: bob@example.test", 550),
     ("From: bob@example.test\r\nResent-From: ada@example.test", 550)],
)  # fmt: skip
async def test_header_sender_must_belong_to_the_account(server: Running, field: str, code: int) -> None:
    client = await logged_in(server)
    reply = await client.mail(f"{field}\r\nSubject: x\r\n\r\nbody\r\n".encode(), BOB, sender=ADA)
    assert reply.code == code
    assert len(server.inbox(BOB)) == (code == 250)


async def test_sender_by_an_alias_keeps_its_copy_in_sent(server: Running) -> None:
    client = await logged_in(server)
    octets = b"From: info@example.test\r\nSubject: x\r\n\r\nbody\r\n"
    assert (await client.mail(octets, BOB, sender="info@example.test")).code == 250
    assert len(server.inbox(ADA, "Sent")) == 1
    assert server.inbox(BOB)[0].startswith(b"Return-Path: <info@example.test>\r\n")


# --- header edits and the copy in Sent -------------------------------------------------------------------------------


async def test_missing_fields_are_added_and_bcc_is_removed(server: Running) -> None:
    client = await logged_in(server)
    body = "x\r\nBcc: this is text\r\n"
    unsent = f"Bcc: {BOB},\r\n secret@example.test\r\nReturn-Path: <secret@example.test>\r\n"
    octets = from_ada(extra=f"{unsent}X-Kept: yes\r\n", body=body)
    assert (await client.mail(octets, BOB, sender=ADA)).code == 250
    (stored,) = server.inbox(BOB)
    parsed = email.message_from_bytes(stored, policy=email.policy.default)
    assert parsed["Date"]
    assert parsed["Message-ID"].endswith("@example.test>")
    assert parsed["Bcc"] is None
    assert b"secret@" not in stored
    assert parsed["X-Kept"] == "yes"
    assert stored.endswith(b"\r\n\r\n" + body.encode())
    (sent,) = rows(server.transport, "Sent", ADA)
    assert sent.flags & Flag.READ
    assert server.inbox(ADA, "Sent") == [stored]
    assert server.inbox(ADA) == []


async def test_complete_message_is_unchanged(server: Running) -> None:
    client = await logged_in(server)
    octets = from_ada(extra="Date: Mon, 16 Nov 2026 08:00:00 +0000\r\nMessage-ID: <1@example.test>\r\n")
    assert (await client.mail(octets, BOB, sender=ADA)).code == 250
    assert server.inbox(BOB)[0].endswith(b" +0000\r\n" + octets)


@pytest.mark.setting("submission.keep_sent")
async def test_copy_in_sent_can_be_disabled(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    async with serving(tmp_path / "store", Settings(submission=Submission(keep_sent=False))) as running:
        client = await logged_in(running)
        assert (await client.mail(from_ada(), BOB, sender=ADA)).code == 250
        assert running.inbox(ADA, "Sent") == []


@pytest.mark.setting("account.html_alternative")
async def test_html_alternative_is_added_to_markdown_only_if_configured(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    octets = from_ada(
        extra="MIME-Version: 1.0\r\nContent-Type: text/markdown; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n",
        body="# Grüße\r\n\r\n*Hello* <script>alert(1)</script>\r\n",
    )
    async with serving(tmp_path / "store") as running:
        client = await logged_in(running)
        assert (await client.mail(octets, BOB, sender=ADA)).code == 250
        assert running.inbox(BOB)[0].endswith(octets)
        (row,) = rows(running.transport, address=BOB)
        assert "\n# Grüße\n\n*Hello*" in running.transport.content.file(row.message_id).decode()
    async with serving(tmp_path / "store", Settings(account={ADA: Account(html_alternative=True)})) as running:
        client = await logged_in(running)
        for body in (octets, octets.replace(b"text/markdown", b"text/plain")):
            assert (await client.mail(body, BOB, sender=ADA)).code == 250
        first, second = running.inbox(BOB)[-2:]
        parsed = email.message_from_bytes(first, policy=email.policy.default)
        assert not parsed.defects
        assert parsed.get_content_type() == "multipart/alternative"
        plain, html = parsed.iter_parts()
        assert plain.get_content_type() == "text/markdown"
        assert plain.get_content().replace("\r\n", "\n") == "# Grüße\n\n*Hello* <script>alert(1)</script>\n"
        assert "<h1>Grüße</h1>" in html.get_content()
        assert "<script>" not in html.get_content()
        assert second.endswith(octets.replace(b"text/markdown", b"text/plain"))


# --- delivery, outbox and reports ------------------------------------------------------------------------------------


async def test_without_a_smarthost_remote_mail_is_refused(server: Running) -> None:
    client = await logged_in(server)
    assert (await client.ask(f"MAIL FROM:<{ADA}>")).code == 250
    reply = await client.ask("RCPT TO:<dave@elsewhere.test>")
    assert (reply.code, reply.enhanced) == (550, "5.7.1")


async def test_remote_mail_is_queued_with_its_envelope(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    settings = Settings(relay=RelaySettings(host="127.0.0.1", port=9, tls="none"), aliases=ALIASES)
    async with serving(tmp_path / "store", settings) as running:
        client = await logged_in(running)
        assert await client.codes(
            "MAIL FROM:<info@example.test> RET=HDRS ENVID=abc",
            "RCPT TO:<Dave@elsewhere.test> NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;Dave@Elsewhere.test",
            f"RCPT TO:<{BOB}>",
            "DATA",
        ) == [250, 250, 250, 354]  # fmt: skip
        client.send(from_ada() + b".\r\n")
        assert (await client.reply()).code == 250
        with running.transport.reading() as connection:
            (queued,) = outbox.queued(connection)
        assert (queued.recipient, queued.sender, queued.return_to) == ("Dave@elsewhere.test", "info@example.test", ADA)
        with running.transport.reading() as connection:  # of the local recipient
            kept = connection.execute("SELECT recipient, notify, orcpt, ret, envid FROM dsn_requests").fetchall()
        assert kept == [(BOB, None, None, "HDRS", "abc")]
        assert (queued.ret, queued.envid, queued.orcpt) == ("HDRS", "abc", "rfc822;Dave@Elsewhere.test")
        assert running.inbox(BOB)[0].startswith(b"Return-Path: <info@example.test>\r\nReceived: ")
        assert len(running.inbox(ADA, "Sent")) == 1
        assert (await client.mail(from_ada(), "dave@elsewhere.test", sender=ADA)).code == 250
        assert running.inbox(ADA, "Sent")[1].startswith(b"Received: ")  # no local recipient: no Return-Path
        mx = await running.hello("smtp")  # relaying requires a login
        assert (await mx.ask("MAIL FROM:<x@y.test>")).code == 250
        assert (await mx.ask("RCPT TO:<dave@elsewhere.test>")).code == 550


async def test_success_report_is_sent_only_on_request(server: Running) -> None:
    client = await logged_in(server)
    assert await client.codes(
        f"MAIL FROM:<{ADA}> ENVID=order-7", f"RCPT TO:<{BOB}> NOTIFY=SUCCESS ORCPT=rfc822;Bob@Example.test", "DATA"
    ) == [250, 250, 354]  # fmt: skip
    client.send(from_ada("Reported") + b".\r\n")
    assert (await client.reply()).code == 250
    (report,) = server.inbox(ADA)
    parsed = email.message_from_bytes(report, policy=email.policy.default)
    assert parsed.get_content_type() == "multipart/report"
    with server.transport.reading() as connection:  # the request is stored
        (asked,) = connection.execute("SELECT * FROM dsn_requests").fetchall()
    (delivered,) = rows(server.transport, address=BOB)
    assert asked == (delivered.message_id, BOB, "SUCCESS", "rfc822;Bob@Example.test", None, "order-7")
    for part in (b"Action: delivered", b"Original-Envelope-Id: order-7", b"rfc822;Bob@Example.test", b"Reported"):
        assert part in report
    assert report.startswith(b"Return-Path: <>\r\n")
    assert await client.codes("MAIL FROM:<>", f"RCPT TO:<{BOB}> NOTIFY=SUCCESS", "DATA") == [250, 250, 354]
    client.send(from_ada() + b".\r\n")
    assert (await client.reply()).code == 250
    assert len(server.inbox(ADA)) == 1


@pytest.mark.parametrize("parameter", ["", " REQUIRETLS"])
async def test_report_to_a_remote_sender_keeps_requiretls(tmp_path: Path, parameter: str) -> None:
    make_store(tmp_path / "store")
    relay = RelaySettings(host="127.0.0.1", port=9, expire_after=Seconds(1234))
    async with serving(tmp_path / "store", Settings(relay=relay, tls=make_certificate(tmp_path)), ["smtp"]) as running:
        client = await running.hello("smtp")
        await client.start_tls()
        assert await client.codes(
            "EHLO far.test", f"MAIL FROM:<Dave@far.test>{parameter}", f"RCPT TO:<{BOB}> NOTIFY=SUCCESS", "DATA"
        ) == [250, 250, 250, 354]  # fmt: skip
        client.send(from_ada() + b".\r\n")
        assert (await client.reply()).code == 250
        with running.transport.reading() as connection:
            (queued,) = outbox.queued(connection)
    assert (queued.sender, queued.recipient, queued.notify) == ("", "Dave@far.test", "NEVER")
    assert queued.requiretls == bool(parameter)
    assert queued.expires_at == queued.created_at + 1234


async def test_refusal_of_remote_mail_gives_the_reason(server: Running) -> None:
    client = await logged_in(server)
    assert (await client.ask(f"MAIL FROM:<{ADA}>")).code == 250
    refused = await client.ask("RCPT TO:<dave@far.test>")
    assert refused.code == 550
    assert refused.text == "5.7.1 No relay is configured for mail to other domains"
    stranger = await server.hello("smtp")
    assert (await stranger.ask("MAIL FROM:<eve@far.test>")).code == 250
    assert (await stranger.ask("RCPT TO:<dave@far.test>")).text == "5.7.1 Relaying denied"


async def test_lmtp_accepts_a_sender_without_a_domain(server: Running) -> None:
    """getmail sends <unknown>; in SMTP that is a syntax error."""
    client = await server.hello("lmtp")
    assert await client.codes("MAIL FROM:<unknown>", f"RCPT TO:<{BOB}>", "DATA") == [250, 250, 354]
    client.send(from_ada() + b".\r\n")
    assert (await client.reply()).code == 250
    (received,) = server.inbox(BOB)
    assert received.startswith(b"Return-Path: <unknown>\r\n")
    assert server.inbox(ADA) == []  # no report to the postmaster
    for kind in ("smtp", "submission"):
        other = await (logged_in(server) if kind == "submission" else server.hello(kind))
        assert (await other.ask("MAIL FROM:<unknown>")).code == 501


async def test_failed_report_does_not_affect_the_delivery(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(report: object) -> bytes:
        raise ValueError

    monkeypatch.setattr("protocol.smtp.dsn.build", broken)
    client = await logged_in(server)
    assert await client.codes(f"MAIL FROM:<{ADA}>", f"RCPT TO:<{BOB}> NOTIFY=SUCCESS", "DATA") == [250, 250, 354]
    client.send(from_ada() + b".\r\n")
    assert (await client.reply()).code == 250
    assert len(server.inbox(BOB)) == 1


async def test_each_record_names_the_account_and_the_protocol(server: Running) -> None:
    for kind in ("lmtp", "smtp"):
        assert (await (await server.hello(kind)).mail(from_ada(), BOB)).code == 250
    client = await logged_in(server)
    assert (await client.mail(from_ada(), BOB, sender=ADA)).code == 250
    assert actors(server.transport.root, "deliver") == [Actor("", "lmtp"), Actor("", "smtp"), Actor(ADA, "submission")]
