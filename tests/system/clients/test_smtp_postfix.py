"""A real Postfix in front: it takes mail by SMTP and hands it over by LMTP, over TCP (also TLS) and a unix socket."""

from __future__ import annotations

import os
import smtplib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from adapter.store import layout
from adapter.transport.transport import Transport
from tests.support.certificates import make_certificate
from tests.support.messages import message
from tests.support.processes.fronts import open_directory
from tests.support.processes.postfix import Postfix, running_postfix
from tests.support.processes.serve import Served, served
from tests.support.smtpd import make_store
from tests.support.stores import rows
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [
    pytest.mark.needs("postfix"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Postfix must be started by root"),
]

#: Mail for a domain goes the way it is called.
_MAIN = """
myhostname = front.test
message_size_limit = 30000000
virtual_mailbox_domains = tcp.test, tls.test, unix.test
virtual_mailbox_limit = 0
transport_maps = inline:{{ {{ tcp.test = lmtp:inet:127.0.0.1:{port} }}, {{ unix.test = lmtp:unix:{path} }},
  {{ tls.test = encrypted:inet:127.0.0.1:{port} }} }}
default_transport = discard:
lmtp_destination_recipient_limit = 50
lmtp_send_xforward_command = no
smtpd_relay_restrictions = reject_unauth_destination, reject_unverified_recipient
unverified_recipient_reject_code = 550
"""
_MASTER = """
encrypted unix - - n - - lmtp -o lmtp_tls_security_level=verify -o lmtp_tls_CAfile={certificate}
  -o lmtp_tls_verify_cert_match=localhost
"""
_ACCOUNTS = [f"{name}@{domain}" for domain in ("tcp.test", "tls.test", "unix.test") for name in ("ada", "bob")]


@dataclass(frozen=True)
class Place:
    root: Path
    server: Served
    postfix: Postfix

    def inbox(self, address: str) -> list[Path]:
        return list(self.root.joinpath(*layout.folder_directory(address, "INBOX")).glob("*.md"))

    def wait_for(self, address: str, count: int) -> list[bytes]:
        """The octets of that many messages, when they have come."""
        wait_until(lambda: len(self.inbox(address)) >= count, lambda: self.postfix.log[-3000:])
        with Transport.open(self.root) as transport:
            return [transport.content.octets(row.message_id) for row in rows(transport, address=address)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    scratch = tmp_path_factory.mktemp("postfix")
    make_store(scratch / "store", *_ACCOUNTS)
    config = scratch / "conf.toml"
    with open_directory() as home:
        tls = make_certificate(home, "localhost")
        certificate = f'[tls]\ncertificate = "{tls.certificate}"\nkey = "{tls.key}"\n'
        config.write_text(f"{certificate}[listen]\nsocket_mode = 0o666\n")
        listeners = ("--lmtp", "127.0.0.1:0", "--lmtp", str(home / "lmtp.sock"))
        with served(scratch / "store", "--config", str(config), *listeners, log=scratch / "log") as server:
            main = _MAIN.format(port=server.ports["lmtp"], path=home / "lmtp.sock")
            with running_postfix(home, main, _MASTER.format(certificate=tls.certificate)) as postfix:
                yield Place(scratch / "store", server, postfix)


@pytest.mark.parametrize("how", ["tcp", "tls", "unix"])
def test_mail_through_postfix(place: Place, how: str) -> None:
    ada, bob, unknown = (f"{name}@{how}.test" for name in ("ada", "bob", "nobody"))
    with smtplib.SMTP("127.0.0.1", place.postfix.port, timeout=PATIENCE) as client:
        # Postfix asks at RCPT time whether the address exists, by a probe over LMTP.
        assert client.sendmail("x@y.test", [ada, bob], message("One for two", ".dot\r\n..dots\r\n")) == {}
        with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
            client.sendmail("x@y.test", [unknown], message())
        assert b"5.1.1" in refused.value.recipients[unknown][1]
        big = message("Large", attachments=[os.urandom(3_000_000)])
        client.sendmail("x@y.test", [ada], big)
        client.sendmail("x@y.test", [ada], "Subject: Grüße\r\n\r\nä\r\n".encode(), ["SMTPUTF8", "BODY=8BITMIME"])
        for number in range(20):
            client.sendmail("x@y.test", [bob], message(f"Number {number}"))
    to_ada, to_bob = place.wait_for(ada, 3), place.wait_for(bob, 21)
    one = next(octets for octets in to_ada if b"Subject: One for two" in octets)
    assert one.endswith(b"\r\n\r\n.dot\r\n..dots\r\n")
    assert one in to_bob  # one file for both
    assert (b" with LMTPS id " if how == "tls" else b" with LMTP id ") in one
    assert b"(local)" in one if how == "unix" else b"[127.0.0.1]" in one
    assert any(octets.endswith(big[-1000:]) and len(octets) > len(big) for octets in to_ada)
    assert sum(b"Subject: Number " in octets for octets in to_bob) == 20
    assert any("Subject: Grüße".encode() in octets for octets in to_ada)


def test_mail_waits_in_postfix_while_the_store_is_offline(place: Place) -> None:
    address = _ACCOUNTS[0]
    marker = place.root.joinpath(*layout.MAINTENANCE, layout.OFFLINE_MARKER)
    with smtplib.SMTP("127.0.0.1", place.postfix.port, timeout=PATIENCE) as client:
        before = len(place.inbox(address))
        client.sendmail("x@y.test", [address], message("Before"))
        place.wait_for(address, before + 1)
        marker.write_text("repair\n")
        wait_until(lambda: _greeting(place.server.ports["lmtp"]).startswith(b"421"))
        deferred = place.postfix.log.count("status=deferred")
        client.sendmail("x@y.test", [address], message("Meanwhile"))
    wait_until(lambda: place.postfix.log.count("status=deferred") > deferred, lambda: place.postfix.log[-3000:])
    assert len(place.inbox(address)) == before + 1
    marker.unlink()
    assert any(b"Subject: Meanwhile" in octets for octets in place.wait_for(address, before + 2))


def _greeting(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as probe:
        return probe.recv(100)
