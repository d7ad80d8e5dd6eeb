"""Parsers of IMAP responses (FETCH, LIST, STATUS, EXAMINE, SEARCH) in the form that aioimaplib returns.

Lines are ``bytes``, literals ``bytearray``; a line that ends with ``{n}`` continues with the literal after it. Contents
are taken from literals only. Malformed data is skipped, never guessed.
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
_MAX_DEPTH = 16
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
class FetchedMessage:
    """The items of one FETCH response; None: absent."""

    uid: int
    flags: tuple[str, ...] | None = None
    date: int | None = None  # seconds
    size: int | None = None
    body: bytearray | None = None


class RemoteMailbox(NamedTuple):
    """A mailbox of a LIST response: its name on the wire, and its decoded levels."""

    name: str
    levels: tuple[str, ...]


class MailboxState(NamedTuple):
    """The state of a mailbox from EXAMINE or STATUS; 0: absent."""

    uidvalidity: int = 0
    uidnext: int = 0
    messages: int = 0
    modseq: int = 0


def parse_fetch(lines: Sequence[Line]) -> Iterator[FetchedMessage]:
    """Yield the FETCH responses; those without a UID are skipped."""
    for parts in _responses(lines):
        first = parts[0]
        start = _FETCH.match(first)
        if start is None:
            continue
        values = _values([first[start.end() :], *parts[1:]])
        if values and isinstance(values[0], list):
            message = _fetched_message(values[0])
            if message is not None:
                yield message


def _fetched_message(items: list[Value]) -> FetchedMessage | None:
    by_name: dict[bytes, Value] = {}
    for key, value in zip(items[::2], items[1::2]):
        if isinstance(key, bytes):
            by_name[key.upper().partition(b"<")[0]] = value
    uid, size, body = _number(by_name.get(b"UID")), _number(by_name.get(b"RFC822.SIZE")), by_name.get(b"BODY[]")
    if not uid:
        return None
    flags, date = by_name.get(b"FLAGS"), by_name.get(b"INTERNALDATE")
    return FetchedMessage(
        uid,
        tuple(flag.decode("latin-1") for flag in flags if isinstance(flag, bytes)) if isinstance(flags, list) else None,
        _date(bytes(date)) if isinstance(date, bytes | bytearray) else None,
        size,
        body if isinstance(body, bytearray) else None,
    )


def parse_list(lines: Sequence[Line]) -> Iterator[RemoteMailbox]:
    """Yield the selectable mailboxes of a LIST response (RFC 3501 7.2.2)."""
    for parts in _responses(lines):
        values = _values(parts)
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
        yield RemoteMailbox(raw.decode("utf-8"), levels)


def _decode(raw: bytes) -> str | None:
    """Decode modified UTF-7 (RFC 3501 5.1.3), or the raw UTF-8 that some servers send."""
    try:
        return utf7.decode(raw)
    except ProtocolError:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return None


def parse_examine(lines: Sequence[Line]) -> MailboxState:
    """Parse the response to EXAMINE (RFC 3501 6.3.1, RFC 7162 3.1.2.1)."""
    values = {}
    for line in lines:
        if exists := _EXISTS.match(line):
            values["messages"] = int(exists[1])
        elif code := _CODE.match(line):
            values[{b"HIGHESTMODSEQ": "modseq"}.get(code[1].upper(), code[1].decode().lower())] = int(code[2])
    return MailboxState(**values)


def parse_status(lines: Sequence[Line]) -> dict[str, int]:
    """Return the numbers of a STATUS response by name, in upper case."""
    for parts in _responses(lines):
        if match := _STATUS.search(parts[-1]):
            words = match[1].split()
            return {
                name.decode("latin-1").upper(): int(value)
                for name, value in zip(words[::2], words[1::2])
                if value.isdigit()
            }
    return {}


def parse_statuses(lines: Sequence[Line]) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield unsolicited STATUS responses (RFC 5465 section 5) with the name of the mailbox on the wire."""
    for parts in _responses(lines):
        values = _values(parts)
        if len(values) == 3 and values[0] == b"STATUS" and isinstance(values[1], bytes | bytearray):
            yield values[1].decode("utf-8", "replace"), parse_status(parts)


def reports_change(lines: Sequence[Line]) -> bool:
    """Return whether the lines report a change of the open mailbox."""
    return any(_CHANGE.match(line) for line in lines if isinstance(line, bytes))


def parse_search(lines: Sequence[Line]) -> list[int]:
    """Return the numbers of a SEARCH response (RFC 3501 7.2.5)."""
    return [int(word) for line in lines[:-1] for word in line.split() if word.isdigit() and len(word) <= 10]


# --- tokens ----------------------------------------------------------------------------------------------------------


def _responses(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Group lines into responses: a line and, while it ends with the size of a literal, the literal and the next line.

    aioimaplib drops an empty line after a literal; any other one closes the open parentheses.
    """
    at = 0
    while at < len(lines):
        parts = [lines[at]]
        at += 1
        while _LITERAL.search(parts[-1]) and at < len(lines) and isinstance(lines[at], bytearray):
            parts.append(lines[at])
            at += 1
            if at == len(lines) or isinstance(lines[at], bytearray) or not _is_open(parts):
                break
            parts.append(lines[at])
            at += 1
        if isinstance(parts[0], bytes):
            yield parts


def _is_open(parts: Sequence[Line]) -> bool:
    return sum(part.count(b"(") - part.count(b")") for part in parts if isinstance(part, bytes)) > 0


def _values(parts: Sequence[Line]) -> list[Value]:
    """Parse tokens into nested lists; empty if the parentheses do not match."""
    stack: list[list[Value]] = [[]]
    for part in parts:
        if isinstance(part, bytearray):
            stack[-1].append(part)
            continue
        for bracket, quoted, atom in _TOKEN.findall(_LITERAL.sub(b"", part)):
            if bracket == b"(":
                if len(stack) > _MAX_DEPTH:
                    return []
                stack.append([])
            elif bracket == b")":
                if len(stack) == 1:
                    return []
                inner = stack.pop()
                stack[-1].append(inner)
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
