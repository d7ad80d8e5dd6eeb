"""Login to submission: mechanisms, TLS, and the delay after a wrong password."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import socket
import ssl
import struct
import warnings
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from adapter.accounts.credentials import SCRAM_ITERATIONS
from adapter.config.loader import Seconds
from adapter.config.schema import Login, Settings, Tls
from adapter.net import tls
from adapter.smtp.stream import Stream
from tests.support.certificates import make_certificate
from tests.support.smtpd import PASSWORD, Reply, Running, SmtpClient, from_ada, make_store, serving, trusting
from tests.support.stores import ADA, BOB
from tests.support.waiting import PATIENCE, until


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    make_store(tmp_path / "store")
    async with serving(tmp_path / "store") as running:
        yield running


async def test_submission_requires_a_login(server: Running) -> None:
    client = await server.hello("submission")
    assert (await client.ask(f"MAIL FROM:<{ADA}>")).code == 530
    assert (await client.login(password="wrong")).code == 535
    assert (await client.login("nobody@example.test")).code == 535
    assert (await client.ask(f"MAIL FROM:<{ADA}>")).code == 530
    assert (await client.login()).code == 235
    assert (await client.login()).code == 503
    assert (await client.mail(from_ada(), BOB, sender=ADA)).code == 250


async def test_login_by_password_and_by_scram(server: Running) -> None:
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
    """The client side of RFC 5802."""
    import hashlib
    import hmac

    bare = f"n={ADA},r=fyko+d2lbbFgONRv9qkxdawL"
    first = await client.ask(f"AUTH SCRAM-SHA-256 {base64.b64encode(b'n,,' + bare.encode()).decode()}")
    reply_text = base64.b64decode(first.text).decode()
    fields = dict(item.split("=", 1) for item in reply_text.split(","))
    assert int(fields["i"]) == SCRAM_ITERATIONS
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    final = f"c=biws,r={fields['r']}"
    signed = f"{bare},{reply_text},{final}".encode()
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature))).decode()
    reply = await client.ask(base64.b64encode(f"{final},p={proof}".encode()).decode())
    return await client.ask("") if reply.code == 334 else reply


async def test_invalid_auth_exchanges_leave_the_session_usable(server: Running) -> None:
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


@pytest.mark.setting("login.allow_plaintext")
async def test_login_without_tls_is_refused(tmp_path: Path, certificate: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapter.net.networks.is_loopback", lambda peer: False)
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
        assert (await client.ask(f"MAIL FROM:<{ADA}>")).code == 503  # the EHLO before TLS is dropped
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
async def test_failed_handshake_ends_the_connection(tmp_path: Path, certificate: Tls) -> None:
    make_store(tmp_path / "store")
    tls = dataclasses.replace(certificate, handshake=Seconds(0.3))
    async with serving(tmp_path / "store", Settings(tls=tls), ["submission", "submissions"]) as running:
        client = await running.hello("submission")
        assert (await client.ask("STARTTLS")).code == 220
        client.send(b"this is not TLS at all, and it is long enough to be noticed\r\n")
        async with asyncio.timeout(PATIENCE):
            await client.reader.read()  # an alert, maybe; then the end
        silent = await running.connect("submissions")
        assert await silent.ended()
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await running.connect("submissions", context=old)


class Paused(asyncio.Transport):
    """A socket that records only whether it is reading."""

    reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default


class Idle(Stream):
    """A stream without a session."""

    async def _handle_client(self) -> None:
        return


async def test_data_with_the_end_of_a_handshake_pauses_the_right_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data arrives before start_tls returns the encrypted socket."""
    plain, encrypted = Paused(), Paused()
    stream = Idle(asyncio.get_running_loop())
    stream.connection_made(plain)

    async def start(transport: object, protocol: Stream, *_: object) -> Paused:
        protocol.data_received(b"x" * (1 << 20))
        return encrypted

    monkeypatch.setattr(tls, "start", start)
    await stream.start_tls(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), 1.0, from_start=True)
    assert (plain.reading, encrypted.reading) == (True, False)
    assert not stream.eof_received()  # TLS cannot be half-closed
    assert len(await stream.receive(1.0)) == 1 << 20
    assert encrypted.reading


@pytest.mark.parametrize("kind", ["smtp", "submissions", "imap", "imaps"])
async def test_client_that_disconnects_before_tls_is_released(tmp_path: Path, certificate: Tls, kind: str) -> None:
    make_store(tmp_path / "store")
    words = {"smtp": b"EHLO c.test\r\nSTARTTLS\r\n", "imap": b"a STARTTLS\r\n"}.get(kind, b"\x16\x03\x01")
    async with serving(tmp_path / "store", Settings(tls=certificate), [kind]) as running:

        def come_and_go() -> None:
            for number in range(24):
                with socket.create_connection(("127.0.0.1", running.ports[kind])) as client:
                    if number % 2:  # reset instead of an orderly close
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    if number % 3 and kind in ("smtp", "imap"):
                        client.recv(100)
                    client.sendall(words + (b"no handshake\r\n" if number % 4 > 1 else b""))

        await asyncio.to_thread(come_and_go)
        await until(lambda: len(running.services.connections) == running.services.admission.total == 0)


async def test_wrong_passwords_delay_the_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        other = await running.hello("submission")  # verified a moment ago: no delay, no hashing
        assert running.services.store is not None
        monkeypatch.setattr(running.services.store.authenticator, "_verify", None)
        assert (await other.login()).code == 235


async def test_log_has_no_password(server: Running, caplog: pytest.LogCaptureFixture) -> None:
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
