"""The PROXY protocol, versions 1 and 2: the client's address, sent by a load balancer before the client's own octets.

Invariants: at most 107 octets are held for version 1 and MAX_V2_BYTES for version 2; the result does not depend on how
the stream was cut; anything but a valid header raises ProtocolError, after which the connection must end.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from protocol.errors import ProtocolError

MAX_V1_BYTES = 107
MAX_V2_BYTES = 4096  # addresses take 216 octets at most, the rest is TLVs, which are skipped

_V1 = b"PROXY "
_V2 = b"\r\n\r\n\x00\r\nQUIT\n"
_V1_LINE = re.compile(rb"PROXY TCP([46]) ([0-9A-Fa-f.:]+) ([0-9A-Fa-f.:]+) (0|[1-9][0-9]{0,4}) (0|[1-9][0-9]{0,4})")
_V1_UNKNOWN = re.compile(rb"PROXY UNKNOWN(?: [ -~]*)?")


class Endpoint(NamedTuple):
    address: str
    port: int


class Proxied(NamedTuple):
    """Both None: a connection of the proxy itself, or not IP; use the address of the socket."""

    source: Endpoint | None
    destination: Endpoint | None


UNKNOWN = Proxied(None, None)


class ProxyReader:
    """Feed until it returns a result; ``leftover`` is the client's own input."""

    __slots__ = ("_buffer", "leftover")

    def __init__(self) -> None:
        self._buffer = b""
        self.leftover = b""

    def feed(self, data: bytes) -> Proxied | None:
        # The buffer is bounded, so joining it with each piece is cheap.
        buffer = self._buffer = self._buffer + data
        if buffer.startswith(_V1):
            return self._version1(buffer)
        if buffer.startswith(_V2):
            return self._version2(buffer)
        if _V1.startswith(buffer) or _V2.startswith(buffer):
            return None
        raise ProtocolError("no PROXY header")

    def _version1(self, buffer: bytes) -> Proxied | None:
        """Section 2.1: one line of text."""
        end = buffer.find(b"\r\n", 0, MAX_V1_BYTES)
        if end < 0:
            if len(buffer) >= MAX_V1_BYTES:
                raise ProtocolError("PROXY line too long")
            return None
        self.leftover = buffer[end + 2 :]
        line = buffer[:end]
        if _V1_UNKNOWN.fullmatch(line):
            return UNKNOWN
        match = _V1_LINE.fullmatch(line)
        if match is None:
            raise ProtocolError("bad PROXY line")
        version = int(match[1])
        try:
            source, destination = (ipaddress.ip_address(match[n].decode("ascii")) for n in (2, 3))
        except ValueError:
            raise ProtocolError("bad PROXY address") from None
        ports = int(match[4]), int(match[5])
        if source.version != version or destination.version != version or max(ports) > 65535:
            raise ProtocolError("bad PROXY address")
        return Proxied(Endpoint(str(source), ports[0]), Endpoint(str(destination), ports[1]))

    def _version2(self, buffer: bytes) -> Proxied | None:
        """Section 2.2: signature, version and command, family, length, addresses, TLVs."""
        if len(buffer) < 16:
            return None
        version, command = buffer[12] >> 4, buffer[12] & 15
        size = int.from_bytes(buffer[14:16], "big")
        if version != 2 or command > 1 or size > MAX_V2_BYTES:
            raise ProtocolError("bad PROXY header")
        if len(buffer) < 16 + size:
            return None
        self.leftover = buffer[16 + size :]
        if command == 0:  # LOCAL: a health check
            return UNKNOWN
        return _addresses(buffer[13], buffer[16 : 16 + size])


def _addresses(family: int, body: bytes) -> Proxied:
    """TCP over IPv4 or IPv6; all other families are valid but carry no usable address."""
    width = {0x11: 4, 0x21: 16}.get(family)
    if width is None:
        if family >> 4 > 3 or family & 15 > 2:
            raise ProtocolError("bad PROXY family")
        return UNKNOWN
    if len(body) < 2 * width + 4:
        raise ProtocolError("PROXY header too short")
    ends = []
    for number in (0, 1):
        address = ipaddress.ip_address(body[number * width : (number + 1) * width])
        port = int.from_bytes(body[2 * width + 2 * number :][:2], "big")
        ends.append(Endpoint(str(address), port))
    return Proxied(*ends)
