r"""Search criteria as data: built by the parser, compiled by :mod:`protocol.imap.search.program`.

Every node is an immutable value. Text is decoded from the command's CHARSET (RFC 3501 6.4.4), names of header fields
and flags are case-insensitive, and both spellings of a key (``SEEN``, ``UNSEEN``) are one node, with or without
:class:`Not` around it:

===============================  ==========================================================================
``ALL``                          ``All()``
``SEEN`` / ``UNSEEN`` …          ``FlagKey("\\Seen")`` / ``Not(FlagKey("\\Seen"))``
``RECENT`` / ``OLD``             ``FlagKey("\\Recent")`` / ``Not(FlagKey("\\Recent"))``
``NEW``                          ``And((FlagKey("\\Recent"), Not(FlagKey("\\Seen"))))``
``KEYWORD x`` / ``UNKEYWORD x``  ``KeywordKey("x")`` / ``Not(KeywordKey("x"))``
``a b c`` / ``(a b c)``          ``And((a, b, c))``
``BEFORE`` / ``SENTON`` …        ``DateKey(DateField.INTERNAL | SENT, When.BEFORE | ON | SINCE, date)``
``SAVEDBEFORE`` …                ``SavedKey(When.BEFORE, date)`` …
``FROM`` ``TO`` ``SUBJECT`` …    ``HeaderKey("from", text)`` …; ``HEADER name text`` likewise
``1:5,*`` / ``UID 1:5,*``        ``SeqKey(((1, 5), (STAR, STAR)))`` / ``UidKey(…)``
``$`` / ``UID $``                ``ResultKey()``
===============================  ==========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import TypeAlias

from protocol.imap.sequence_set import Ranges


class DateField(Enum):
    """The date that a :class:`DateKey` compares (RFC 3501 6.4.4)."""

    INTERNAL = "internal"
    SENT = "sent"


class When(Enum):
    """The comparison of a message's date with the key's, without time and timezone (RFC 3501 6.4.4)."""

    BEFORE = "before"
    ON = "on"
    SINCE = "since"


class SizeIs(Enum):
    LARGER = "larger"
    SMALLER = "smaller"


class Age(Enum):
    OLDER = "older"
    YOUNGER = "younger"


@dataclass(frozen=True, slots=True)
class All:
    """ALL (RFC 3501 6.4.4)."""


@dataclass(frozen=True, slots=True)
class And:
    """Juxtaposed keys or a parenthesised list (RFC 3501 6.4.4); an empty one matches everything."""

    keys: tuple[SearchKey, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """OR (RFC 3501 6.4.4)."""

    left: SearchKey
    right: SearchKey


@dataclass(frozen=True, slots=True)
class Not:
    """NOT, and the UN… spelling of a key (RFC 3501 6.4.4)."""

    key: SearchKey


@dataclass(frozen=True, slots=True)
class FlagKey:
    r"""A system flag, spelled with its backslash: ``\Seen`` (RFC 3501 6.4.4). ``\Recent`` is the session's own."""

    name: str


@dataclass(frozen=True, slots=True)
class KeywordKey:
    """KEYWORD (RFC 3501 6.4.4)."""

    name: str


@dataclass(frozen=True, slots=True)
class DateKey:
    """BEFORE ON SINCE and SENTBEFORE SENTON SENTSINCE (RFC 3501 6.4.4)."""

    field: DateField
    when: When
    date: date


@dataclass(frozen=True, slots=True)
class SavedKey:
    """SAVEDBEFORE SAVEDON SAVEDSINCE (RFC 8514 4.3)."""

    when: When
    date: date


@dataclass(frozen=True, slots=True)
class SaveDateSupported:
    """SAVEDATESUPPORTED (RFC 8514 4.3): all messages of a folder that stores save dates, else none."""


@dataclass(frozen=True, slots=True)
class SizeKey:
    """LARGER and SMALLER, both strict (RFC 3501 6.4.4)."""

    size_is: SizeIs
    octets: int


@dataclass(frozen=True, slots=True)
class HeaderKey:
    """HEADER, FROM, TO, CC, BCC, SUBJECT (RFC 3501 6.4.4): an empty text matches every message with the field."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class BodyKey:
    """BODY (RFC 3501 6.4.4)."""

    text: str


@dataclass(frozen=True, slots=True)
class TextKey:
    """TEXT: header or body (RFC 3501 6.4.4)."""

    text: str


@dataclass(frozen=True, slots=True)
class SeqKey:
    """A sequence set of message numbers (RFC 3501 6.4.4)."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class UidKey:
    """UID (RFC 3501 6.4.4)."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class ResultKey:
    """``$``: the saved search result (RFC 5182 2.1, RFC 9051 6.4.4.1)."""


@dataclass(frozen=True, slots=True)
class ModSeqKey:
    """MODSEQ (RFC 7162 3.1.5): a mod-sequence of at least this value.

    The parser validates and drops entry name and type: one mod-sequence covers all metadata of a message.
    """

    modseq: int


@dataclass(frozen=True, slots=True)
class Within:
    """OLDER and YOUNGER (RFC 5032 2)."""

    age: Age
    seconds: int


@dataclass(frozen=True, slots=True)
class EmailId:
    """EMAILID (RFC 8474 6)."""

    id: str


@dataclass(frozen=True, slots=True)
class ThreadId:
    """THREADID (RFC 8474 6)."""

    id: str


SearchKey: TypeAlias = (
    All
    | And
    | Or
    | Not
    | FlagKey
    | KeywordKey
    | DateKey
    | SavedKey
    | SaveDateSupported
    | SizeKey
    | HeaderKey
    | BodyKey
    | TextKey
    | SeqKey
    | UidKey
    | ResultKey
    | ModSeqKey
    | Within
    | EmailId
    | ThreadId
)
