from __future__ import annotations

import ipaddress

import pytest

from protocol.errors import ProtocolError
from protocol.smtp.proxy_protocol import MAX_V1_BYTES, UNKNOWN, Endpoint, Proxied, ProxyReader
from protocol.smtp.replies import SmtpError
from protocol.smtp.xclient import ClientOverride, parse_xclient

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
V4 = Proxied(Endpoint("192.0.2.1", 40000), Endpoint("198.51.100.2", 25))
V6 = Proxied(Endpoint("2001:db8::1", 40000), Endpoint("2001:db8::2", 25))


def version2(family: int, body: bytes, command: int = 0x21) -> bytes:
    return SIGNATURE + bytes((command, family)) + len(body).to_bytes(2, "big") + body


def pack(pair: Proxied) -> bytes:
    assert pair.source is not None
    assert pair.destination is not None
    ends = (pair.source, pair.destination)
    packed = b"".join(ipaddress.ip_address(end.address).packed for end in ends)
    return packed + b"".join(end.port.to_bytes(2, "big") for end in ends)


GOOD = [
    (b"PROXY TCP4 192.0.2.1 198.51.100.2 40000 25\r\n", V4),
    (b"PROXY TCP6 2001:db8::1 2001:DB8:0::2 40000 25\r\n", V6),
    (b"PROXY UNKNOWN\r\n", UNKNOWN),
    (b"PROXY UNKNOWN ffff:: ffff:: 1 2\r\n", UNKNOWN),
    (version2(0x11, pack(V4)), V4),
    (version2(0x21, pack(V6)), V6),
    (version2(0x11, pack(V4) + b"\x04\x00\x02ab\x20\x00\x01x"), V4),
    (version2(0x00, b""), UNKNOWN),
    (version2(0x12, pack(V4)), UNKNOWN),
    (version2(0x31, b"\0" * 216), UNKNOWN),
    (version2(0x11, b"", command=0x20), UNKNOWN),
    (version2(0x11, pack(V4), command=0x20), UNKNOWN),
]


@pytest.mark.parametrize(("header", "result"), GOOD)
def test_valid_header_gives_the_addresses(header: bytes, result: Proxied) -> None:
    reader = ProxyReader()
    assert reader.feed(header + b"EHLO x\r\n") == result
    assert reader.leftover == b"EHLO x\r\n"
    reader = ProxyReader()
    for at in range(len(header) - 1):
        assert reader.feed(header[at : at + 1]) is None
    assert reader.feed(header[-1:]) == result
    assert reader.leftover == b""


@pytest.mark.parametrize(
    "header",
    [
        b"EHLO x\r\n",
        b"PROXZ",
        b"\r\n\r\nX",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 40000\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 40000 70000\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 040 25\r\n",
        b"PROXY TCP4 192.0.2.999 198.51.100.2 40000 25\r\n",
        b"PROXY TCP4 2001:db8::1 2001:db8::2 40000 25\r\n",
        b"PROXY TCP6 192.0.2.1 198.51.100.2 40000 25\r\n",
        b"PROXY TCP4  192.0.2.1 198.51.100.2 40000 25\r\n",
        b"PROXY UDP4 192.0.2.1 198.51.100.2 40000 25\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 40000 25\nEHLO x\r\n",
        b"PROXY " + b"x" * MAX_V1_BYTES,
        version2(0x11, pack(V4)[:-1]),
        version2(0x11, pack(V4), command=0x11),
        version2(0x11, pack(V4), command=0x22),
        version2(0x41, b""),
        version2(0x13, b""),
        version2(0x11, b"\0" * 5000),
    ],
)
def test_invalid_header_is_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        ProxyReader().feed(header)


def test_xclient_attributes() -> None:
    assert parse_xclient(
        b"NAME=mx+2Eexample.test ADDR=IPV6:2001:db8::1 PORT=40000 PROTO=esmtp HELO=h LOGIN=ada DESTADDR=192.0.2.1 "
        b"DESTPORT=24"
    ) == ClientOverride("mx.example.test", "2001:db8::1", 40000, "ESMTP", "h", "ada", "192.0.2.1", 24)
    assert parse_xclient(b"name=[UNAVAILABLE] ADDR=192.0.2.1 LOGIN=[tempunavail]") == ClientOverride(
        address="192.0.2.1"
    )


@pytest.mark.parametrize(
    "argument",
    [
        b"",
        b"NAME",
        b"FOO=x",
        b"ADDR=999.1.1.1",
        b"ADDR=fe80::1%eth0",
        b"ADDR=[192.0.2.1]",
        b"PORT=x",
        b"PORT=70000",
        b"PROTO=HTTP",
        b"HELO=a+0D+0Ab",
        b"HELO=+FF",
        b"HELO=a HELO=b",
        b"HELO=" + b"x" * 256,
        b"HELO=a=b",
    ],
)
def test_invalid_xclient_is_refused(argument: bytes) -> None:
    with pytest.raises(SmtpError):
        parse_xclient(argument)
