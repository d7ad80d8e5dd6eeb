"""Parsers of the search keys that do not nest (RFC 3501 6.4.4; RFC 5032, RFC 7162, RFC 8474, RFC 8514, RFC 9738)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from protocol.imap.search.keys import (
    Age,
    All,
    And,
    BodyKey,
    DateField,
    DateKey,
    EmailId,
    FlagKey,
    HeaderKey,
    KeywordKey,
    ModSeqKey,
    Not,
    ResultKey,
    SaveDateSupported,
    SavedKey,
    SearchKey,
    SeqKey,
    SizeIs,
    SizeKey,
    TextKey,
    ThreadId,
    UidKey,
    When,
    Within,
)
from protocol.imap.sequence_set import LARGEST
from protocol.imap.wire.lexer import CommandError, Lexer

_SET_START = re.compile(rb"(?=[0-9*$])")
_OBJECT_ID = re.compile(rb"[A-Za-z0-9_-]{1,255}")

_RECENT: Final = FlagKey("\\Recent")
_SEEN: Final = FlagKey("\\Seen")

# RFC 3501 6.4.4; RFC 8514 4.3
#: Keys without an argument.
KEYS: Final[Mapping[str, SearchKey]] = {
    "ALL": All(),
    "ANSWERED": FlagKey("\\Answered"),
    "DELETED": FlagKey("\\Deleted"),
    "DRAFT": FlagKey("\\Draft"),
    "FLAGGED": FlagKey("\\Flagged"),
    "NEW": And((_RECENT, Not(_SEEN))),
    "OLD": Not(_RECENT),
    "RECENT": _RECENT,
    "SAVEDATESUPPORTED": SaveDateSupported(),
    "SEEN": _SEEN,
    "UNANSWERED": Not(FlagKey("\\Answered")),
    "UNDELETED": Not(FlagKey("\\Deleted")),
    "UNDRAFT": Not(FlagKey("\\Draft")),
    "UNFLAGGED": Not(FlagKey("\\Flagged")),
    "UNSEEN": Not(_SEEN),
}


# RFC 3501 6.4.4 sequence-set; RFC 5182 2.1 "$"
def sequence_key(lexer: Lexer) -> SearchKey | None:
    """Parse a set of message numbers; None if something else is next."""
    if not lexer.next_matches(_SET_START):
        return None
    messages = lexer.sequence_set()
    if messages.saved:
        return ResultKey()
    if lexer.dialect.uid_only:
        raise CommandError("Message numbers cannot be used", code="UIDREQUIRED")
    return SeqKey(messages.ranges)


# RFC 3501 6.4.4 "UID" SP sequence-set
def _uid(lexer: Lexer) -> SearchKey:
    messages = lexer.sequence_set()
    return ResultKey() if messages.saved else UidKey(messages.ranges)


# RFC 9738 3.2 "UIDAFTER" SP uniqueid, "UIDBEFORE" SP uniqueid
def _uid_after(lexer: Lexer) -> SearchKey:
    return Not(UidKey(((1, lexer.nz_number()),)))


def _uid_before(lexer: Lexer) -> SearchKey:
    return Not(UidKey(((lexer.nz_number(), LARGEST),)))


def _string(lexer: Lexer) -> str:
    # Both supported charsets are UTF-8 or a subset of it.
    return lexer.text(lexer.astring("a search string"))


# RFC 3501 6.4.4 "HEADER" SP header-fld-name SP astring
def _header(lexer: Lexer) -> SearchKey:
    name = _string(lexer)
    lexer.space()
    return HeaderKey(name, _string(lexer))


# RFC 7162 3.1.5 search-modsequence = "MODSEQ" [SP entry-name SP entry-type-req] SP mod-sequence-valzer
def _modseq(lexer: Lexer) -> SearchKey:
    if lexer.next_is(b'"'):
        if not lexer.string("an entry name").lower().startswith(b"/flags/"):
            raise CommandError("Unknown MODSEQ entry")
        lexer.space()
        if lexer.keyword("an entry type") not in ("ALL", "PRIV", "SHARED"):
            raise CommandError("Unknown MODSEQ entry type")
        lexer.space()
    return ModSeqKey(lexer.modseq())


# RFC 8474 7 objectid
def _object_id(lexer: Lexer) -> str:
    octets = lexer.astring("an object id")
    if not _OBJECT_ID.fullmatch(octets):
        raise CommandError("Invalid object id")
    return octets.decode("ascii")


def _field(name: str) -> Callable[[Lexer], SearchKey]:
    return lambda lexer: HeaderKey(name, _string(lexer))


def _date(field: DateField, when: When) -> Callable[[Lexer], SearchKey]:
    return lambda lexer: DateKey(field, when, lexer.date())


def _saved(when: When) -> Callable[[Lexer], SearchKey]:
    return lambda lexer: SavedKey(when, lexer.date())


#: Keys with an argument, and its parser.
PREFIXES: Final[Mapping[str, Callable[[Lexer], SearchKey]]] = {
    # RFC 3501 6.4.4
    "BCC": _field("bcc"),
    "BEFORE": _date(DateField.INTERNAL, When.BEFORE),
    "BODY": lambda lexer: BodyKey(_string(lexer)),
    "CC": _field("cc"),
    "FROM": _field("from"),
    "HEADER": _header,
    "KEYWORD": lambda lexer: KeywordKey(_string(lexer)),
    "LARGER": lambda lexer: SizeKey(SizeIs.LARGER, lexer.number64()),
    "ON": _date(DateField.INTERNAL, When.ON),
    "SENTBEFORE": _date(DateField.SENT, When.BEFORE),
    "SENTON": _date(DateField.SENT, When.ON),
    "SENTSINCE": _date(DateField.SENT, When.SINCE),
    "SINCE": _date(DateField.INTERNAL, When.SINCE),
    "SMALLER": lambda lexer: SizeKey(SizeIs.SMALLER, lexer.number64()),
    "SUBJECT": _field("subject"),
    "TEXT": lambda lexer: TextKey(_string(lexer)),
    "TO": _field("to"),
    "UID": _uid,
    "UNKEYWORD": lambda lexer: Not(KeywordKey(_string(lexer))),
    # RFC 5032 3
    "OLDER": lambda lexer: Within(Age.OLDER, lexer.nz_number()),
    "YOUNGER": lambda lexer: Within(Age.YOUNGER, lexer.nz_number()),
    # RFC 7162 3.1.5
    "MODSEQ": _modseq,
    # RFC 9738 3.2
    "UIDAFTER": _uid_after,
    "UIDBEFORE": _uid_before,
    # RFC 8474 6
    "EMAILID": lambda lexer: EmailId(_object_id(lexer)),
    "THREADID": lambda lexer: ThreadId(_object_id(lexer)),
    # RFC 8514 4.3
    "SAVEDBEFORE": _saved(When.BEFORE),
    "SAVEDON": _saved(When.ON),
    "SAVEDSINCE": _saved(When.SINCE),
}
