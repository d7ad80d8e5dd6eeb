"""Whether two sets of rows are the same, without bringing them together.

Every row is hashed with a secret of the run, and the hashes are added up: equal sets give equal counts and sums in
whatever order and on whatever machine their rows were met, and who does not know the secret cannot make different sets
meet. So executors send back a few numbers for each piece of work, and only what differs has to be joined.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

DISK, TABLE, ODD = "disk", "table", "odd"
#: What is compared: messages by file digest, rows of the cache, links, folders by identity, mailboxes, blobs.
MESSAGE, CACHE, LINK, FOLDER, MAILBOX, BLOB = DOMAINS = ("message", "cache", "link", "folder", "mailbox", "blob")
_MODULUS = 1 << 128

#: (domain, side) -> count of rows and sum of their hashes
Sums = dict[tuple[str, str], tuple[int, int]]


class Tally:
    def __init__(self, secret: bytes) -> None:
        self._start = blake2b(digest_size=16, key=secret)
        self._sums: dict[tuple[str, str], list[int]] = {}

    def add(self, domain: str, side: str, *values: str) -> None:
        """One row; ``values`` hold no NUL, as no name of a file does."""
        whole = self._start.copy()
        whole.update("\0".join(values).encode("utf-8", "surrogatepass"))
        entry = self._sums.setdefault((domain, side), [0, 0])
        entry[0] += 1
        entry[1] += int.from_bytes(whole.digest(), "little")

    def odd(self, domain: str) -> None:
        """Something that is wrong by itself, whatever the other side says."""
        self._sums.setdefault((domain, ODD), [0, 0])[0] += 1

    def sums(self) -> Sums:
        return {key: (count, total % _MODULUS) for key, (count, total) in self._sums.items()}


def total(parts: Iterable[Sums]) -> Sums:
    whole: Sums = {}
    for part in parts:
        for key, (count, value) in part.items():
            before = whole.get(key, (0, 0))
            whole[key] = before[0] + count, (before[1] + value) % _MODULUS
    return whole


def differing(sums: Sums) -> set[str]:
    """The domains whose two sides are not the same, or that hold something odd."""
    return {
        domain
        for domain in DOMAINS
        if (domain, ODD) in sums or sums.get((domain, DISK), (0, 0)) != sums.get((domain, TABLE), (0, 0))
    }
