"""Tokens of a command, which consists of text and literals (RFC 3501 9, RFC 9051 9).

A parser calls the method for the next token of the grammar and gets a value or a :class:`CommandError`. Each octet is
scanned once and nothing recurses. Runs of spaces count as one, and spaces at the end or inside parentheses are ignored:
clients send them, and they have no other meaning. Error texts never repeat input.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Final, TypeVar

from protocol.errors import ProtocolError
from protocol.imap.sequence_set import LARGEST, SequenceSet, parse_set
from protocol.imap.wire import utf7
from protocol.imap.wire.events import Literal, Pieces

T = TypeVar("T")


class CommandError(ProtocolError):
    """A refusal of the command: respond ``tag status [code] text``."""

    def __init__(self, text: str, status: str = "BAD", code: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.status = status
        self.code = code


class MailboxNameError(CommandError):
    """An invalid mailbox name: ``NO [CANNOT]``, since some clients disconnect on BAD (RFC 5530 3)."""

    def __init__(self, text: str) -> None:
        super().__init__(text, "NO", "CANNOT")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The enabled extensions (RFC 5161) that change the meaning of commands and responses."""

    rev2: bool = False  #: IMAP4rev2 (RFC 9051 6.3.1)
    utf8: bool = False  #: strings and mailbox names are UTF-8 (RFC 6855 3, RFC 9051 5.1); true under rev2
    condstore: bool = False  #: RFC 7162 3.1; true under QRESYNC
    qresync: bool = False  #: RFC 7162 3.2
    uid_only: bool = False  #: RFC 9586 3


PLAIN: Final = Dialect()

# RFC 3501 9. ATOM-CHAR lacks ( ) { SP CTL % * " \ ]; astrings may hold ], list patterns % and * too.
_ATOM = re.compile(rb'[^\x00-\x20\x7f-\xff(){%*"\\\]]+')
_ASTRING = re.compile(rb'[^\x00-\x20\x7f-\xff(){%*"\\]+')
_PATTERN = re.compile(rb'[^\x00-\x20\x7f-\xff(){"\\]+')
_QUOTED = re.compile(rb'"((?>(?:[^\x00\r\n"\\]+|\\["\\])*))"')
_ESCAPE = re.compile(rb"\\(.)")
_SPACES = re.compile(rb" +")
_ONLY_SPACES = re.compile(rb" *+\Z")
_NUMBER = re.compile(rb"[0-9]{1,20}(?![0-9])")
_PARTIAL = re.compile(rb"(-?)([0-9]{1,10}):(-?)([0-9]{1,10})(?![0-9])")
_SET = re.compile(rb"[0-9:*,$]+")
_SPACED_SET = re.compile(rb" +([0-9:*,$]+) +")
_FLAG = re.compile(rb'\\?[^\x00-\x20\x7f-\xff(){%*"\\\]]+')
_DATE = re.compile(rb'("?)([0-9]{1,2})-([A-Za-z]{3})-([0-9]{4})\1')
_DATE_TIME = re.compile(
    rb'" ?([0-9]{1,2})-([A-Za-z]{3})-([0-9]{4}) ([0-9]{2}):([0-9]{2}):([0-9]{2}) ([+-])([0-9]{2})([0-9]{2})"'
)
_MONTHS: Final = {
    month: number for number, month in enumerate(b"JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split(), start=1)
}
#: RFC 3501 5.1, in any case; also as the parent of others, so that no second INBOX can appear beside it.
_INBOX = re.compile("\\AINBOX(?=/|\\Z)", re.IGNORECASE | re.ASCII)
#: RFC 9051 5.1: names are Net-Unicode, which has no controls and no line or paragraph separators (RFC 5198 2).
_NOT_IN_NAMES = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SYSTEM_FLAGS: Final = {
    flag.lower(): flag.decode("ascii") for flag in rb"\Answered \Flagged \Deleted \Seen \Draft \Recent".split()
}
_LARGEST_64: Final = (1 << 63) - 1
_LARGEST_UNSIGNED_64: Final = (1 << 64) - 1


def settable(flags: list[str]) -> tuple[str, ...]:
    """Remove duplicates and ``\\Recent``, which clients send back although they cannot set it (RFC 3501 2.3.2)."""
    return tuple(flag for flag in dict.fromkeys(flags) if flag != "\\Recent")


class Lexer:
    """A position in the text and literals of one command."""

    __slots__ = ("_index", "_pieces", "_position", "_text", "dialect")

    def __init__(self, pieces: Pieces, dialect: Dialect = PLAIN) -> None:
        self.dialect = dialect
        self._pieces = pieces
        self._index = 0
        self._position = 0
        text = pieces[0]
        self._text = text if isinstance(text, bytes) else b""

    # --- position ---

    @property
    def at_literal(self) -> bool:
        return self._position == len(self._text) and self._index + 1 < len(self._pieces)

    @property
    def at_end(self) -> bool:
        """Only spaces are left."""
        if self._index + 1 < len(self._pieces):
            return False
        return self._position == len(self._text) or _ONLY_SPACES.match(self._text, self._position) is not None

    def take_plain_rest(self, limit: int) -> bytes | None:
        """Consume and return the rest of the command if it is at most ``limit`` octets without a literal."""
        if self._index + 1 < len(self._pieces) or len(self._text) - self._position > limit:
            return None
        rest = self._text[self._position :]
        self._position = len(self._text)
        return rest

    def end(self) -> None:
        if not self.at_end:
            raise CommandError("Unexpected text at the end of the command")

    def next_is(self, octets: bytes) -> bool:
        return self._text.startswith(octets, self._position)

    def skip(self, octets: bytes) -> bool:
        """Consume these octets if they are next."""
        if self._text.startswith(octets, self._position):
            self._position += len(octets)
            return True
        return False

    def next_matches(self, pattern: re.Pattern[bytes]) -> bool:
        return pattern.match(self._text, self._position) is not None

    def skip_match(self, pattern: re.Pattern[bytes]) -> bool:
        """Consume a match of the pattern, if there is one here."""
        match = pattern.match(self._text, self._position)
        if match is not None:
            self._position = match.end()
        return match is not None

    def expect(self, octets: bytes) -> None:
        if not self.skip(octets):
            raise CommandError(f"Expected {octets.decode('ascii')}")

    def space(self) -> None:
        self.match(_SPACES, "a space")

    def skip_space(self) -> None:
        self.skip_match(_SPACES)

    def match(self, pattern: re.Pattern[bytes], what: str) -> re.Match[bytes]:
        """Consume a match of the pattern, in one run of text. Raises CommandError if there is none here."""
        match = pattern.match(self._text, self._position)
        if match is None:
            raise CommandError(f"Expected {what}")
        self._position = match.end()
        return match

    # --- words and strings ---

    # RFC 3501 9 atom
    def atom(self, what: str = "an atom") -> bytes:
        return self.match(_ATOM, what)[0]

    def keyword(self, what: str = "a keyword") -> str:
        """Consume an atom that is a keyword of the grammar; return it in upper case."""
        return self.match(_ATOM, what)[0].upper().decode("ascii")

    def skip_keyword(self, keyword: bytes) -> bool:
        """Consume this atom, in any case, if it is next."""
        match = _ATOM.match(self._text, self._position)
        if match is None or match[0].upper() != keyword:
            return False
        self._position = match.end()
        return True

    # RFC 3501 9 astring
    def astring(self, what: str = "a string") -> bytes:
        match = _ASTRING.match(self._text, self._position)
        if match is None:
            return self.string(what)
        self._position = match.end()
        return match[0]

    # RFC 3501 9 string, quoted, literal; RFC 3516 4.4 literal8
    def string(self, what: str = "a string") -> bytes:
        """Consume a quoted string or literal, which may be UTF-8 in any dialect; NUL only in a literal8."""
        if self.at_literal:
            return self._literal()
        quoted = self.match(_QUOTED, what)[1]
        return _ESCAPE.sub(rb"\1", quoted) if b"\\" in quoted else quoted

    def _literal(self) -> bytes:
        literal, text = self._pieces[self._index + 1], self._pieces[self._index + 2]
        if not isinstance(literal, Literal) or not isinstance(text, bytes):
            raise CommandError("Expected a literal")
        self._index += 2
        self._text, self._position = text, 0
        if not literal.binary and b"\x00" in literal.data:
            raise CommandError("NUL is only allowed in a binary literal")
        return literal.data

    # RFC 3501 9 nstring
    def nstring(self, what: str = "a string or NIL") -> bytes | None:
        if self._text[self._position : self._position + 3].upper() == b"NIL":
            self._position += 3
            return None
        return self.string(what)

    def text(self, octets: bytes) -> str:
        """Decode the octets of a string as UTF-8 (RFC 6855 3, RFC 9051 4.3)."""
        try:
            return octets.decode("utf-8")
        except UnicodeDecodeError:
            raise CommandError("String is not valid UTF-8") from None

    # --- numbers ---

    # RFC 3501 9 number, nz-number; RFC 9051 9 number64
    def number(self, least: int = 0, largest: int = LARGEST) -> int:
        number = int(self.match(_NUMBER, "a number")[0])
        if not least <= number <= largest:
            raise CommandError("Number is out of range")
        return number

    def nz_number(self) -> int:
        return self.number(1)

    def number64(self) -> int:
        return self.number(0, _LARGEST_64)

    # RFC 7162 7 mod-sequence-value, mod-sequence-valzer
    def modseq(self) -> int:
        """Consume a mod-sequence; zero is accepted everywhere, as "from the beginning".

        RFC 4551 had 64 bits: a value above the limit of RFC 7162 exceeds every mod-sequence, as the limit does.
        """
        return min(self.number(0, _LARGEST_UNSIGNED_64), _LARGEST_64)

    # RFC 3501 9 sequence-set; RFC 5182 5 "$"
    def sequence_set(self, *, spaced: bool = False) -> SequenceSet:
        """``spaced``: with a space before and after."""
        text = self.match(_SPACED_SET, "a sequence set")[1] if spaced else self.match(_SET, "a sequence set")[0]
        try:
            return parse_set(text)
        except ProtocolError as error:
            raise CommandError(str(error)) from None

    # RFC 9394 4 partial-range
    def partial_range(self) -> tuple[int, int]:
        """Consume two numbers of the same sign; the one nearer to zero is first."""
        first_sign, first, last_sign, last = self.match(_PARTIAL, "a range").groups()
        low, high = sorted((int(first), int(last)))
        if first_sign != last_sign or not 1 <= low <= high <= LARGEST:
            raise CommandError("Invalid range")
        return (-low, -high) if first_sign else (low, high)

    # --- lists ---

    def parenthesised(self, item: Callable[[], T], *, empty: bool = False) -> list[T]:
        """``(item item …)``"""
        self.expect(b"(")
        self.skip_space()
        items: list[T] = []
        while not self.skip(b")"):
            items.append(item())
            if not self.next_is(b")"):
                self.space()
        if not items and not empty:
            raise CommandError("List is empty")
        return items

    # --- flags ---

    # RFC 3501 9 flag, flag-keyword
    def flag(self) -> str:
        """Consume a system flag, in the spelling of RFC 3501 2.3.2, or a keyword, as sent."""
        name = self.match(_FLAG, "a flag")[0]
        if not name.startswith(b"\\"):
            return name.decode("ascii")
        flag = _SYSTEM_FLAGS.get(name.lower())
        if flag is None:
            raise CommandError("Unknown system flag")
        return flag

    # RFC 3501 9 flag-list
    def flag_list(self) -> tuple[str, ...]:
        return settable(self.parenthesised(self.flag, empty=True))

    # --- dates ---

    # RFC 3501 9 date
    def date(self) -> date:
        match = self.match(_DATE, "a date")
        try:
            return date(int(match[4]), _MONTHS[match[3].upper()], int(match[2]))
        except (KeyError, ValueError):
            raise CommandError("No such date") from None

    # RFC 3501 9 date-time
    def date_time(self) -> datetime:
        match = self.match(_DATE_TIME, "a date and time")
        day, month, year, hour, minute, second, sign, zone_hours, zone_minutes = match.groups()
        try:
            offset = timedelta(hours=int(zone_hours), minutes=int(zone_minutes))
            zone = timezone(-offset if sign == b"-" else offset)
            # A leap second becomes the last second of its minute, since datetime has no second 60.
            seconds = min(int(second), 59) if int(second) <= 60 else 61
            value = datetime(int(year), _MONTHS[month.upper()], int(day), int(hour), int(minute), seconds, tzinfo=zone)
            value.astimezone(UTC)
        except (KeyError, ValueError, OverflowError):
            raise CommandError("No such date and time") from None
        return value

    # --- mailboxes ---

    # RFC 3501 9 mailbox, 5.1; RFC 9051 5.1
    def mailbox(self, *, empty: bool = False) -> str:
        """Consume a mailbox name; INBOX is returned in upper case."""
        name = self._name(self.astring("a mailbox name"))
        if not name and not empty:
            raise CommandError("Mailbox name is empty")
        return _INBOX.sub("INBOX", name)

    # RFC 3501 9 list-mailbox
    def list_mailbox(self) -> str | None:
        """Consume a pattern of mailbox names; None if no mailbox can have such a name."""
        match = _PATTERN.match(self._text, self._position)
        if match is None:
            octets = self.string("a mailbox pattern")
        else:
            octets = match[0]
            self._position = match.end()
        return self._name_or_none(octets)

    def list_reference(self) -> str | None:
        """Consume the reference of LIST or LSUB, INBOX in upper case; None if no mailbox can have such a name."""
        name = self._name_or_none(self.astring("a mailbox name"))
        return None if name is None else _INBOX.sub("INBOX", name)

    def _name_or_none(self, octets: bytes) -> str | None:
        try:
            return self._name(octets)
        except MailboxNameError:
            return None

    def _name(self, octets: bytes) -> str:
        if self.dialect.utf8:
            try:
                name = octets.decode("utf-8")
            except UnicodeDecodeError:
                raise MailboxNameError("Mailbox name is not valid UTF-8") from None
        else:
            try:
                name = utf7.decode(octets)
            except ProtocolError as error:
                # An "&" without a later "-" cannot begin a shift: clients that do not encode names mean the character.
                if not octets.isascii() or b"-" in octets[octets.find(b"&") :]:
                    raise MailboxNameError(str(error)) from None
                name = octets.decode("ascii")
        if _NOT_IN_NAMES.search(name):
            raise MailboxNameError("Mailbox name contains control characters")
        return name
