"""SORT: the order of messages by one or more criteria (RFC 5256 3, BASE.6.4.SORT; RFC 5957).

The value that a criterion compares is computed once per message, at delivery, by the functions below, and stored in a
column; a SORT is then one stable pass of the built-in sort per criterion.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from protocol.imap.search.collation import collation_key
from protocol.imap.search.subject import base_subject
from protocol.mime.addresses import Address
from protocol.mime.encoding import decode_words


class SortKey(Enum):
    """The criteria; the value is the protocol's name."""

    ARRIVAL = b"ARRIVAL"
    CC = b"CC"
    DATE = b"DATE"
    DISPLAYFROM = b"DISPLAYFROM"
    DISPLAYTO = b"DISPLAYTO"
    FROM = b"FROM"
    SIZE = b"SIZE"
    SUBJECT = b"SUBJECT"
    TO = b"TO"


class SortCriterion(NamedTuple):
    key: SortKey
    reverse: bool = False


class SortSource(Protocol):
    """The columns of a folder."""

    def sort_values(self, key: SortKey, uids: Sequence[int]) -> Sequence[int] | Sequence[str]:
        """Return one value per UID: numbers for ARRIVAL (internal date), DATE (sent date in UTC, or the internal
        date if there is none, RFC 5256 2.2) and SIZE; the strings of the functions below for all others."""


def sort_uids(criteria: Sequence[SortCriterion], uids: Sequence[int], source: SortSource) -> list[int]:
    """Sort ``uids`` (ascending) by the criteria.

    Equal messages stay in mailbox order, also under REVERSE, which reverses one criterion and not the implicit sequence
    number (RFC 5256 3): the built-in sort is stable in both directions.
    """
    order = list(range(len(uids)))
    for key, reverse in reversed(criteria):
        order.sort(key=source.sort_values(key, uids).__getitem__, reverse=reverse)
    return [uids[position] for position in order]


def subject_sort_value(subject: str | None) -> str:
    """Compute the value of SUBJECT: the base subject (RFC 5256 2.1), empty if there is none."""
    return collation_key(base_subject(subject or "").text)


def address_sort_value(addresses: Sequence[Address]) -> str:
    """Compute the value of FROM, TO or CC: addr-mailbox of the first address (RFC 5256 3)."""
    mailbox = addresses[0].mailbox if addresses else None
    return collation_key(decode_words(mailbox)) if mailbox else ""


def display_sort_value(addresses: Sequence[Address]) -> str:
    """Compute the value of DISPLAYFROM or DISPLAYTO: the first address as displayed by a client (RFC 5957 3)."""
    if not addresses:
        return ""
    name, _, mailbox, host = addresses[0]
    if name and (display_name := decode_words(name)):
        return collation_key(display_name)
    if mailbox is None:
        return ""
    return collation_key(decode_words(mailbox if host is None else mailbox + b"@" + host))
