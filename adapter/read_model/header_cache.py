"""Header values for SEARCH, SORT and THREAD, decoded once and cached.

Address fields and subjects are searched as the envelope has them (RFC 3501 6.4.4). A value belongs to a UID and never
changes; it is decoded when a search first needs it. Used from threads, one at a time for each folder.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

from adapter.read_model.fetch.encoded_attributes import BATCH_MESSAGES, AttributeLoader, CachedAttribute
from protocol.imap.responses.envelope_decode import EncodedEnvelope, addresses, split_envelope, string
from protocol.imap.search import sort
from protocol.imap.search.collation import fold
from protocol.imap.search.subject import base_subject
from protocol.imap.search.thread import message_ids
from protocol.mime.addresses import Address
from protocol.mime.dates import parse_date
from protocol.mime.headers import decode_words

_ENTRY_COST_BYTES = 140


def _decoded(field: bytes) -> str | None:
    value = string(field)
    return None if value is None else decode_words(value)


def _folded(field: bytes) -> str | None:
    text = _decoded(field)
    return None if text is None else fold(text)


def _addresses(field: bytes) -> str | None:
    """Return addresses as a header shows them: ``Ada Lovelace <ada@example.test>, bob@example.test``."""
    parsed = addresses(field)
    return fold(", ".join(map(_address, parsed))) if parsed else None


def _address(parsed: Address) -> str:
    name, _, mailbox, host = parsed
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
    """Return the base subject, ready to compare, and whether the message is a reply (RFC 5256 2.1, 3)."""
    subject = _decoded(field) or ""
    return sort.subject_sort_value(subject), base_subject(subject).reply


def _header_id(field: bytes) -> str | None:
    ids = message_ids(_decoded(field) or "")
    return ids[0] if ids else None


class HeaderValue(Enum):
    """A column. Those named like a header field answer a search for that field."""

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
    PARENTS = 10  # In-Reply-To, as received
    REFERENCES = 11  # ids of the ancestors, the oldest first; not from the envelope


_CONVERT: dict[HeaderValue, Callable[[EncodedEnvelope], Any]] = {
    HeaderValue.SUBJECT: lambda e: _folded(e.subject),
    HeaderValue.FROM: lambda e: _addresses(e.from_),
    HeaderValue.TO: lambda e: _addresses(e.to),
    HeaderValue.CC: lambda e: _addresses(e.cc),
    HeaderValue.BCC: lambda e: _addresses(e.bcc),
    HeaderValue.DATE: lambda e: _folded(e.date),
    HeaderValue.MESSAGE_ID: lambda e: _folded(e.message_id),
    HeaderValue.IN_REPLY_TO: lambda e: _folded(e.in_reply_to),
    HeaderValue.SENT_DAY: lambda e: _sent_day(e.date),
    HeaderValue.SENT: lambda e: _sent(e.date),
    HeaderValue.BASE_SUBJECT: lambda e: _base(e.subject),
    HeaderValue.SORT_FROM: lambda e: sort.address_sort_value(addresses(e.from_)),
    HeaderValue.SORT_TO: lambda e: sort.address_sort_value(addresses(e.to)),
    HeaderValue.SORT_CC: lambda e: sort.address_sort_value(addresses(e.cc)),
    HeaderValue.DISPLAY_FROM: lambda e: sort.display_sort_value(addresses(e.from_)),
    HeaderValue.DISPLAY_TO: lambda e: sort.display_sort_value(addresses(e.to)),
    HeaderValue.HEADER_ID: lambda e: _header_id(e.message_id),
    HeaderValue.PARENTS: lambda e: _decoded(e.in_reply_to) or "",
}
# Of a message that is gone or unreadable.
_EMPTY = EncodedEnvelope(*[b"NIL"] * 10)
FIELDS = {value.value: value for value in HeaderValue if isinstance(value.value, str)}


class HeaderCache:
    """The columns of one folder."""

    __slots__ = ("_columns", "_mutex", "cost", "used_at")

    def __init__(self) -> None:
        self._columns: dict[HeaderValue, dict[int, Any]] = {}
        self._mutex = threading.Lock()
        self.cost = 0
        self.used_at = 0.0

    def get(self, value: HeaderValue, uids: Sequence[int], load: Callable[[Sequence[int]], Iterable[Any]]) -> list[Any]:
        """Return the value of each message; ``load`` gives those that are missing. Blocking."""
        with self._mutex:
            self.used_at = time.monotonic()
            column = self._columns.setdefault(value, {})
            missing = [uid for uid in uids if uid not in column]
            for start in range(0, len(missing), BATCH_MESSAGES):
                batch = missing[start : start + BATCH_MESSAGES]
                self._add(column, batch, load(batch))
            return list(map(column.__getitem__, uids))

    def _add(self, column: dict[int, Any], uids: Sequence[int], values: Iterable[Any]) -> None:
        shared: dict[Any, Any] = {}  # equal values become one object
        for uid, value in zip(uids, values, strict=True):
            column[uid] = shared.setdefault(value, value)
        self.cost += _ENTRY_COST_BYTES * len(uids) + sum(map(sys.getsizeof, shared))

    def drop(self) -> None:
        """From any thread, without waiting: a thread that is reading goes on with what it has."""
        self._columns = {}
        self.cost = 0


def envelope_values(loader: AttributeLoader, folder_id: int, value: HeaderValue, uids: Sequence[int]) -> Iterator[Any]:
    """Yield a column from the envelopes of messages. Blocking. Raises MailError."""
    envelopes = loader.query(folder_id, [CachedAttribute.ENVELOPE], uids).get(CachedAttribute.ENVELOPE, {})
    convert = _CONVERT[value]
    for uid in uids:
        try:
            envelope = split_envelope(envelopes[uid])
        except (KeyError, ValueError):  # gone, or unreadable
            envelope = _EMPTY
        yield convert(envelope)
