"""What SEARCH, SORT and THREAD want to know of a message's header, made once and kept.

The address fields and the subject are searched as the envelope has them (RFC 3501 6.4.4). Values belong to a UID and
never change; they are made for the messages somebody asks about. Used from threads, one at a time for each folder.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

from adapter.read_model.encoded_attributes import BATCH, Kind, PieceReader
from protocol.imap.responses.envelope_decode import EncodedEnvelope, addresses, split_envelope, string
from protocol.imap.search import sort
from protocol.imap.search.collation import fold
from protocol.imap.search.subject import base_subject
from protocol.imap.search.thread import message_ids
from protocol.mime.addresses import Address
from protocol.mime.dates import parse_date
from protocol.mime.headers import decode_words

_ENTRY_COST = 140


def _decoded(field: bytes) -> str | None:
    value = string(field)
    return None if value is None else decode_words(value)


def _folded(field: bytes) -> str | None:
    text = _decoded(field)
    return None if text is None else fold(text)


def _people(field: bytes) -> str | None:
    """Addresses as they are written: ``Ada Lovelace <ada@example.test>, bob@example.test``."""
    people = addresses(field)
    return fold(", ".join(map(_person, people))) if people else None


def _person(person: Address) -> str:
    name, _, mailbox, host = person
    if mailbox is None:
        return ";"  # RFC 3501 7.4.2: the end of a group
    if host is None:
        return f"{decode_words(mailbox)}:"  # its beginning
    address = decode_words(mailbox + b"@" + host)
    return f"{decode_words(name)} <{address}>" if name else address


def _sent_day(field: bytes) -> int:
    date = parse_date(string(field) or b"")
    return 0 if date is None else date.toordinal()


def _sent(field: bytes) -> int | None:
    date = parse_date(string(field) or b"")
    return None if date is None else int(date.timestamp())


def _base(field: bytes) -> tuple[str, bool]:
    """The base subject, ready to compare, and whether the message is a reply (RFC 5256 2.1, 3)."""
    subject = _decoded(field) or ""
    return sort.subject_sort_value(subject), base_subject(subject).reply


def _header_id(field: bytes) -> str | None:
    found = message_ids(_decoded(field) or "")
    return found[0] if found else None


class Value(Enum):
    """A column. Those with a header field's name are what a search for that field looks through."""

    SUBJECT = "subject"
    FROM = "from"
    TO = "to"
    CC = "cc"
    BCC = "bcc"
    DATE = "date"
    MESSAGE_ID = "message-id"
    IN_REPLY_TO = "in-reply-to"
    SENT_DAY = 1
    SENT = 2  # seconds since 1970; None without a date
    BASE_SUBJECT = 3
    SORT_FROM = 4
    SORT_TO = 5
    SORT_CC = 6
    DISPLAY_FROM = 7
    DISPLAY_TO = 8
    HEADER_ID = 9  # Message-ID, as threads compare it
    PARENTS = 10  # In-Reply-To, as it came
    REFERENCES = 11  # the messages it names, the oldest first; not from the envelope


_MAKE: dict[Value, Callable[[EncodedEnvelope], Any]] = {
    Value.SUBJECT: lambda e: _folded(e.subject),
    Value.FROM: lambda e: _people(e.from_),
    Value.TO: lambda e: _people(e.to),
    Value.CC: lambda e: _people(e.cc),
    Value.BCC: lambda e: _people(e.bcc),
    Value.DATE: lambda e: _folded(e.date),
    Value.MESSAGE_ID: lambda e: _folded(e.message_id),
    Value.IN_REPLY_TO: lambda e: _folded(e.in_reply_to),
    Value.SENT_DAY: lambda e: _sent_day(e.date),
    Value.SENT: lambda e: _sent(e.date),
    Value.BASE_SUBJECT: lambda e: _base(e.subject),
    Value.SORT_FROM: lambda e: sort.address_sort_value(addresses(e.from_)),
    Value.SORT_TO: lambda e: sort.address_sort_value(addresses(e.to)),
    Value.SORT_CC: lambda e: sort.address_sort_value(addresses(e.cc)),
    Value.DISPLAY_FROM: lambda e: sort.display_sort_value(addresses(e.from_)),
    Value.DISPLAY_TO: lambda e: sort.display_sort_value(addresses(e.to)),
    Value.HEADER_ID: lambda e: _header_id(e.message_id),
    Value.PARENTS: lambda e: _decoded(e.in_reply_to) or "",
}
# Of a message that cannot be read.
_NOTHING = EncodedEnvelope(*[b"NIL"] * 10)
FIELDS = {value.value: value for value in Value if isinstance(value.value, str)}


class HeaderValues:
    """The columns of one folder."""

    __slots__ = ("_columns", "_mutex", "cost", "used_at")

    def __init__(self) -> None:
        self._columns: dict[Value, dict[int, Any]] = {}
        self._mutex = threading.Lock()
        self.cost = 0
        self.used_at = 0.0

    def read(self, value: Value, uids: Sequence[int], make: Callable[[Sequence[int]], Iterable[Any]]) -> list[Any]:
        """The value for each of these messages; ``make`` gives those that are not known. Blocks."""
        with self._mutex:
            self.used_at = time.monotonic()
            column = self._columns.setdefault(value, {})
            lacking = [uid for uid in uids if uid not in column]
            for start in range(0, len(lacking), BATCH):
                batch = lacking[start : start + BATCH]
                self._add(column, batch, make(batch))
            return list(map(column.__getitem__, uids))

    def _add(self, column: dict[int, Any], uids: Sequence[int], values: Iterable[Any]) -> None:
        same: dict[Any, Any] = {}  # equal values become one object
        for uid, made in zip(uids, values, strict=True):
            column[uid] = same.setdefault(made, made)
        self.cost += _ENTRY_COST * len(uids) + sum(map(sys.getsizeof, same))

    def drop(self) -> None:
        """From any thread, without waiting for one that reads: it goes on with what it has."""
        self._columns = {}
        self.cost = 0


def envelope_values(reader: PieceReader, folder_id: int, value: Value, uids: Sequence[int]) -> Iterator[Any]:
    """A column from the envelopes of these messages. Blocks. Raises MailError."""
    envelopes = reader.query(folder_id, [Kind.ENVELOPE], uids).get(Kind.ENVELOPE, {})
    make = _MAKE[value]
    for uid in uids:
        try:
            envelope = split_envelope(envelopes[uid])
        except (KeyError, ValueError):  # gone, or not to be read
            envelope = _NOTHING
        yield make(envelope)
