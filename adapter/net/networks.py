"""Peer addresses, and the networks they belong to.

A peer is named by its IP address, or ``unix`` if it is connected by a Unix socket. Networks come from the settings as
text; an IPv4 address mapped into IPv6 is treated as the IPv4 address.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Iterable

UNIX = "unix"

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


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
    """Normalise the spelling of a peer's address."""
    address = _address(peer)
    return peer if address is None else str(address)


def is_loopback(peer: str) -> bool:
    address = _address(peer)
    return peer == UNIX or (address is not None and address.is_loopback)


def group(peer: str) -> str:
    """Return the unit that limits count as one peer: an IPv4 address, or an IPv6 /64, the size one customer gets."""
    address = _address(peer)
    if isinstance(address, ipaddress.IPv6Address) and not address.is_loopback:
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return peer if address is None else str(address)


class Networks:
    """A set of networks, which may contain ``unix``. Raises ValueError."""

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
                raise ValueError(f"{text!r} is neither a network nor {UNIX!r}") from None

    def __contains__(self, peer: str) -> bool:
        if peer == UNIX:
            return self._unix
        address = _address(peer)
        return address is not None and any(address in network for network in self._networks)
