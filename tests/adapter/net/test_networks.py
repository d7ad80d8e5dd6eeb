"""Networks, peer groups and endpoints."""

from __future__ import annotations

import pytest

from adapter.net import endpoints, networks
from adapter.net.networks import Networks


def test_network_contains_its_peers_and_groups_ipv6_by_64_bits() -> None:
    some = Networks(["127.0.0.0/8", "2001:db8::/32", "unix"])
    for inside in ("127.0.0.1", "2001:db8::1", "unix", "::ffff:127.0.0.1"):
        assert inside in some
    for outside in ("192.0.2.1", "::1", "", "nonsense"):
        assert outside not in some
    with pytest.raises(ValueError, match="neither a network nor"):
        Networks(["localhost"])
    assert networks.group("2001:db8::1") == networks.group("2001:db8::ffff") != networks.group("2001:db9::1")
    assert networks.group("192.0.2.1") != networks.group("192.0.2.2")


def test_endpoint_is_host_and_port_or_path() -> None:
    assert str(endpoints.parse("smtp", "127.0.0.1:25")) == "127.0.0.1:25"
    assert str(endpoints.parse("smtp", "[::1]:25")) == "[::1]:25"
    assert endpoints.parse("lmtp", "/run/lmtp").path == endpoints.parse("lmtp", "unix:/run/lmtp").path == "/run/lmtp"
    for bad in ("25", "host", "host:port", "host:70000", ":25", ""):
        with pytest.raises(ValueError, match="neither host:port nor"):
            endpoints.parse("smtp", bad)
