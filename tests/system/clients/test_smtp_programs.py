"""swaks, curl, msmtp and Python's smtplib: plain, with STARTTLS and with TLS from the start."""

from __future__ import annotations

import smtplib
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.transport.transport import Transport
from tests.support.certificates import make_certificate
from tests.support.messages import message
from tests.support.processes.serve import Served, served
from tests.support.smtpd import PASSWORD, make_store, trusting
from tests.support.stores import ADA, BOB, rows
from tests.support.waiting import PATIENCE

HOW = ["submission", "starttls", "submissions"]


class Place:
    """A serving process, its certificate, and what it has stored."""

    def __init__(self, root: Path, server: Served, certificate: str) -> None:
        self.root = root
        self.server = server
        self.certificate = certificate
        self._seen = 0

    def port(self, kind: str) -> int:
        return self.server.ports["submission" if kind == "starttls" else kind]

    def arrived(self, address: str = BOB) -> bytes:
        """The newest message of an inbox."""
        with Transport.open(self.root) as transport:
            newest = rows(transport, address=address)[-1]
            return transport.content.octets(newest.message_id)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("programs")
    make_store(home / "store")
    tls = make_certificate(home, "localhost")
    (home / "conf.toml").write_text(f'[tls]\ncertificate = "{tls.certificate}"\nkey = "{tls.key}"\n')
    kinds = [
        option for kind in ("smtp", "submission", "submissions", "lmtp") for option in (f"--{kind}", "127.0.0.1:0")
    ]
    with served(home / "store", "--config", str(home / "conf.toml"), *kinds, log=home / "log") as server:
        yield Place(home / "store", server, tls.certificate)
        assert "Traceback" not in (home / "log").read_text()


def run(*command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    result = subprocess.run(command, input=stdin, capture_output=True, timeout=PATIENCE, check=False)
    assert result.returncode == 0, (command, result.stdout.decode(), result.stderr.decode())
    return result


# --- swaks -----------------------------------------------------------------------------------------------------------


@pytest.mark.needs("swaks")
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("mechanism", ["PLAIN", "LOGIN"])
def test_swaks_submits(place: Place, how: str, mechanism: str) -> None:
    tls = {"submission": [], "starttls": ["--tls"], "submissions": ["--tls-on-connect"]}[how]
    run(
        "swaks", "--server", f"127.0.0.1:{place.port(how)}", "--from", ADA, "--to", BOB, "--auth", mechanism,
        "--auth-user", ADA, "--auth-password", PASSWORD, *tls, "--header", f"Subject: swaks {how} {mechanism}",
    )  # fmt: skip
    octets = place.arrived()
    assert f"Subject: swaks {how} {mechanism}\r\n".encode() in octets
    assert (b" with ESMTPA " if how == "submission" else b" with ESMTPSA ") in octets


@pytest.mark.needs("swaks")
@pytest.mark.parametrize("protocol", ["SMTP", "ESMTP", "LMTP"])
@pytest.mark.parametrize("pipeline", [False, True])
def test_swaks_delivers(place: Place, protocol: str, pipeline: bool) -> None:
    port = place.port("lmtp" if protocol == "LMTP" else "smtp")
    run(
        "swaks", "--server", f"127.0.0.1:{port}", "--protocol", protocol, "--from", "x@y.test", "--to", f"{ADA},{BOB}",
        "--header", f"Subject: {protocol}", *(["--pipeline"] if pipeline else []),
    )  # fmt: skip
    assert f"Subject: {protocol}\r\n".encode() in place.arrived(ADA)


@pytest.mark.needs("swaks")
def test_swaks_is_told_no(place: Place) -> None:
    port = str(place.port("smtp"))
    refused = subprocess.run(
        ["swaks", "--server", f"127.0.0.1:{port}", "--from", "x@y.test", "--to", "dave@elsewhere.test"],
        capture_output=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert refused.returncode == 24  # no recipient accepted
    assert b"550 5.7.1" in refused.stdout


# --- curl ------------------------------------------------------------------------------------------------------------


@pytest.mark.needs("curl")
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("mechanism", ["PLAIN", "LOGIN", "SCRAM-SHA-256"])
def test_curl_submits(place: Place, how: str, mechanism: str) -> None:
    if mechanism == "SCRAM-SHA-256" and b"GSASL" not in run("curl", "--version").stdout:
        mechanism = "PLAIN"
    scheme = "smtps" if how == "submissions" else "smtp"
    octets = f"From: {ADA}\r\nTo: {BOB}\r\nSubject: curl {how} {mechanism}\r\n\r\nHello\r\n.dot\r\n".encode()
    run(
        "curl", "--silent", "--show-error", f"{scheme}://localhost:{place.port(how)}/client.test",
        "--resolve", f"localhost:{place.port(how)}:127.0.0.1", "--mail-from", ADA, "--mail-rcpt", BOB,
        "--user", f"{ADA}:{PASSWORD}", "--login-options", f"AUTH={mechanism}", "--upload-file", "-",
        "--cacert", place.certificate, *(["--ssl-reqd"] if how == "starttls" else []), stdin=octets,
    )  # fmt: skip
    stored = place.arrived()
    assert f"Subject: curl {how} {mechanism}\r\n".encode() in stored
    assert stored.endswith(b"\r\n\r\nHello\r\n.dot\r\n")


# --- msmtp -----------------------------------------------------------------------------------------------------------


@pytest.mark.needs("msmtp")
@pytest.mark.parametrize("how", HOW)
def test_msmtp_submits(place: Place, how: str) -> None:
    tls = {
        "submission": ["--tls=off"],
        "starttls": ["--tls=on", "--tls-starttls=on", f"--tls-trust-file={place.certificate}"],
        "submissions": ["--tls=on", "--tls-starttls=off", f"--tls-trust-file={place.certificate}"],
    }[how]
    run(
        "msmtp", "--file=/dev/null", "--host=localhost", f"--port={place.port(how)}", "--auth=plain", f"--user={ADA}",
        f"--passwordeval=echo '{PASSWORD}'", f"--from={ADA}", *tls, BOB,
        stdin=f"From: {ADA}\nTo: {BOB}\nSubject: msmtp {how}\n\nHello\n".encode(),
    )  # fmt: skip
    assert f"Subject: msmtp {how}\r\n".encode() in place.arrived()


@pytest.mark.needs("msmtp")
def test_msmtp_delivers_by_lmtp(place: Place) -> None:
    run(
        "msmtp", "--file=/dev/null", "--protocol=lmtp", "--host=127.0.0.1", f"--port={place.port('lmtp')}", "--tls=off",
        "--auth=off", "--from=x@y.test", ADA, BOB, stdin=b"From: x@y.test\nSubject: msmtp lmtp\n\nHello\n",
    )  # fmt: skip
    assert b"Subject: msmtp lmtp\r\n" in place.arrived()


# --- smtplib ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOW)
def test_smtplib_submits(place: Place, how: str) -> None:
    client: smtplib.SMTP
    if how == "submissions":
        client = smtplib.SMTP_SSL("127.0.0.1", place.port(how), context=trusting(), timeout=PATIENCE)
    else:
        client = smtplib.SMTP("127.0.0.1", place.port(how), timeout=PATIENCE)
    with client:
        if how == "starttls":
            client.starttls(context=trusting())
        client.login(ADA, PASSWORD)
        octets = message(f"smtplib {how}").replace(b"bob@example.test", ADA.encode())
        assert client.sendmail(ADA, [BOB], octets, ["RET=HDRS"], ["NOTIFY=NEVER"]) == {}
        with pytest.raises(smtplib.SMTPSenderRefused):
            client.sendmail(BOB, [ADA], octets)
        assert client.noop()[0] == 250
    assert f"Subject: smtplib {how}\r\n".encode() in place.arrived()


def test_smtplib_sends_international_mail(place: Place) -> None:
    with smtplib.SMTP("127.0.0.1", place.port("smtp"), timeout=PATIENCE) as client:
        client.sendmail(
            "grüße@müller.test", [ADA], "Subject: Grüße\r\n\r\nHallo\r\n".encode(), ["SMTPUTF8", "BODY=8BITMIME"]
        )
    octets = place.arrived(ADA)
    assert "Subject: Grüße\r\n".encode() in octets
    assert b" with UTF8SMTP " in octets
    assert "Return-Path: <grüße@müller.test>".encode() in octets


def test_smtplib_delivers_by_lmtp(place: Place) -> None:
    with smtplib.LMTP("127.0.0.1", place.port("lmtp")) as client:
        assert client.sendmail("x@y.test", [ADA], message("smtplib lmtp")) == {}
    assert b"Subject: smtplib lmtp\r\n" in place.arrived(ADA)


def test_many_handshakes_at_once(place: Place) -> None:
    """The first flight of a client may be there before the server looks: none of it is lost."""
    raw = [socket.create_connection(("127.0.0.1", place.port("submissions"))) for _ in range(40)]
    context: ssl.SSLContext = trusting()
    for connection in raw:
        with context.wrap_socket(connection) as wrapped:
            wrapped.settimeout(PATIENCE)
            assert wrapped.recv(1000).startswith(b"220 ")
