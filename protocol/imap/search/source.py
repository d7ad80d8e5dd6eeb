"""The interface that a search reads: the columns of a folder, and the text of its messages where needed.

A row is a position in ``uids``; all columns have one value per row. Text is folded (``collation.fold``) by the source,
which can store the result.
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
    """The result of a look-up in a text index; a message in neither set does not match."""

    certain: Container[int]  # UIDs that match
    possible: Container[int]  # UIDs of texts that must be read: a possible match, or not indexed yet


class SearchSource(Protocol):
    @property
    def uids(self) -> Sequence[int]:
        """Ascending."""

    def flags(self) -> Sequence[int]:
        """Masks of the folder's FlagTable."""

    def flag_bit(self, name: str) -> int:
        """FlagTable.bit()"""

    def internal_dates(self) -> Sequence[int]:
        """Seconds since 1970 of INTERNALDATE, in UTC."""

    def save_dates(self) -> Sequence[int] | None:
        """Seconds since 1970; None if the folder does not store save dates (RFC 8514 3)."""

    def sent_days(self) -> Sequence[int]:
        """``date.toordinal()`` of the Date header in its own time zone; 0 if there is none."""

    def sizes(self) -> Sequence[int]: ...

    def modseqs(self) -> Sequence[int]: ...

    def email_ids(self) -> Sequence[str]: ...

    def thread_ids(self) -> Sequence[str]: ...

    def headers(self, name: str, rows: Sequence[int]) -> Iterable[str | None]:
        """Decoded and folded value of a header field (``name`` in lower case) per row: repeated fields joined by
        line feeds, None if the message has no such field."""

    def bodies(self, rows: Sequence[int]) -> Iterable[str]:
        """Decoded and folded text of the body per row."""

    def texts(self, rows: Sequence[int]) -> Iterable[str]:
        """Decoded and folded header and body per row."""

    def candidates(self, scope: Scope, name: str, needle: str) -> Candidates | None:
        """Look a folded needle up in the index: in a header field ``name``, the body or both. None if the index
        cannot answer, and all rows have to be read."""
