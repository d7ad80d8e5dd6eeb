"""Peers and the networks they belong to.

A peer is an IP address, or the unix socket for those that have none. Networks come from the settings as text; an IPv4
address that arrives mapped into IPv6 is the IPv4 address.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Iterable
from typing import NamedTuple

from adapter.config.loader import ConfigError

UNIX = "unix"

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Peer(NamedTuple):
    """Who is at the other end of a session; its text stands at the beginning of every log line."""

    session: str
    address: str
    user: str = ""  # who logged in

    def __str__(self) -> str:
        return f"{self.session} {self.address} {self.user}" if self.user else f"{self.session} {self.address}"


@functools.lru_cache(4096)
def _address(peer: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def canonical(peer: str) -> str:
    """The one spelling of a peer's address."""
    address = _address(peer)
    return peer if address is None else str(address)


def is_loopback(peer: str) -> bool:
    address = _address(peer)
    return peer == UNIX or (address is not None and address.is_loopback)


def group(peer: str) -> str:
    """What is counted as one peer: an IPv4 address, an IPv6 network of the size one customer gets."""
    address = _address(peer)
    if isinstance(address, ipaddress.IPv6Address) and not address.is_loopback:
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return peer if address is None else str(address)


class Networks:
    """A set of networks, ``unix`` possibly among them. Raises ConfigError."""

    __slots__ = ("_networks", "_unix")

    def __init__(self, texts: Iterable[str]) -> None:
        self._networks: list[_Network] = []
        self._unix = False
        for text in texts:
            if text == UNIX:
                self._unix = True
                continue
            try:
                self._networks.append(ipaddress.ip_network(text, strict=False))
            except ValueError:
                raise ConfigError(f"{text!r} is neither a network nor {UNIX!r}") from None

    def __contains__(self, peer: str) -> bool:
        if peer == UNIX:
            return self._unix
        address = _address(peer)
        return address is not None and any(address in network for network in self._networks)
