"""A real Dovecot in front, as ``conf/dovecot`` has it: the client's address counts, not the proxy's.

Clients come from 127.0.0.2 and so on; Dovecot connects from 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import imaplib
import os
import re
import smtplib
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from adapter.transport.transport import Transport
from tests.support.certificates import make_certificate
from tests.support.messages import message
from tests.support.processes.fronts import adapted, free_port, open_directory, wait_for_port
from tests.support.processes.serve import served
from tests.support.smtpd import PASSWORD, make_store
from tests.support.stores import ADA, BOB, rows
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [
    pytest.mark.needs("dovecot", "/usr/lib/dovecot/imap-login", "/usr/lib/dovecot/submission-login"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Dovecot must be started by root"),
]

_HERE = """
base_dir = {home}/run
state_dir = {home}/run
log_path = {home}/dovecot.log
listen = 127.0.0.1
service imap-login {{
  inet_listener imap {{
    port = {imap}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
"""
_LIMITS = """
[limits]
exempt = []
connections_per_ip = 5
[login]
free_failures = 2
free_users = 2
delay = 2
"""


@dataclass
class Front:
    root: Path
    log: Path
    imap_port: int
    submission_port: int

    @contextlib.contextmanager
    def imap(self, source: str) -> Iterator[imaplib.IMAP4]:
        client = _ImapFrom(source, self.imap_port)
        try:
            client.starttls(_trusting())
            yield client
        finally:
            with contextlib.suppress(OSError):  # logged out already
                client.shutdown()

    @contextlib.contextmanager
    def submission(self, source: str) -> Iterator[smtplib.SMTP]:
        with smtplib.SMTP("127.0.0.1", self.submission_port, timeout=PATIENCE, source_address=(source, 0)) as client:
            client.starttls(context=_trusting())
            yield client

    def wait_for(self, pattern: str) -> None:
        """Until the log has a line of this kind."""
        wait_until(lambda: re.search(pattern, self.log.read_text()), self.log.read_text)


class _ImapFrom(imaplib.IMAP4):
    """Connects from an address of choice."""

    def __init__(self, source: str, port: int) -> None:
        self._source = source
        super().__init__("127.0.0.1", port, PATIENCE)

    def _create_socket(self, timeout: float | None) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout, source_address=(self._source, 0))


def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    scratch = tmp_path_factory.mktemp("proxy")
    make_store(scratch / "store")
    config = scratch / "markpost.toml"
    ports = {":1143": ":0", ":1587": ":0"}
    config.write_text(adapted("dovecot/markpost.toml", ports) + _LIMITS)
    log = scratch / "log"
    with open_directory() as home, served(scratch / "store", "--config", str(config), log=log) as server:
        tls = make_certificate(scratch)
        imap, submission = free_port(), free_port()
        text = adapted(
            "dovecot/dovecot.conf",
            {
                "imap;1143;1587": f"imap;{server.ports['imap']};{server.ports['submission']}",
                "port = 587": f"port = {submission}",
                "port = 465": "port = 0",
                "/etc/ssl/certs/mail.example.org.pem": tls.certificate,
                "/etc/ssl/private/mail.example.org.pem": tls.key,
            },
        )
        (home / "dovecot.conf").write_text(text + _HERE.format(home=home, imap=imap))
        (home / "run").mkdir()
        dovecot = subprocess.Popen(["dovecot", "-F", "-c", home / "dovecot.conf"])
        try:
            wait_for_port(imap, home / "dovecot.log")
            wait_for_port(submission, home / "dovecot.log")
            yield Front(scratch / "store", log, imap, submission)
        finally:
            dovecot.terminate()
            dovecot.wait(PATIENCE)


def test_imap_through_dovecot(front: Front) -> None:
    with front.imap("127.0.0.2") as client:
        client.login(ADA, PASSWORD)
        client.append("INBOX", "", "", message("By way of Dovecot"))
        client.select("INBOX")
        _, fetched = client.uid("FETCH", "1:*", "(FLAGS BODY[HEADER.FIELDS (SUBJECT)])")
        assert b"By way of Dovecot" in b"".join(part for item in fetched for part in item if isinstance(part, bytes))
        client.logout()
    front.wait_for(rf" 127\.0\.0\.2 logged in as {ADA}")
    assert " 127.0.0.1 logged in" not in front.log.read_text()


def test_submission_through_dovecot(front: Front) -> None:
    with front.submission("127.0.0.3") as client:
        client.login(ADA, PASSWORD)
        octets = message("Submitted by way of Dovecot").replace(b"From: Bob <bob@", b"From: Ada <ada@")
        assert client.sendmail(ADA, [BOB], octets) == {}
    front.wait_for(rf" 127\.0\.0\.3 logged in as {ADA} by PLAIN")
    with Transport.open(front.root) as transport:
        arrived = [transport.content.octets(row.message_id) for row in rows(transport, address=BOB)]
    assert b"[127.0.0.3]" in next(each for each in arrived if b"Submitted by way of Dovecot" in each)


def test_failed_logins_slow_down_the_client_that_made_them(front: Front) -> None:
    """Other clients of the same proxy are not locked out, by IMAP or submission."""
    for number in range(2):
        with front.imap("127.0.0.4") as client, pytest.raises(imaplib.IMAP4.error):
            client.login(f"guess{number}@example.test", "wrong")
    front.wait_for(r" 127\.0\.0\.4 login failed")
    assert _seconds_to_log_in(front, "127.0.0.4") >= 2
    others = (f"127.0.0.{number}" for number in range(10, 15))
    assert any(_seconds_to_log_in(front, each) < 1.5 for each in others)  # one of them, on a machine that is busy


def _seconds_to_log_in(front: Front, source: str) -> float:
    with front.submission(source) as client:
        started = time.monotonic()
        with pytest.raises(smtplib.SMTPAuthenticationError):
            client.login(f"{source}@example.test", "wrong")
        return time.monotonic() - started


def test_connections_are_counted_for_the_client(front: Front) -> None:
    with contextlib.ExitStack() as scope:
        for _ in range(5):
            scope.enter_context(front.imap("127.0.0.6")).login(ADA, PASSWORD)
        with front.imap("127.0.0.6") as sixth, pytest.raises(imaplib.IMAP4.error):
            sixth.login(ADA, PASSWORD)
        with front.imap("127.0.0.7") as other:
            other.login(ADA, PASSWORD)
