"""A real Postfix in front: it takes mail by SMTP and hands it over by LMTP, over TCP and a unix socket.

Postfix is a private instance: its configuration, queue and log lie in a directory of the test. It must be started by
root, as everywhere.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import smtplib
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.store import layout
from adapter.transport.transport import Transport
from tests.support.messages import message
from tests.support.serve import Served, served
from tests.support.smtpd import make_store
from tests.support.stores import ADA, BOB, rows

pytestmark = [
    pytest.mark.needs("postfix"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Postfix must be started by root"),
]

_MASTER = """
127.0.0.1:{port} inet n - n - - smtpd
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
verify unix - - n - 1 verify
proxymap unix - - n - - proxymap
lmtp unix - - n - - lmtp
error unix - - n - - error
retry unix - - n - - error
discard unix - - n - - discard
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
postlog unix-dgram n - n - 1 postlogd
"""
_MAIN = """
compatibility_level = 3.6
queue_directory = {home}/queue
data_directory = {home}/data
maillog_file = {home}/log
maillog_file_prefixes = {home}
myhostname = front.test
mydestination =
alias_maps =
alias_database =
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
mynetworks = 127.0.0.0/8
smtputf8_enable = yes
message_size_limit = 30000000
virtual_mailbox_domains = example.test
virtual_mailbox_limit = 0
virtual_transport = lmtp:{target}
default_transport = discard:
lmtp_destination_recipient_limit = 50
lmtp_send_xforward_command = no
address_verify_poll_delay = 1s
smtpd_relay_restrictions = reject_unauth_destination, reject_unverified_recipient
unverified_recipient_reject_code = 550
minimal_backoff_time = 1s
queue_run_delay = 1s
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _postfix(home: Path, target: str) -> Iterator[int]:
    port = _free_port()
    for name in ("conf", "queue", "data"):
        (home / name).mkdir()
    shutil.chown(home / "data", "postfix", "postfix")
    (home / "conf" / "main.cf").write_text(_MAIN.format(home=home, target=target))
    (home / "conf" / "master.cf").write_text(_MASTER.format(port=port))

    def control(command: str) -> None:
        done = subprocess.run(["postfix", "-c", home / "conf", command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    control("start")
    try:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            assert time.monotonic() < deadline, (home / "log").read_text()
            time.sleep(0.05)
        yield port
    finally:
        control("stop")


@pytest.fixture
def home() -> Iterator[Path]:
    """Postfix wants its directories where its own user may pass."""
    path = Path(tempfile.mkdtemp(prefix="markpost-postfix-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def _stored(root: Path, address: str) -> list[bytes]:
    with Transport.open(root) as transport:
        return [transport.content.octets(row.message_id) for row in rows(transport, address=address)]


def _wait_for(root: Path, address: str, count: int, log: Path) -> list[bytes]:
    deadline = time.monotonic() + 40
    inbox = root.joinpath(*layout.folder_directory(address, "INBOX"))
    while len(list(inbox.glob("*.md"))) < count:
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.05)
    return _stored(root, address)


@pytest.mark.parametrize("how", ["tcp", "unix"])
def test_mail_through_postfix(home: Path, tmp_path: Path, how: str) -> None:
    root = tmp_path / "store"
    make_store(root)
    config = tmp_path / "conf.toml"
    config.write_text("[listen]\nsocket_mode = 0o666\n")
    listener = "127.0.0.1:0" if how == "tcp" else str(home / "lmtp.sock")
    log = home / "log"
    with served(root, "--config", str(config), "--lmtp", listener, log=tmp_path / "log") as server:
        target = f"inet:127.0.0.1:{server.ports['lmtp']}" if how == "tcp" else f"unix:{home}/lmtp.sock"
        with _postfix(home, target) as port, smtplib.SMTP("127.0.0.1", port, timeout=60) as client:
            # Postfix asks at RCPT time whether the address exists, by a probe over LMTP.
            assert client.sendmail("x@y.test", [ADA, BOB], message("One for two", ".dot\r\n..dots\r\n")) == {}
            with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
                client.sendmail("x@y.test", ["nobody@example.test"], message())
            assert b"5.1.1" in refused.value.recipients["nobody@example.test"][1]
            big = message("Large", attachments=[os.urandom(3_000_000)])
            client.sendmail("x@y.test", [ADA], big)
            client.sendmail("x@y.test", [ADA], "Subject: Grüße\r\n\r\nä\r\n".encode(), ["SMTPUTF8", "BODY=8BITMIME"])
            for number in range(20):
                client.sendmail("x@y.test", [BOB], message(f"Number {number}"))
            ada, bob = _wait_for(root, ADA, 3, log), _wait_for(root, BOB, 21, log)
    one = next(octets for octets in ada if b"Subject: One for two" in octets)
    assert one.endswith(b"\r\n\r\n.dot\r\n..dots\r\n")
    assert one in bob  # one file for both
    assert b" with LMTP id " in one
    assert b"(local)" in one if how == "unix" else b"[127.0.0.1]" in one
    assert any(octets.endswith(big[-1000:]) and len(octets) > len(big) for octets in ada)
    assert sum(b"Subject: Number " in octets for octets in bob) == 20
    assert any("Subject: Grüße".encode() in octets for octets in ada)


def test_mail_waits_in_postfix_while_the_store_is_offline(home: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    make_store(root)
    marker = root.joinpath(*layout.MAINTENANCE, layout.OFFLINE_MARKER)
    with contextlib.ExitStack() as scope:
        server = scope.enter_context(served(root, "--lmtp", "127.0.0.1:0", log=tmp_path / "log"))
        port = scope.enter_context(_postfix(home, f"inet:127.0.0.1:{server.ports['lmtp']}"))
        with smtplib.SMTP("127.0.0.1", port, timeout=60) as client:
            client.sendmail("x@y.test", [ADA], message("Before"))
            _wait_for(root, ADA, 1, home / "log")
            marker.write_text("repair\n")
            _wait_until_offline(server)
            client.sendmail("x@y.test", [ADA], message("Meanwhile"))
        time.sleep(1)
        assert len(list(root.joinpath(*layout.folder_directory(ADA, "INBOX")).glob("*.md"))) == 1
        marker.unlink()
        assert any(b"Subject: Meanwhile" in octets for octets in _wait_for(root, ADA, 2, home / "log"))


def _wait_until_offline(server: Served) -> None:
    for _ in range(100):
        with socket.create_connection(("127.0.0.1", server.ports["lmtp"])) as probe:
            if probe.recv(100).startswith(b"421"):
                return
        time.sleep(0.05)
    raise AssertionError("still online")
