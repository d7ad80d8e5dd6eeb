"""What a search reads: the columns of a folder, and the text of its messages when it must.

A row is a position in ``uids``; all columns have one value per row. Text is folded (``collation.fold``), so
that it can be computed once and searched often.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol


class Scope(Enum):
    HEADER = 1
    BODY = 2
    TEXT = 3


class Candidates(NamedTuple):
    """What an index of texts knows of a needle; a message in neither set does not have it."""

    certain: Container[int]  # UIDs that match
    possible: Container[int]  # UIDs to be read: perhaps a match, or not indexed yet


class SearchSource(Protocol):
    @property
    def uids(self) -> Sequence[int]:
        """Ascending."""

    def flags(self) -> Sequence[int]:
        """Masks of the folder's FlagTable."""

    def flag_bit(self, name: str) -> int:
        """FlagTable.bit()"""

    def internal_dates(self) -> Sequence[int]:
        """Seconds since 1970, as INTERNALDATE shows them: in UTC."""

    def save_dates(self) -> Sequence[int] | None:
        """Seconds since 1970; None if the folder does not keep them (RFC 8514 3)."""

    def sent_days(self) -> Sequence[int]:
        """``date.toordinal()`` of the Date header as it is written, whatever its zone; 0 if there is none."""

    def sizes(self) -> Sequence[int]: ...

    def modseqs(self) -> Sequence[int]: ...

    def email_ids(self) -> Sequence[str]: ...

    def thread_ids(self) -> Sequence[str]: ...

    def headers(self, name: str, rows: Sequence[int]) -> Iterable[str | None]:
        """Decoded and folded value of a header field (lower case) per row: several joined with a line feed, None
        if the message has no such field."""

    def bodies(self, rows: Sequence[int]) -> Iterable[str]:
        """Decoded and folded text of the body per row."""

    def texts(self, rows: Sequence[int]) -> Iterable[str]:
        """Decoded and folded header and body per row."""

    def candidates(self, scope: Scope, name: str, needle: str) -> Candidates | None:
        """What the index says of a folded needle, in a header field called ``name`` or elsewhere; None if it
        cannot tell and all rows have to be read."""
