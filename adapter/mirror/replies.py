"""What a server answered, as values: FETCH, LIST, STATUS and EXAMINE responses as aioimaplib hands them over.

Lines are ``bytes``, literals ``bytearray``; a line that ends with ``{n}`` goes on with the literal after it. Contents
are taken from literals only. Whatever is not understood is left out, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.imap.wire import utf7

Line = bytes | bytearray
#: An atom or a quoted string, a literal, or a list of these.
Value = bytes | bytearray | list["Value"]

_FETCH = re.compile(rb"\d+ FETCH (?=\()", re.IGNORECASE)
_LITERAL = re.compile(rb"\{\d+\}\Z")
_TOKEN = re.compile(rb' *(?:([()])|"((?:[^"\\]|\\.)*)"|([^ ()"]+))')
_DEEPEST = 16
_DATE = re.compile(
    rb" ?(\d{1,2})-(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)-(\d{4}) (\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)\Z",
    re.IGNORECASE,
)
_MONTHS = b"jan feb mar apr may jun jul aug sep oct nov dec".split()
_EXISTS = re.compile(rb"(\d{1,10}) EXISTS\Z", re.IGNORECASE)
_CODE = re.compile(rb"OK \[(UIDVALIDITY|UIDNEXT|HIGHESTMODSEQ) (\d{1,20})\]", re.IGNORECASE)
_CHANGE = re.compile(rb"(?:\d+ )?(?:EXISTS|EXPUNGE|FETCH|VANISHED)\b", re.IGNORECASE)
_STATUS = re.compile(rb"\(([^()]*)\)\s*\Z")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one FETCH response told; None: nothing of that."""

    uid: int
    flags: tuple[str, ...] | None = None
    date: int | None = None  # seconds
    size: int | None = None
    body: bytearray | None = None


class Listed(NamedTuple):
    """A mailbox of a LIST response: as it is spelt there, and its levels as people read them."""

    spelling: str
    levels: tuple[str, ...]


class Examined(NamedTuple):
    """What a mailbox was like when it was opened; 0: not told."""

    uidvalidity: int = 0
    uidnext: int = 0
    messages: int = 0
    modseq: int = 0


def fetched(lines: Sequence[Line]) -> Iterator[Fetched]:
    """The FETCH responses among the lines of an answer; those that do not name a UID tell nothing."""
    for pieces in _responses(lines):
        first = pieces[0]
        start = _FETCH.match(first)
        if start is None:
            continue
        values = _values([first[start.end() :], *pieces[1:]])
        if values and isinstance(values[0], list):
            found = _fetched(values[0])
            if found is not None:
                yield found


def _fetched(items: list[Value]) -> Fetched | None:
    told: dict[bytes, Value] = {}
    for key, value in zip(items[::2], items[1::2]):
        if isinstance(key, bytes):
            told[key.upper().partition(b"<")[0]] = value
    uid, size, body = _number(told.get(b"UID")), _number(told.get(b"RFC822.SIZE")), told.get(b"BODY[]")
    if not uid:
        return None
    flags, date = told.get(b"FLAGS"), told.get(b"INTERNALDATE")
    return Fetched(
        uid,
        tuple(flag.decode("latin-1") for flag in flags if isinstance(flag, bytes)) if isinstance(flags, list) else None,
        _date(bytes(date)) if isinstance(date, bytes | bytearray) else None,
        size,
        body if isinstance(body, bytearray) else None,
    )


def listed(lines: Sequence[Line]) -> Iterator[Listed]:
    """The mailboxes of a LIST answer that can be opened (RFC 3501 7.2.2)."""
    for pieces in _responses(lines):
        values = _values(pieces)
        if len(values) != 3 or not isinstance(values[0], list) or isinstance(values[2], list):
            continue
        attributes = {value.lower() for value in values[0] if isinstance(value, bytes)}
        if attributes & {b"\\noselect", b"\\nonexistent"}:
            continue
        raw, delimiter = bytes(values[2]), values[1]
        name = _decode(raw)
        if not raw or name is None or isinstance(delimiter, list):
            continue
        levels = (name,) if delimiter.upper() == b"NIL" else tuple(name.split(delimiter.decode("latin-1")))
        yield Listed(raw.decode("utf-8"), levels)


def _decode(raw: bytes) -> str | None:
    """Modified UTF-7 (RFC 3501 5.1.3); some servers send UTF-8 as it is."""
    try:
        return utf7.decode(raw)
    except ProtocolError:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return None


def examined(lines: Sequence[Line]) -> Examined:
    """RFC 3501 6.3.1, RFC 7162 3.1.2.1."""
    told = {}
    for line in lines:
        if exists := _EXISTS.match(line):
            told["messages"] = int(exists[1])
        elif code := _CODE.match(line):
            told[{b"HIGHESTMODSEQ": "modseq"}.get(code[1].upper(), code[1].decode().lower())] = int(code[2])
    return Examined(**told)


def status(lines: Sequence[Line]) -> dict[str, int]:
    """The numbers of a STATUS response, by their names in capitals."""
    for pieces in _responses(lines):
        if found := _STATUS.search(pieces[-1]):
            words = found[1].split()
            return {
                name.decode("latin-1").upper(): int(value)
                for name, value in zip(words[::2], words[1::2])
                if value.isdigit()
            }
    return {}


def statuses(lines: Sequence[Line]) -> Iterator[tuple[str, dict[str, int]]]:
    """The STATUS responses among what a server tells by itself (RFC 5465 section 5), by the spelling of the mailbox."""
    for pieces in _responses(lines):
        values = _values(pieces)
        if len(values) == 3 and values[0] == b"STATUS" and isinstance(values[1], bytes | bytearray):
            yield values[1].decode("utf-8", "replace"), status(pieces)


def tells_change(lines: Sequence[Line]) -> bool:
    """Whether the open mailbox changed."""
    return any(_CHANGE.match(line) for line in lines if isinstance(line, bytes))


def found(lines: Sequence[Line]) -> list[int]:
    """The numbers of a SEARCH response (RFC 3501 7.2.5)."""
    return [int(word) for line in lines[:-1] for word in line.split() if word.isdigit() and len(word) <= 10]


# --- tokens ----------------------------------------------------------------------------------------------------------


def _responses(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """The answer cut into responses: a line, and while it ends with a literal's size, the literal and what follows.

    A line that is empty after a literal is not handed over; one that is not closes what is open.
    """
    at = 0
    while at < len(lines):
        pieces = [lines[at]]
        at += 1
        while _LITERAL.search(pieces[-1]) and at < len(lines) and isinstance(lines[at], bytearray):
            pieces.append(lines[at])
            at += 1
            if at == len(lines) or isinstance(lines[at], bytearray) or not _is_open(pieces):
                break
            pieces.append(lines[at])
            at += 1
        if isinstance(pieces[0], bytes):
            yield pieces


def _is_open(pieces: Sequence[Line]) -> bool:
    return sum(piece.count(b"(") - piece.count(b")") for piece in pieces if isinstance(piece, bytes)) > 0


def _values(pieces: Sequence[Line]) -> list[Value]:
    """Tokens as nested lists; empty if they do not nest."""
    stack: list[list[Value]] = [[]]
    for piece in pieces:
        if isinstance(piece, bytearray):
            stack[-1].append(piece)
            continue
        for bracket, quoted, atom in _TOKEN.findall(_LITERAL.sub(b"", piece)):
            if bracket == b"(":
                if len(stack) > _DEEPEST:
                    return []
                stack.append([])
            elif bracket == b")":
                if len(stack) == 1:
                    return []
                done = stack.pop()
                stack[-1].append(done)
            else:
                stack[-1].append(atom or re.sub(rb"\\(.)", rb"\1", quoted))
    return stack[0] if len(stack) == 1 else []


def _number(value: Value | None) -> int | None:
    return int(value) if isinstance(value, bytes) and value.isdigit() and len(value) <= 20 else None


def _date(text: bytes) -> int | None:
    match = _DATE.match(text)
    if match is None:
        return None
    day, month, year, hour, minute, second, sign, hours, minutes = match.groups()
    zone = timedelta(hours=int(hours), minutes=int(minutes))
    try:
        moment = datetime(
            int(year), _MONTHS.index(month.lower()) + 1, int(day), int(hour), int(minute), min(int(second), 59),
            tzinfo=timezone(-zone if sign == b"-" else zone),
        )  # fmt: skip
    except ValueError:
        return None
    return int(moment.timestamp())
