"""Submission: who may, over what, as whom; what is done to the message; where it goes."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import email
import email.policy
import socket
import ssl
import struct
import warnings
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from adapter.accounts import SCRAM_ITERATIONS
from adapter.config import Seconds
from adapter.servers import sent_copy, tls
from adapter.servers.smtp.stream import Stream
from adapter.settings import Account, Login, Settings, Submission, Tls
from adapter.store import outbox_queries
from adapter.transport import operations as op
from adapter.transport.flags import Flag
from adapter.upstream.settings import RelaySettings
from tests.support.certificates import make_certificate
from tests.support.messages import message
from tests.support.smtpd import PASSWORD, Reply, Running, SmtpClient, make_store, serving, trusting
from tests.support.stores import ADA, BOB, rows
from tests.support.waiting import PATIENCE, until

ALIASES = {"info@example.test": (ADA, BOB), "boss@example.test": (BOB,)}


def from_ada(subject: str = "Hello", extra: str = "", body: str = "Hello Bob\r\n") -> bytes:
    return f"From: Ada <{ADA}>\r\nTo: {BOB}\r\nSubject: {subject}\r\n{extra}\r\n{body}".encode()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    make_store(tmp_path / "store")
    async with serving(tmp_path / "store", Settings(aliases=ALIASES)) as running:
        yield running


async def logged_in(running: Running) -> SmtpClient:
    client = await running.hello("submission")
    assert (await client.login()).code == 235
    return client


# --- logging in ------------------------------------------------------------------------------------------------------


async def test_nothing_goes_without_login(server: Running) -> None:
    client = await server.hello("submission")
    assert (await client.ask(f"MAIL FROM:<{ADA}>")).code == 530
    assert (await client.login(password="wrong")).code == 535
    assert (await client.login("nobody@example.test")).code == 535
    assert (await client.ask(f"MAIL FROM:<{ADA}>")).code == 530
    assert (await client.login()).code == 235
    assert (await client.login()).code == 503
    assert (await client.mail(from_ada(), BOB, sender=ADA)).code == 250


async def test_login_and_scram(server: Running) -> None:
    client = await server.hello("submission")
    assert (await client.ask("AUTH LOGIN")).text == base64.b64encode(b"Username:").decode()
    assert (await client.ask(base64.b64encode(ADA.encode()).decode())).code == 334
    assert (await client.ask(base64.b64encode(PASSWORD.encode()).decode())).code == 235
    other = await server.hello("submission")
    assert (await scram(other, PASSWORD)).code == 235
    third = await server.hello("submission")
    assert (await scram(third, "wrong")).code == 535
    assert (await scram(third, PASSWORD)).code == 235


async def scram(client: SmtpClient, password: str) -> Reply:
    """RFC 5802 from the client's side."""
    import hashlib
    import hmac

    bare = f"n={ADA},r=fyko+d2lbbFgONRv9qkxdawL"
    first = await client.ask(f"AUTH SCRAM-SHA-256 {base64.b64encode(b'n,,' + bare.encode()).decode()}")
    said = base64.b64decode(first.text).decode()
    fields = dict(item.split("=", 1) for item in said.split(","))
    assert int(fields["i"]) == SCRAM_ITERATIONS
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    final = f"c=biws,r={fields['r']}"
    signed = f"{bare},{said},{final}".encode()
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature))).decode()
    reply = await client.ask(base64.b64encode(f"{final},p={proof}".encode()).decode())
    return await client.ask("") if reply.code == 334 else reply


async def test_odd_auth_exchanges_leave_the_session_usable(server: Running) -> None:
    client = await server.hello("submission")
    assert (await client.ask("AUTH")).code == 501
    assert (await client.ask("AUTH CRAM-MD5")).code == 504
    assert (await client.ask("AUTH OAUTHBEARER")).code == 504  # no token check is configured
    assert (await client.ask("AUTH PLAIN ***")).code == 501
    assert (await client.ask("AUTH PLAIN")).code == 334
    assert (await client.ask("*")).code == 501
    assert (await client.ask("AUTH PLAIN")).code == 334
    assert (await client.ask("A" * 70_000)).code == 500
    assert (await client.ask("AUTH PLAIN " + "A" * 70_000)).code == 500
    assert (await client.login()).code == 235


@pytest.mark.setting("login.token_command")
async def test_oauth_tokens_of_any_length(tmp_path: Path) -> None:
    """The check is a command of the operator's: the token on its standard input, an address on its output."""
    make_store(tmp_path / "store")
    check = tmp_path / "check"
    check.write_text(f'#!/bin/sh\nread token\ncase "$token" in good*) echo {ADA};; *) exit 1;; esac\n')
    check.chmod(0o755)
    settings = Settings(login=Login(token_command=(str(check),)))
    async with serving(tmp_path / "store", settings) as running:
        client = await running.hello("submission")
        for token, user, expected in (
            ("bad", ADA, 535),
            ("good" + "x" * 9000, BOB, 535),  # somebody else's
            ("good" + "x" * 40_000, ADA, 235),
        ):
            response = f"user={user}\x01auth=Bearer {token}\x01\x01".encode()
            reply = await client.ask(f"AUTH XOAUTH2 {base64.b64encode(response).decode()}")
            if reply.code == 334:
                reply = await client.ask("")
            assert reply.code == expected, token[:5]
        other = await running.hello("submission")
        response = f"n,a={ADA},\x01auth=Bearer goodtoken\x01\x01".encode()
        assert (await other.ask(f"AUTH OAUTHBEARER {base64.b64encode(response).decode()}")).code == 235


async def test_a_token_check_that_does_not_work_is_temporary(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    settings = Settings(login=Login(token_command=("/nonexistent/check",)))
    async with serving(tmp_path / "store", settings) as running:
        client = await running.hello("submission")
        response = f"user={ADA}\x01auth=Bearer token\x01\x01".encode()
        assert (await client.ask(f"AUTH XOAUTH2 {base64.b64encode(response).decode()}")).code == 454


@pytest.mark.setting("login.allow_plaintext")
async def test_no_password_in_the_clear(tmp_path: Path, certificate: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapter.servers.networks.is_loopback", lambda peer: False)
    make_store(tmp_path / "store")
    kinds = ["submission", "submissions"]
    async with serving(tmp_path / "store", Settings(tls=certificate), kinds) as running:
        client = await running.connect("submission")
        await client.reply()
        offered = (await client.ask("EHLO c.test")).text
        assert "STARTTLS" in offered
        assert "AUTH" not in offered
        assert "REQUIRETLS" not in offered
        assert (await client.login()).code == 538
        assert (await client.ask(f"MAIL FROM:<{ADA}>")).code == 530
        await client.start_tls()
        assert (await client.ask(f"MAIL FROM:<{ADA}>")).code == 503  # the hello before TLS is forgotten
        offered = (await client.ask("EHLO c.test")).text
        assert "AUTH SCRAM-SHA-256 PLAIN LOGIN" in offered
        assert "REQUIRETLS" in offered
        assert "STARTTLS" not in offered
        assert (await client.ask("STARTTLS")).code == 503
        assert (await client.login()).code == 235
        assert (await client.mail(from_ada(), BOB, sender=ADA)).code == 250
        received = running.inbox(BOB)[0]
        assert b" with ESMTPSA id " in received
        assert b"(using TLSv1" in received
        implicit = await running.connect("submissions", context=trusting())
        await implicit.reply()
        assert "AUTH" in (await implicit.ask("EHLO c.test")).text
        assert (await implicit.login()).code == 235
        assert (await implicit.mail(from_ada(), BOB, sender=ADA)).code == 250
    allowed = Settings(tls=certificate, login=Login(allow_plaintext=True))
    async with serving(tmp_path / "store", allowed, kinds) as running:
        assert (await (await running.hello("submission")).login()).code == 235


@pytest.mark.setting("tls.handshake")
async def test_a_handshake_that_fails_is_the_end_of_it(tmp_path: Path, certificate: Tls) -> None:
    make_store(tmp_path / "store")
    tls = dataclasses.replace(certificate, handshake=Seconds(0.3))
    async with serving(tmp_path / "store", Settings(tls=tls), ["submission", "submissions"]) as running:
        client = await running.hello("submission")
        assert (await client.ask("STARTTLS")).code == 220
        client.send(b"this is not TLS at all, and it is long enough to be noticed\r\n")
        async with asyncio.timeout(PATIENCE):
            await client.reader.read()  # an alert, perhaps; then the end
        silent = await running.connect("submissions")
        assert await silent.ended()
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await running.connect("submissions", context=old)
        good = await running.connect("submissions", context=trusting())
        assert (await good.reply()).code == 220


class Paused(asyncio.Transport):
    """Knows only whether it reads."""

    reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False


async def test_much_that_comes_with_the_end_of_a_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes before the transport is known that has it."""
    plain, encrypted = Paused(), Paused()
    stream = Stream(asyncio.get_running_loop())
    stream.transport = plain

    async def start(transport: object, protocol: Stream, *_: object) -> Paused:
        protocol.data_received(b"x" * (1 << 20))
        return encrypted

    monkeypatch.setattr(tls, "start", start)
    await stream.start_tls(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), 1.0, from_start=True)
    assert (plain.reading, encrypted.reading) == (True, False)
    assert not stream.eof_received()  # TLS cannot be closed by halves
    assert len(await stream.receive(1.0)) == 1 << 20
    assert encrypted.reading


@pytest.mark.parametrize("kind", ["smtp", "submissions", "imap", "imaps"])
async def test_nothing_stays_of_a_client_that_goes_before_tls(tmp_path: Path, certificate: Tls, kind: str) -> None:
    make_store(tmp_path / "store")
    words = {"smtp": b"EHLO c.test\r\nSTARTTLS\r\n", "imap": b"a STARTTLS\r\n"}.get(kind, b"\x16\x03\x01")
    async with serving(tmp_path / "store", Settings(tls=certificate), [kind]) as running:

        def come_and_go() -> None:
            for number in range(24):
                with socket.create_connection(("127.0.0.1", running.ports[kind])) as client:
                    if number % 2:  # reset, else closed in order
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    if number % 3 and kind in ("smtp", "imap"):
                        client.recv(100)
                    client.sendall(words + (b"no handshake\r\n" if number % 4 > 1 else b""))

        await asyncio.to_thread(come_and_go)
        await until(lambda: len(running.services.connections) == running.services.admission.total == 0)


async def test_wrong_passwords_cost_time(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    settings = Settings(login=Login(free_failures=1, delay=Seconds(0.3)))
    async with serving(tmp_path / "store", settings) as running:
        client = await running.hello("submission")
        loop = asyncio.get_running_loop()
        times = []
        for _ in range(3):
            began = loop.time()
            assert (await client.login(password="guess")).code == 535
            times.append(loop.time() - began)
        assert times[1] >= 0.3
        assert times[2] >= 0.6
        began = loop.time()
        assert (await client.login()).code == 235
        assert loop.time() - began >= 1.0
        other = await running.hello("submission")  # proven a moment ago: no delay, no hashing
        began = loop.time()
        assert (await other.login()).code == 235
        assert loop.time() - began < 0.3


async def test_no_password_in_the_log(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    client = await server.hello("submission")
    await client.login(password="hunter2 wrong")
    await client.ask("AUTH LOGIN")
    await client.ask(base64.b64encode(ADA.encode()).decode())
    await client.ask(base64.b64encode(PASSWORD.encode()).decode())
    ours = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith(("adapter", "mail")))
    for secret in (PASSWORD, "hunter2", base64.b64encode(PASSWORD.encode()).decode()):
        assert secret not in ours
    assert f"logged in as {ADA}" in ours


# --- as whom ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sender", "code"),
    [(ADA, 250), ("Ada@EXAMPLE.test", 250), ("ada+lists@example.test", 250), ("info@example.test", 250), ("", 250),
     (BOB, 550), ("boss@example.test", 550), ("ada@elsewhere.test", 550), ("nobody@example.test", 550)],
)  # fmt: skip
async def test_envelope_senders(server: Running, sender: str, code: int) -> None:
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
async def test_header_senders(server: Running, field: str, code: int) -> None:
    client = await logged_in(server)
    reply = await client.mail(f"{field}\r\nSubject: x\r\n\r\nbody\r\n".encode(), BOB, sender=ADA)
    assert reply.code == code
    assert len(server.inbox(BOB)) == (code == 250)


async def test_a_sender_by_another_name_keeps_its_copy(server: Running) -> None:
    client = await logged_in(server)
    octets = b"From: info@example.test\r\nSubject: x\r\n\r\nbody\r\n"
    assert (await client.mail(octets, BOB, sender="info@example.test")).code == 250
    assert len(server.inbox(ADA, "Sent")) == 1
    assert server.inbox(BOB)[0].startswith(b"Return-Path: <info@example.test>\r\n")


# --- what is done to the message -------------------------------------------------------------------------------------


async def test_missing_fields_are_added_and_bcc_leaves(server: Running) -> None:
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


async def test_complete_messages_are_left_alone(server: Running) -> None:
    client = await logged_in(server)
    octets = from_ada(extra="Date: Mon, 16 Nov 2026 08:00:00 +0000\r\nMessage-ID: <1@example.test>\r\n")
    assert (await client.mail(octets, BOB, sender=ADA)).code == 250
    assert server.inbox(BOB)[0].endswith(b" +0000\r\n" + octets)


@pytest.mark.setting("submission.keep_sent")
async def test_no_copy_where_it_is_not_wanted(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    async with serving(tmp_path / "store", Settings(submission=Submission(keep_sent=False))) as running:
        client = await logged_in(running)
        assert (await client.mail(from_ada(), BOB, sender=ADA)).code == 250
        assert running.inbox(ADA, "Sent") == []


@pytest.mark.setting("account.html_alternative")
async def test_markdown_gains_html_only_where_it_is_asked_for(tmp_path: Path) -> None:
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


# --- where it goes ---------------------------------------------------------------------------------------------------


async def test_without_a_smarthost_nothing_goes_out(server: Running) -> None:
    client = await logged_in(server)
    assert (await client.ask(f"MAIL FROM:<{ADA}>")).code == 250
    reply = await client.ask("RCPT TO:<dave@elsewhere.test>")
    assert (reply.code, reply.enhanced) == (550, "5.7.1")


async def test_mail_for_others_is_queued_with_its_envelope(tmp_path: Path) -> None:
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
            (queued,) = outbox_queries.queued(connection)
        assert (queued.recipient, queued.sender, queued.return_to) == ("Dave@elsewhere.test", "info@example.test", ADA)
        assert (queued.ret, queued.envid, queued.orcpt) == ("HDRS", "abc", "rfc822;Dave@Elsewhere.test")
        assert running.inbox(BOB)[0].startswith(b"Return-Path: <info@example.test>\r\nReceived: ")
        assert len(running.inbox(ADA, "Sent")) == 1
        assert (await client.mail(from_ada(), "dave@elsewhere.test", sender=ADA)).code == 250
        assert running.inbox(ADA, "Sent")[1].startswith(b"Received: ")  # it was delivered to nobody here
        mx = await running.hello("smtp")  # nobody relays without logging in
        assert (await mx.ask("MAIL FROM:<x@y.test>")).code == 250
        assert (await mx.ask("RCPT TO:<dave@elsewhere.test>")).code == 550


async def test_reports_of_delivery_go_to_those_who_asked(server: Running) -> None:
    client = await logged_in(server)
    assert await client.codes(
        f"MAIL FROM:<{ADA}> ENVID=order-7", f"RCPT TO:<{BOB}> NOTIFY=SUCCESS ORCPT=rfc822;Bob@Example.test", "DATA"
    ) == [250, 250, 354]  # fmt: skip
    client.send(from_ada("Reported") + b".\r\n")
    assert (await client.reply()).code == 250
    (report,) = server.inbox(ADA)
    parsed = email.message_from_bytes(report, policy=email.policy.default)
    assert parsed.get_content_type() == "multipart/report"
    for part in (b"Action: delivered", b"Original-Envelope-Id: order-7", b"rfc822;Bob@Example.test", b"Reported"):
        assert part in report
    assert report.startswith(b"Return-Path: <>\r\n")
    assert await client.codes("MAIL FROM:<>", f"RCPT TO:<{BOB}> NOTIFY=SUCCESS", "DATA") == [250, 250, 354]
    client.send(from_ada() + b".\r\n")
    assert (await client.reply()).code == 250
    assert len(server.inbox(ADA)) == 1


# --- the copy a client uploads itself --------------------------------------------------------------------------------


async def test_the_clients_own_copy_is_recognised(server: Running) -> None:
    client = await logged_in(server)
    fields = "Date: Mon, 16 Nov 2026 08:00:00 +0000\r\nMessage-ID: <1@example.test>\r\n"
    sent = from_ada(extra=fields)
    assert (await client.mail(sent, BOB, sender=ADA)).code == 250
    (row,) = rows(server.transport, "Sent", ADA)
    find = sent_copy.find
    transport = server.transport
    uploaded = from_ada(extra=fields + f"Bcc: {BOB}\r\n")
    for copy in (sent, uploaded):
        found = find(transport, ADA, "Sent", copy)
        assert found is not None
        assert found.uid == row.uid
    assert find(transport, ADA, "Sent", uploaded.replace(b"Hello Bob", b"Other text")) is None
    assert find(transport, ADA, "Sent", uploaded.replace(b"Subject: Hello", b"Subject: Other")) is None
    assert find(transport, ADA, "Sent", uploaded.replace(b"<1@", b"<2@")) is None
    assert find(transport, ADA, "Sent", message()) is None
    assert find(transport, ADA, "Drafts", uploaded) is None
    assert find(transport, BOB, "Sent", uploaded) is None
    await asyncio.to_thread(
        transport.run, op.ChangeFlags(ADA, found_folder(server), [row.uid], "add", int(Flag.DELETED))
    )
    assert find(transport, ADA, "Sent", uploaded) is None


def found_folder(server: Running) -> int:
    from tests.support.stores import folder

    return folder(server.transport, "Sent", ADA).id


async def test_a_copy_whose_fields_submission_added_is_recognised(server: Running) -> None:
    client = await logged_in(server)
    sent = from_ada(extra="Message-ID: <3@example.test>\r\n")  # no Date
    assert (await client.mail(sent, BOB, sender=ADA)).code == 250
    assert sent_copy.find(server.transport, ADA, "Sent", sent) is not None
    assert sent_copy.find(server.transport, ADA, "Sent", sent.replace(b"To: ", b"Cc: ")) is None
