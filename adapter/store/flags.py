"""Message flags as bits, and sets of UIDs as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import IntFlag


class Flag(IntFlag):
    """The store's flags. Archived follows the folder (``\\Archive``); the others are IMAP system flags."""

    READ = 1
    ANSWERED = 2
    STARRED = 4
    DELETED = 8
    DRAFT = 16
    ARCHIVED = 32


#: Flags that a client may set; archived is set by moving a message.
SETTABLE = int(Flag.READ | Flag.ANSWERED | Flag.STARRED | Flag.DELETED | Flag.DRAFT)
ALL_BITS = 63

#: An IMAP atom (RFC 3501 section 9) that is not a system flag.
KEYWORD = re.compile(r'[^\x00-\x20\x7f-\U0010ffff(){%*"\\\]]{1,64}\Z')


def valid_keywords(words: Iterable[str]) -> tuple[str, ...]:
    """Return the words that can be keywords."""
    return tuple(word for word in words if KEYWORD.match(word))


def join_keywords(keywords: Iterable[str]) -> str:
    """Keywords as one column: sorted, each once whatever its case, separated by a space."""
    unique = {keyword.casefold(): keyword for keyword in keywords}
    return " ".join(unique[key] for key in sorted(unique))


def flag_masks(how: str, flags: int) -> tuple[int, int]:
    """New flags are ``old & keep | give``. Archived cannot be set by a client: it follows the folder."""
    if how == "add":
        return ALL_BITS, flags
    if how == "remove":
        return ALL_BITS & ~flags, 0
    return int(Flag.ARCHIVED), flags


def change_keywords(old: str, how: str, keywords: Iterable[str]) -> str:
    """The column of keywords after adding, removing or setting some."""
    if how == "set":
        return join_keywords(keywords)
    if how == "add":
        return join_keywords([*keywords, *old.split()])
    removed = {keyword.casefold() for keyword in keywords}
    return join_keywords(keyword for keyword in old.split() if keyword.casefold() not in removed)


def format_uids(uids: Iterable[int]) -> str:
    """Ascending UIDs as an IMAP sequence set: ``1:5,9``."""
    out: list[str] = []
    for first, last in _runs(uids):
        out.append(str(first) if first == last else f"{first}:{last}")
    return ",".join(out)


def _runs(uids: Iterable[int]) -> Iterator[tuple[int, int]]:
    iterator = iter(uids)
    first = last = next(iterator, 0)
    if not first:
        return
    for uid in iterator:
        if uid == last + 1:
            last = uid
        else:
            yield first, last
            first = last = uid
    yield first, last


def parse_uids(text: str) -> list[tuple[int, int]]:
    """The inverse of :func:`format_uids`: ascending ranges."""
    ranges = []
    for item in text.split(","):
        if item:
            first, _, last = item.partition(":")
            ranges.append((int(first), int(last or first)))
    return ranges
