"""Networks, throttling, logins, certificates, endpoints and the log."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import ssl
import threading
from pathlib import Path

import pytest

from adapter.accounts.login import Authenticator
from adapter.accounts.throttle import Throttle
from adapter.config.loader import Seconds
from adapter.config.schema import Certificate, Login, Settings, Tls
from adapter.net import endpoints, networks
from adapter.net.networks import Networks
from adapter.net.tls import Certificates, TlsError
from adapter.observability import logging as logs
from adapter.observability.peer import Peer
from protocol.sasl.mechanisms import Failure, FailureCause, Success
from protocol.sasl.scram import ScramKeys
from tests.support.certificates import make_certificate
from tests.support.waiting import PATIENCE, until

ADA = "ada@example.test"
PEER = Peer("test-1", "192.0.2.1")


def test_networks() -> None:
    some = Networks(["127.0.0.0/8", "2001:db8::/32", "unix"])
    for inside in ("127.0.0.1", "2001:db8::1", "unix", "::ffff:127.0.0.1"):
        assert inside in some
    for outside in ("192.0.2.1", "::1", "", "nonsense"):
        assert outside not in some
    with pytest.raises(ValueError, match="neither a network nor"):
        Networks(["localhost"])
    assert networks.group("2001:db8::1") == networks.group("2001:db8::ffff") != networks.group("2001:db9::1")
    assert networks.group("192.0.2.1") != networks.group("192.0.2.2")


@pytest.mark.setting("login.free_failures", "login.delay", "login.longest_delay", "login.forget", "login.free_users")
def test_throttle_grows_forgets_and_counts_attempts_under_way() -> None:
    now = 0.0
    settings = Login(
        free_failures=2, free_users=2, delay=Seconds(1.0), longest_delay=Seconds(5.0), forget=Seconds(100.0)
    )
    throttle = Throttle(settings, lambda: now)

    def fail(user: str, peer: str) -> float:
        with throttle.attempt(user, peer) as attempt:
            attempt.failed = True
            return attempt.delay

    assert [fail("a", "x") for _ in range(6)] == [0.0, 0.0, 1.0, 2.0, 4.0, 5.0]
    assert [fail("a", "y"), fail("a", "z"), fail("a", "w")] == [0.0, 1.0, 2.0]  # the user at many addresses
    assert fail("b", "x") == 0.0  # one user does not slow down the others of his address
    assert [fail("c", "x"), fail("d", "x"), fail("e", "x")] == [1.0, 2.0, 4.0]  # many users do
    assert fail("f", "v") == 0.0
    with throttle.attempt("a", "x") as attempt:
        attempt.failed = False
    assert fail("g", "x") == 4.0  # what this user failed here is forgiven, and nothing of the others'
    assert fail("a", "v") == 2.0  # nor what failed elsewhere
    now = 99.0
    assert fail("h", "x") == 5.0
    now = 101.0  # since the first failure: an address with one now and then is not punished for ever
    assert fail("h", "x") == 0.0
    with throttle.attempt("k", "w") as one, throttle.attempt("k", "w") as two, throttle.attempt("k", "w") as three:
        assert [one.delay, two.delay, three.delay] == [0.0, 0.0, 1.0]


class _Passwords:
    """Counts how often it was asked; the salt stands for the password."""

    def __init__(self) -> None:
        self.password = "right"
        self.asked = 0
        self.trouble: OSError | None = None

    def has_password(self, address: str) -> bool:
        return address.lower() == ADA

    def verify(self, address: str, password: str) -> bool:
        self.asked += 1
        if self.trouble:
            raise self.trouble
        return address.lower() == ADA and password == self.password

    def scram(self, address: str) -> ScramKeys | None:
        return ScramKeys(self.password.encode(), 4096, b"", b"") if address.lower() == ADA else None


async def test_proven_logins_are_not_hashed_again_until_the_password_changes() -> None:
    passwords = _Passwords()
    active = {ADA}
    login = Authenticator(Settings(), passwords, active.__contains__)
    try:
        assert await login.check_password("Ada@Example.test", "right", PEER) == Success(ADA)
        assert await login.check_password(ADA, "right", PEER) == Success(ADA)
        assert passwords.asked == 1
        assert await login.check_password(ADA, "wrong", PEER) == Failure(FailureCause.REFUSED)
        passwords.password = "other"
        assert await login.check_password(ADA, "right", PEER) == Failure(FailureCause.REFUSED)
        assert await login.check_password(ADA, "other", PEER) == Success(ADA)
        assert all(b"right" not in digest for digest in login._cache)
        active.clear()
        assert await login.check_password(ADA, "other", PEER) == Failure(FailureCause.REFUSED)
    finally:
        login.close()


async def test_those_who_name_nobody_are_not_one_user() -> None:
    """A token says whose it is: strangers with bad ones hold up nobody else."""
    login = Authenticator(Settings(login=Login(free_failures=1)), _Passwords(), lambda _: True)
    try:
        for _ in range(3):
            with login.attempt("", PEER) as attempt:
                attempt.failed = True
        assert attempt.delay > 0
        with login.attempt("", Peer("test-2", "192.0.2.2")) as other:
            assert other.delay == 0
    finally:
        login.close()


async def test_credentials_that_cannot_be_read_are_no_refusal() -> None:
    passwords = _Passwords()
    passwords.trouble = OSError(5, "Input/output error")
    login = Authenticator(Settings(), passwords, lambda _: True)
    try:
        assert await login.check_password(ADA, "right", PEER) == Failure(FailureCause.UNAVAILABLE)
    finally:
        login.close()


@pytest.mark.setting("login.waiting")
async def test_the_line_of_waiting_logins_is_bounded() -> None:
    passwords = _Passwords()
    gate = threading.Event()
    passwords.verify = lambda address, password: gate.wait(PATIENCE)  # type: ignore[method-assign]
    login = Authenticator(Settings(login=Login(waiting=2, threads=1)), passwords, lambda _: True)
    try:
        waiting = [asyncio.create_task(login.check_password(f"u{n}@example.test", "x", PEER)) for n in range(2)]
        await until(lambda: len(login._hashing) == 1)
        waiting.append(asyncio.create_task(login.check_password("u2@example.test", "x", PEER)))
        await until(lambda: len(login._hashing) == 2)
        assert await login.check_password("u9@example.test", "x", PEER) == Failure(FailureCause.UNAVAILABLE)
        gate.set()
        assert all(isinstance(outcome, Success) for outcome in await asyncio.gather(*waiting))
    finally:
        gate.set()
        login.close()


def test_certificates_reload_and_names(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, other = make_certificate(tmp_path / "a"), make_certificate(tmp_path / "b", "other.test")
    assert Certificates(Tls()).context is None
    names = {"other.test": Certificate(other.certificate, other.key)}
    certificates = Certificates(Tls(first.certificate, first.key, names))
    before = certificates.context
    assert before is not None
    assert before.minimum_version == ssl.TLSVersion.TLSv1_2
    assert _presented(certificates, "other.test") != _presented(certificates, "mail.example.test")
    make_certificate(tmp_path / "a")
    certificates.reload()
    assert certificates.context is not before
    Path(first.certificate).write_text("broken")
    kept = certificates.context
    with pytest.raises(TlsError):
        certificates.reload()
    assert certificates.context is kept
    with pytest.raises(TlsError, match="no such file"):
        Certificates(Tls("/nonexistent/cert.pem"))


def _presented(certificates: Certificates, name: str) -> bytes:
    """The certificate a client sees that asks for ``name``."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    assert certificates.context is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = certificates.context.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(10):
        for side in (theirs, ours):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    presented = theirs.getpeercert(binary_form=True)
    assert presented
    return presented


def test_endpoints() -> None:
    assert str(endpoints.parse("smtp", "127.0.0.1:25")) == "127.0.0.1:25"
    assert str(endpoints.parse("smtp", "[::1]:25")) == "[::1]:25"
    assert endpoints.parse("lmtp", "/run/lmtp").path == endpoints.parse("lmtp", "unix:/run/lmtp").path == "/run/lmtp"
    for bad in ("25", "host", "host:port", "host:70000", ":25", ""):
        with pytest.raises(ValueError, match="neither host:port nor"):
            endpoints.parse("smtp", bad)


def test_log_lines_keep_their_order_and_warnings_are_written_at_once() -> None:
    stream = io.StringIO()
    handler = logs.LogWriter(stream)
    handler.setFormatter(logs.JsonLines())
    log = logging.Logger("test", logging.INFO)
    log.addHandler(handler)
    for number in range(100):
        log.info("line %d", number)
    log.warning("last")
    lines = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert lines == [*[f"line {number}" for number in range(100)], "last"]
    read, write = os.pipe()
    os.close(read)
    broken = logs.LogWriter(os.fdopen(write, "w"))
    log.addHandler(broken)
    log.error("nobody reads this")
    log.info("nor this")
