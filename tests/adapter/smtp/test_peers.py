"""The client's address: PROXY protocol, XCLIENT, and the networks that may use LMTP."""

from __future__ import annotations

import logging
import socket
import struct
from pathlib import Path

import pytest

from adapter.config.schema import Limits, Lmtp, Settings, Smtp, Submission
from tests.support.certificates import make_certificate
from tests.support.messages import message
from tests.support.smtpd import make_store, serving, trusting
from tests.support.stores import ADA

V1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 25\r\n"
V2 = (
    b"\r\n\r\n\x00\r\nQUIT\n\x21\x11"
    + struct.pack("!H", 12 + 7)
    + socket.inet_aton("192.0.2.7")
    + socket.inet_aton("198.51.100.1")
    + struct.pack("!HH", 40000, 25)
    + b"\x04\x00\x04abcd"
)
LOOPBACK = ("127.0.0.0/8",)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_store(tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize("header", [V1, V2], ids=["v1", "v2"])
@pytest.mark.setting("smtp.proxy_from")
async def test_proxied_address_is_the_clients_address(root: Path, header: bytes) -> None:
    async with serving(root, Settings(smtp=Smtp(proxy_from=LOOPBACK))) as running:
        client = await running.connect(first=header)
        assert (await client.reply()).code == 220
        assert (await client.ask("EHLO c.test")).code == 250
        assert (await client.mail(message())).code == 250
        assert b"Received: from c.test (unknown [192.0.2.7])" in running.inbox()[0]


@pytest.mark.parametrize("header", [V1, V2], ids=["v1", "v2"])
@pytest.mark.setting("submission.proxy_from")
async def test_proxy_header_comes_before_implicit_tls(root: Path, tmp_path: Path, header: bytes) -> None:
    """The handshake may be in the same packet: none of its octets is consumed."""
    settings = Settings(tls=make_certificate(tmp_path), submission=Submission(proxy_from=LOOPBACK))
    async with serving(root, settings, ["submissions"]) as running:
        client = await running.connect("submissions", context=trusting(), first=header)
        assert (await client.reply()).code == 220
        assert (await client.ask("EHLO c.test")).code == 250


async def test_limits_apply_to_the_proxied_address(root: Path) -> None:
    settings = Settings(smtp=Smtp(proxy_from=LOOPBACK), limits=Limits(connections_per_ip=1))
    async with serving(root, settings) as running:
        first = await running.connect(first=V1)
        assert (await first.reply()).code == 220
        assert (await (await running.connect(first=V2)).reply()).code == 421
        other = await running.connect(first=V1.replace(b"192.0.2.7", b"192.0.2.8"))
        assert (await other.reply()).code == 220


@pytest.mark.parametrize("octets", [b"EHLO client.test\r\n", b"PROXY TCP4 bad\r\n", b"\r\n\r\n\x00\r\nQUIX\n1234"])
async def test_configured_proxy_without_a_header_is_refused(root: Path, octets: bytes) -> None:
    async with serving(root, Settings(smtp=Smtp(proxy_from=LOOPBACK))) as running:
        client = await running.connect(first=octets)
        assert (await client.reply()).code == 421


async def test_proxy_header_of_another_peer_is_refused(root: Path) -> None:
    async with serving(root) as running:
        client = await running.connect(first=V1)
        assert (await client.reply()).code == 220
        assert (await client.reply()).code == 500


async def test_health_check_of_a_proxy_uses_the_socket_address(root: Path) -> None:
    async with serving(root, Settings(smtp=Smtp(proxy_from=LOOPBACK))) as running:
        client = await running.connect(first=b"PROXY UNKNOWN\r\n")
        assert (await client.reply()).code == 220


@pytest.mark.setting("lmtp.xclient_from")
async def test_trusted_peer_may_use_xclient_on_lmtp(root: Path) -> None:
    async with serving(root, Settings(lmtp=Lmtp(xclient_from=LOOPBACK))) as running:
        client = await running.connect("lmtp")
        await client.reply()
        offered = (await client.ask("LHLO proxy.test")).text
        assert "XCLIENT NAME ADDR" in offered
        assert "LOGIN" not in offered  # a login elsewhere is never accepted
        assert (await client.ask("XCLIENT ADDR=2001:db8::7 HELO=real.test BOGUS=1")).code == 501
        assert (await client.ask("XCLIENT ADDR=IPV6:2001:db8::7 HELO=real.test NAME=[UNAVAILABLE]")).code == 220
        assert (await client.ask(f"RCPT TO:<{ADA}>")).code == 503
        assert (await client.ask("LHLO proxy.test")).code == 250
        assert (await client.mail(message())).code == 250
        assert b"Received: from real.test (unknown [IPv6:2001:db8::7])" in running.inbox()[0]
        assert (await client.ask("XCLIENT ADDR=192.0.2.7 HELO=real.test NAME=host.real.test")).code == 220
        assert (await client.ask("LHLO proxy.test")).code == 250
        assert (await client.mail(message())).code == 250
        assert b"Received: from real.test (host.real.test [192.0.2.7])" in running.inbox()[1]
        assert (await client.ask("MAIL FROM:<x@y.test>")).code == 250
        assert (await client.ask("XCLIENT ADDR=192.0.2.1")).code == 503


async def test_xclient_of_another_peer_is_refused(root: Path) -> None:
    async with serving(root, Settings(lmtp=Lmtp(xclient_from=("192.0.2.0/24",)))) as running:
        for kind in ("smtp", "submission", "lmtp"):
            client = await running.hello(kind)
            assert (await client.ask("XCLIENT ADDR=192.0.2.1")).code == 500


@pytest.mark.setting("submission.xclient_from")
async def test_proxy_may_use_xclient_on_submission(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Log lines and limits are the new client's, and the login before XCLIENT is dropped."""
    caplog.set_level(logging.INFO)
    settings = Settings(submission=Submission(xclient_from=LOOPBACK), limits=Limits(connections_per_ip=1))
    async with serving(root, settings) as running:
        client = await running.hello("submission")
        assert (await client.login()).code == 235
        assert (await client.ask("XCLIENT ADDR=192.0.2.7 PROTO=ESMTP")).code == 220
        assert (await client.ask("EHLO c.test")).code == 250
        assert (await client.ask(f"MAIL FROM:<{ADA}>")).code == 530
        assert (await client.login()).code == 235  # in the clear: the connection itself is from loopback
        assert (await client.ask(f"MAIL FROM:<{ADA}>")).code == 250
        assert f" 192.0.2.7 logged in as {ADA}" in caplog.text
        second = await running.hello("submission")
        assert (await second.ask("XCLIENT ADDR=192.0.2.7")).code == 421
        third = await running.hello("submission")
        assert (await third.ask("XCLIENT ADDR=192.0.2.8")).code == 220


@pytest.mark.setting("lmtp.trusted")
async def test_lmtp_refuses_untrusted_peers(root: Path) -> None:
    async with serving(root, Settings(lmtp=Lmtp(trusted=("192.0.2.0/24",)))) as running:
        client = await running.connect("lmtp")
        reply = await client.reply()
        assert (reply.code, reply.enhanced) == (521, "5.7.1")
        assert await client.ended()


async def test_http_request_closes_the_connection(root: Path) -> None:
    async with serving(root) as running:
        client = await running.connect()
        await client.reply()
        client.send(b"POST / HTTP/1.1\r\nHost: mx\r\n\r\nMAIL FROM:<x@y.test>\r\n")
        assert (await client.reply()).code == 421
        assert await client.ended()
