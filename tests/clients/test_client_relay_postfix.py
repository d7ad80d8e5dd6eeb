"""A real Postfix as smarthost, with smtp-sink as the rest of the world behind it.

Postfix is a private instance: its configuration, queue and log lie in a directory of the test. It must be started by
root, as everywhere; smtp-sink then runs as Postfix's own user.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adapter.config import Seconds
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from adapter.upstream.settings import RelaySettings
from protocol.smtp.params import Body
from tests.support.layers import assert_layers_agree
from tests.support.messages import message
from tests.support.relays import DAVE, ERIN, inbox, queue, read_report, relaying, send
from tests.support.stores import ADA, new_store
from tests.support.waiting import until

pytestmark = [
    pytest.mark.needs("postfix", "smtp-sink", "openssl"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Postfix must be started by root"),
]

MASTER = """
127.0.0.1:{port} inet n - n - - smtpd
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
verify unix - - n - 1 verify
proxymap unix - - n - - proxymap
smtp unix - - n - - smtp
relay unix - - n - - smtp
error unix - - n - - error
retry unix - - n - - error
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
tlsmgr unix - - n 1000? 1 tlsmgr
postlog unix-dgram n - n - 1 postlogd
"""
MAIN = """
compatibility_level = 3.6
queue_directory = {home}/queue
data_directory = {home}/data
maillog_file = {home}/log
maillog_file_prefixes = {home}
myhostname = smarthost.test
mydestination =
alias_maps =
alias_database =
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
mynetworks = 127.0.0.0/8
relayhost = [127.0.0.1]:{sink}
smtpd_relay_restrictions = permit_mynetworks, reject
smtpd_recipient_restrictions = check_recipient_access inline:{{
  {{ nobody@far.test = 550 5.1.1 No such user }}, {{ busy@far.test = 450 4.2.1 Come back later }} }}
smtpd_tls_cert_file = {home}/certificate
smtpd_tls_key_file = {home}/key
smtpd_tls_security_level = may
smtpd_client_message_rate_limit = 0
message_size_limit = 10000000
smtputf8_enable = yes
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def wait_for_port(port: int, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@dataclass
class Smarthost:
    home: Path
    port: int

    def control(self, command: str) -> None:
        done = subprocess.run(["postfix", "-c", self.home / "conf", command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def arrived(self) -> list[tuple[str, bytes]]:
        """(envelope, octets) of all mail behind the smarthost, as the sink got it."""
        found = []
        for path in sorted((self.home / "sink").iterdir()):
            head, _, rest = path.read_bytes().partition(b"\nReceived: from ")
            found.append((head.decode(), b"Received: from " + rest))
        return found

    async def wait_for(self, count: int) -> list[tuple[str, bytes]]:
        """The dump of a message grows while it comes: wait for its end."""
        await until(lambda: len(self.arrived()) >= count)
        await asyncio.sleep(0.3)
        return self.arrived()


@contextmanager
def running_postfix(home: Path) -> Iterator[Smarthost]:
    port, sink = free_port(), free_port()
    for name in ("conf", "queue", "data", "sink"):
        (home / name).mkdir()
    for name in ("data", "sink"):
        shutil.chown(home / name, "postfix", "postfix")
    (home / "conf" / "main.cf").write_text(MAIN.format(home=home, sink=sink))
    (home / "conf" / "master.cf").write_text(MASTER.format(port=port))
    subject = "-subj /CN=localhost -addext subjectAltName=DNS:localhost -days 2"
    files = f"-keyout {home}/key -out {home}/certificate"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *files.split(), *subject.split()],
        check=True,
        capture_output=True,
    )
    behind = subprocess.Popen(
        ["smtp-sink", "-u", "postfix", "-d", f"{home}/sink/%H%M%S.", f"127.0.0.1:{sink}", "50"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    smarthost = Smarthost(home, port)
    try:
        wait_for_port(sink)
        for probe in (home / "sink").iterdir():
            probe.unlink()
        smarthost.control("start")
        wait_for_port(port)
        yield smarthost
    finally:
        subprocess.run(["postfix", "-c", home / "conf", "stop"], capture_output=True, check=False)
        behind.kill()
        behind.wait()


@pytest.fixture(scope="module")
def postfix() -> Iterator[Smarthost]:
    home = Path(tempfile.mkdtemp(prefix="markpost-postfix-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    home.chmod(0o755)
    try:
        with running_postfix(home) as smarthost:
            yield smarthost
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def clean(postfix: Smarthost) -> Smarthost:
    """Nothing has arrived yet."""
    for path in (postfix.home / "sink").iterdir():
        path.unlink()
    return postfix


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Transport]:
    with new_store(tmp_path / "store", ADA) as opened:
        yield opened
    assert_layers_agree(tmp_path / "store", tmp_path / "scratch")


def through(postfix: Smarthost, **others: Any) -> RelaySettings:
    wanted = {"host": "127.0.0.1", "port": postfix.port, "tls": "none", "helo": "markpost.test", **others}
    return RelaySettings(**wanted)


LETTERS = {
    "plain": message(body="Hello.\r\n", message_id="<1@example.test>"),
    "dots": message(body=".\r\n..\r\n.hidden\r\n", message_id="<2@example.test>"),
    "eight bit": message(body="Grüße\r\n", message_id="<3@example.test>"),
    "attachment": message(attachments=[bytes(range(256)) * 2000], message_id="<4@example.test>"),
}


async def test_mail_arrives_behind_the_smarthost_as_it_is_stored(clean: Smarthost, transport: Transport) -> None:
    async with relaying(transport, through(clean)):
        for octets in LETTERS.values():
            send(transport, DAVE, ERIN, octets=octets, envelope=op.RelayEnvelope(body=Body.EIGHT_BIT))
        await until(lambda: not queue(transport))
        arrived = await clean.wait_for(len(LETTERS))
    assert len(arrived) == len(LETTERS)
    for octets in LETTERS.values():
        stored = octets.replace(b"\r\n", b"\n")  # as smtp-sink writes it
        assert [found for _, found in arrived if found.rstrip().endswith(stored.rstrip())]
    assert all(DAVE in envelope and ERIN in envelope for envelope, _ in arrived)
    assert inbox(transport) == []


async def test_starttls_to_postfix(clean: Smarthost, transport: Transport) -> None:
    chosen = through(clean, host="localhost", tls="starttls", ca_file=str(clean.home / "certificate"))
    async with relaying(transport, chosen):
        send(transport)
        [(_, octets)] = await clean.wait_for(1)
    assert b"using TLSv1.3" in octets or b"with ESMTPS" in octets


async def test_each_recipient_of_postfix_has_its_own_fate(clean: Smarthost, transport: Transport) -> None:
    async with relaying(transport, through(clean)):
        send(transport, DAVE, "nobody@far.test", "busy@far.test")
        [(envelope, _)] = await clean.wait_for(1)
        await until(lambda: len(inbox(transport)) == 1)
        await until(lambda: [row.attempts for row in queue(transport)] == [1])
    assert DAVE in envelope
    [left] = queue(transport)
    assert left.recipient == "busy@far.test"
    assert "Come back later" in left.last_status
    told = read_report(inbox(transport)[0]).recipients
    assert told.keys() == {"nobody@far.test"}
    assert "No such user" in told["nobody@far.test"]["Diagnostic-Code"]


async def test_delivery_report_wishes_go_all_the_way(clean: Smarthost, transport: Transport) -> None:
    """Postfix and the sink both offer DSN: whoever is last will tell."""
    async with relaying(transport, through(clean)):
        wish = op.RelayRecipient(DAVE, frozenset({"SUCCESS"}), "rfc822;first.name@far.test")
        send(transport, wish, envelope=op.RelayEnvelope(envid="Q=1"))
        [(envelope, _)] = await clean.wait_for(1)
        await until(lambda: not queue(transport))
    assert "NOTIFY=SUCCESS" in envelope
    assert "ORCPT=rfc822;first.name@far.test" in envelope
    assert "ENVID=Q+3D1" in envelope
    assert inbox(transport) == []


async def test_too_large_for_postfix(clean: Smarthost, transport: Transport) -> None:
    async with relaying(transport, through(clean)):
        send(transport, octets=message(body="0123456789\r\n" * 1_000_000))
        await until(lambda: len(inbox(transport)) == 1)
    assert read_report(inbox(transport)[0]).recipients[DAVE]["Status"] == "5.3.4"
    assert queue(transport) == []


async def test_mail_waits_while_postfix_is_down(clean: Smarthost, transport: Transport) -> None:
    impatient = through(clean, first_retry=Seconds(0.1), longest_retry=Seconds(1.0))
    await asyncio.to_thread(clean.control, "stop")
    async with relaying(transport, impatient):
        send(transport)
        await until(lambda: all(row.attempts for row in queue(transport)))
        refused = queue(transport)[0].last_status
        await asyncio.to_thread(clean.control, "start")
        await clean.wait_for(1)
        await until(lambda: not queue(transport))
    assert refused.startswith("451 4.4.1 cannot connect")
