"""What one message may be. Connection limits (rates, timeouts) belong to the servers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    message_size: int = 50 << 20  # octets after dot-unstuffing, as RFC 1870 section 5 counts them
    header_size: int = 256 << 10  # octets of the top header block, which is held in memory
    hops: int = 100  # RFC 5321 6.3: at least 100 Received fields
    recipients: int = 1000  # per transaction; RFC 5321 4.5.3.1.8: at least 100
