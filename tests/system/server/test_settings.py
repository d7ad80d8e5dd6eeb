"""Server settings that no other test covers: each takes effect."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import imaplib
import json
import logging
import smtplib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from adapter.accounts.login import Authenticator
from adapter.accounts.recipients import Recipients, Target
from adapter.config.loader import Seconds, Size
from adapter.config.schema import ImapSettings, Listen, Lmtp, Login, Quota, RelaySettings, Server, Settings, Submission
from adapter.net import endpoints
from adapter.observability.peer import Peer
from adapter.server.serve import open_listener
from adapter.sessions import context
from adapter.store.queries import outbox
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from protocol.sasl.mechanisms import Success
from protocol.sasl.scram import ScramKeys
from tests.support.certificates import make_certificate
from tests.support.imapd import ImapClient
from tests.support.processes.serve import served
from tests.support.smtpd import Running, make_store, serving, trusting
from tests.support.stores import ADA
from tests.support.waiting import PATIENCE

PEER = Peer("test-1", "192.0.2.1")
LOOPBACK = ("127.0.0.0/8",)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_store(tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.setting("listen.imap", "listen.imaps", "listen.smtp", "listen.submission", "listen.submissions")
@pytest.mark.setting("listen.lmtp", "listen.socket_mode", "server.log_level", "tls.certificate", "tls.key")
def test_every_configured_listener_serves(root: Path, tmp_path: Path) -> None:
    tls = make_certificate(tmp_path)
    lines = [f'{kind} = ["127.0.0.1:0"]' for kind in ("imap", "imaps", "smtp", "submission", "submissions")]
    config = tmp_path / "markpost.toml"
    config.write_text(
        f'[tls]\ncertificate = "{tls.certificate}"\nkey = "{tls.key}"\n[server]\nlog_level = "warning"\n'
        + "\n".join(["[listen]", *lines, f'lmtp = ["{tmp_path}/l"]', "socket_mode = 0o606", ""])
    )
    with served(root, "--config", str(config), log=tmp_path / "log") as server:
        ports = server.ports
        with imaplib.IMAP4("127.0.0.1", ports["imap"], timeout=PATIENCE) as imap:
            assert "STARTTLS" in imap.capabilities
        imaplib.IMAP4_SSL("127.0.0.1", ports["imaps"], ssl_context=trusting(), timeout=PATIENCE).logout()
        for kind, login in (("smtp", False), ("submission", True)):
            with smtplib.SMTP("127.0.0.1", ports[kind], timeout=PATIENCE) as client:
                client.ehlo()
                assert client.has_extn("starttls")
                assert client.has_extn("auth") is login
        with smtplib.SMTP_SSL("127.0.0.1", ports["submissions"], timeout=PATIENCE, context=trusting()) as client:
            client.ehlo()
            assert client.has_extn("auth")
        assert (tmp_path / "l").stat().st_mode & 0o777 == 0o606
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as lmtp:
            lmtp.connect(str(tmp_path / "l"))
            assert b" LMTP " in lmtp.recv(1000)
        assert server.stop() == 0
    assert "INFO" not in (tmp_path / "log").read_text()


@pytest.mark.setting("listen.backlog")
def test_backlog_bounds_connections_that_wait_to_be_accepted() -> None:
    listener = open_listener(endpoints.parse("smtp", "127.0.0.1:0"), Settings(listen=Listen(backlog=7)))
    try:
        # For a listening socket, the kernel has the length of the queue in this field of TCP_INFO.
        info = listener.sockets[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        assert struct.unpack_from("I", info, 28)[0] == 7
    finally:
        listener.close()


@pytest.mark.setting("server.threads")
@pytest.mark.parametrize("threads", [1, 3])
def test_number_of_threads_follows_the_setting(root: Path, threads: int) -> None:
    store = context.open_store(str(root), Settings(server=Server(threads=threads)))
    try:
        meeting = threading.Barrier(2, timeout=PATIENCE if threads > 1 else 0.3)
        met = [store.pool.submit(meeting.wait) for _ in range(2)]
        wait(met)
        assert [future.exception() is None for future in met] == [threads > 1] * 2
    finally:
        context.close_store(store)


# --- logins ----------------------------------------------------------------------------------------------------------


class _Passwords:
    """Every password is right; counts the checks, and how many run concurrently."""

    def __init__(self, together: int) -> None:
        self._meeting = threading.Barrier(together, timeout=PATIENCE)
        self._lock = threading.Lock()
        self._now = 0
        self.asked = 0
        self.most = 0

    def has_password(self, address: str) -> bool:
        return True

    def verify(self, address: str, password: str) -> bool:
        with self._lock:
            self.asked += 1
            self._now += 1
            self.most = max(self.most, self._now)
        self._meeting.wait()
        time.sleep(0.02)  # time for an unexpected additional check
        with self._lock:
            self._now -= 1
        return True

    def scram(self, address: str) -> ScramKeys | None:
        return None


@pytest.mark.setting("login.cache", "login.threads")
@pytest.mark.parametrize(("cache", "threads"), [(0.0, 1), (60.0, 3)])
async def test_login_cache_expires_and_hashing_threads_are_bounded(cache: float, threads: int) -> None:
    passwords = _Passwords(threads)
    settings = Settings(login=Login(cache=Seconds(cache), threads=threads))
    login = Authenticator(settings, passwords, lambda _: True)
    users = [f"u{number}@example.test" for number in range(3)]
    try:
        for _ in range(2):
            outcomes = await asyncio.gather(*(login.check_password(user, "x", PEER) for user in users))
            assert all(isinstance(outcome, Success) for outcome in outcomes)
        assert passwords.asked == (3 if cache else 6)
        assert passwords.most == threads
    finally:
        login.close()


async def _capabilities(running: Running) -> bytes:
    client = await ImapClient.connect(running.ports["imap"])
    greeting = await client.line()
    await client.close()
    return greeting


@pytest.mark.setting("login.mechanisms", "imap.compress")
async def test_offered_mechanisms_follow_the_settings(root: Path) -> None:
    settings = Settings(login=Login(mechanisms=("plain",)), imap=ImapSettings(compress=False))
    async with serving(root, settings, ["imap", "submission"]) as running:
        client = await running.connect("submission")
        await client.reply()
        assert "AUTH PLAIN" in (await client.ask("EHLO c")).lines
        assert (await client.ask("AUTH LOGIN")).code == 504
        greeting = await _capabilities(running)
        assert b"AUTH=PLAIN" in greeting
        assert b"AUTH=LOGIN" not in greeting
        assert b"SCRAM" not in greeting
        imap = await ImapClient.connect(running.ports["imap"])
        await imap.line()
        await imap.ok(f'LOGIN {ADA} "correct horse"')
        assert (await imap.run("COMPRESS DEFLATE"))[1].startswith(b"NO [CANNOT]")
        assert b"COMPRESS" not in (await imap.ok("CAPABILITY"))[0]
        await imap.close()


@pytest.mark.setting("imap.id_from")
@pytest.mark.parametrize(("proxies", "believed"), [(LOOPBACK, True), ((), False)])
async def test_proxy_passes_on_the_address_of_its_client(
    root: Path, caplog: pytest.LogCaptureFixture, proxies: tuple[str, ...], believed: bool
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(root, Settings(imap=ImapSettings(id_from=proxies)), ["imap"]) as running:
        client = await ImapClient.connect(running.ports["imap"])
        await client.line()
        await client.ok('ID ("x-originating-ip" "192.0.2.9")')
        await client.ok(f'LOGIN {ADA} "correct horse"')
        assert (f" 192.0.2.9 logged in as {ADA}" in caplog.text) is believed
        await client.close()


class _Introspection(BaseHTTPRequestHandler):
    """Token introspection (RFC 7662); the token ``slow`` takes longer than the timeout."""

    enough = threading.Event()

    def do_POST(self) -> None:
        token = self.rfile.read(int(self.headers["Content-Length"])).decode().removeprefix("token=")
        if token == "slow":
            self.enough.wait(PATIENCE)
        answer = json.dumps({"active": token in ("good", "slow"), "username": ADA}).encode()
        with contextlib.suppress(OSError):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name is given
        pass


@pytest.fixture
def introspection() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Introspection)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/introspect"
    _Introspection.enough.set()
    server.shutdown()
    server.server_close()


@pytest.mark.setting("login.token_url", "login.token_timeout")
async def test_tokens_are_introspected_within_the_timeout(root: Path, introspection: str) -> None:
    for token, seconds, code in (("bad", PATIENCE, 535), ("slow", 0.3, 454), ("good", PATIENCE, 235)):
        settings = Settings(login=Login(token_url=introspection, token_timeout=Seconds(seconds), delay=Seconds(0)))
        async with serving(root, settings, ["submission"]) as running:
            client = await running.hello("submission")
            response = f"user={ADA}\x01auth=Bearer {token}\x01\x01".encode()
            reply = await client.ask(f"AUTH XOAUTH2 {base64.b64encode(response).decode()}")
            if reply.code == 334:
                reply = await client.ask("")
            assert reply.code == code, token
            client.close()


# --- mail ------------------------------------------------------------------------------------------------------------


@pytest.mark.setting("submission.line_ends", "lmtp.line_ends")
async def test_line_ends_of_submission_and_lmtp(root: Path) -> None:
    ours = b"From: ada@example.test\r\n\r\nx\ny\r\n"
    by_default = {"submission": (250, b"x\r\ny\r\n"), "lmtp": (250, b"x\ny\r\n")}
    otherwise = {"submission": (550, b""), "lmtp": (250, b"x\r\ny\r\n")}
    chosen = Settings(submission=Submission(line_ends="reject"), lmtp=Lmtp(line_ends="normalise"))
    for settings, expected in ((Settings(), by_default), (chosen, otherwise)):
        async with serving(root, settings, ["submission", "lmtp"]) as running:
            for kind, (code, end) in expected.items():
                client = await running.hello(kind)
                if kind == "submission":
                    assert (await client.login()).code == 235
                assert (await client.mail(ours, ADA, sender=ADA)).code == code
                assert not end or running.inbox()[-1].endswith(b"\r\n\r\n" + end)
                client.close()


@pytest.mark.setting("lmtp.proxy_from")
async def test_proxy_in_front_of_lmtp_passes_on_the_address(root: Path) -> None:
    settings = Settings(lmtp=Lmtp(proxy_from=LOOPBACK, trusted=("192.0.2.0/24",)))
    async with serving(root, settings, ["lmtp"]) as running:
        for peer, code in (("192.0.2.7", 220), ("198.51.100.7", 521)):
            client = await running.connect("lmtp", first=f"PROXY TCP4 {peer} 192.0.2.1 1 2\r\n".encode())
            assert (await client.reply()).code == code
            client.close()


@pytest.mark.setting("quota.over", "quota.storage")
def test_full_mailbox_refuses_permanently_if_configured(store: Transport) -> None:
    for over, reason in (("later", Reason.OVER_QUOTA_SOFT), ("refuse", Reason.OVER_QUOTA)):
        recipients = Recipients(Settings(quota=Quota(storage=Size(10), over=over)), store)  # type: ignore[arg-type]
        with pytest.raises(MailError) as failure:
            recipients.check(Target(ADA), 11)
        assert failure.value.reason is reason


@pytest.mark.setting("relay.expire_after")
async def test_undeliverable_mail_bounces_after_the_configured_time(root: Path) -> None:
    relay = RelaySettings(host="192.0.2.1", expire_after=Seconds(3600), connect=Seconds(0.2))
    async with serving(root, Settings(relay=relay), ["submission"]) as running:
        client = await running.hello("submission")
        assert (await client.login()).code == 235
        ours = b"From: ada@example.test\r\n\r\nx\r\n"
        assert (await client.mail(ours, "dave@far.test", sender=ADA)).code == 250
        with running.transport.reading() as connection:
            [row] = outbox.queued(connection)
        assert row.expires_at - row.created_at == 3600
        client.close()
