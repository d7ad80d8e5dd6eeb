"""Multiset hash: compare two sets of rows without bringing them together.

Each row is hashed with a secret key of the run, and the hashes are added up. Equal sets give equal counts and sums, in
any order and on any machine; without the key, different sets with equal sums cannot be constructed. Executors
therefore return a few numbers for each partition, and only the domains that differ have to be joined.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

DISK, TABLE, ANOMALY = "disk", "table", "anomaly"
#: The domains: messages by file digest, cache rows, links, folders by identity, mailboxes, blobs.
MESSAGE, CACHE, LINK, FOLDER, MAILBOX, BLOB = DOMAINS = ("message", "cache", "link", "folder", "mailbox", "blob")
_MODULUS = 1 << 128

#: (domain, side) -> count of rows and sum of their hashes
Sums = dict[tuple[str, str], tuple[int, int]]


class SetHash:
    """The running sums of one partition, for each domain and side."""

    def __init__(self, secret: bytes) -> None:
        self._start = blake2b(digest_size=16, key=secret)
        self._sums: dict[tuple[str, str], list[int]] = {}

    def add(self, domain: str, side: str, *values: str) -> None:
        """Add one row. ``values`` must not contain NUL; file names never do."""
        hasher = self._start.copy()
        hasher.update("\0".join(values).encode("utf-8", "surrogatepass"))
        entry = self._sums.setdefault((domain, side), [0, 0])
        entry[0] += 1
        entry[1] += int.from_bytes(hasher.digest(), "little")

    def mark_anomaly(self, domain: str) -> None:
        """Count an entry that is wrong by itself, so that its domain is joined whatever the other side contains."""
        self._sums.setdefault((domain, ANOMALY), [0, 0])[0] += 1

    def sums(self) -> Sums:
        return {key: (count, total % _MODULUS) for key, (count, total) in self._sums.items()}


def merge_sums(parts: Iterable[Sums]) -> Sums:
    """Add up the sums of all partitions."""
    merged: Sums = {}
    for part in parts:
        for key, (count, value) in part.items():
            before = merged.get(key, (0, 0))
            merged[key] = before[0] + count, (before[1] + value) % _MODULUS
    return merged


def differing_domains(sums: Sums) -> set[str]:
    """The domains with different sides, or with an anomaly."""
    return {
        domain
        for domain in DOMAINS
        if (domain, ANOMALY) in sums or sums.get((domain, DISK), (0, 0)) != sums.get((domain, TABLE), (0, 0))
    }
