"""One copy in Sent: a message that both submission and the mail client put there is kept once.

Two messages are copies of each other if their Message-ID is the same, their bodies are equal but for the final CRLF,
and the header fields of one include those of the other. The copy with more fields wins: the client's, if it names Bcc
recipients. The fields that make the record of what was sent (originator, recipients, subject, dates, MIME) must be the
same in both, so a copy cannot rewrite that record; a message with other ones is a message of its own.

Trace fields, and a Date or MIME-Version that submission added, do not count. A body to which submission added an HTML
alternative counts as the Markdown it was made from.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import sqlite3
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial

from adapter.content import front_matter, wire
from adapter.content.html import html_alternative
from adapter.store.queries import content_rows
from adapter.store.queries.mailboxes import Folder
from adapter.transport.operations.base import Plan
from adapter.transport.operations.delivery import FindTwin, Twin
from adapter.transport.transport import Transport
from protocol.errors import MailError
from protocol.mime.headers import parse_headers
from protocol.mime.parser import Buffer

_TRACE = frozenset({"return-path", "received"})
_ADDED = frozenset({"date", "mime-version"})
_RECORD = _ADDED | {"from", "sender", "reply-to", "to", "cc", "subject", "message-id", "in-reply-to", "references"}
_MAX_HEADER_BYTES = 1 << 20
_MAX_RECENT = 256
_MAX_COPIES = 5  # compared, the newest first
_MAX_HTML_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20
_MESSAGE_ID = re.compile(rb"<[^<>\s]+>")

_Read = Callable[[int, int], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The compared part of a message: its fields without trace fields, and a digest of its body."""

    message_id: str
    fields: Counter[tuple[str, bytes]]
    body: bytes


class _Relation(Enum):
    DIFFERENT = "different"
    NEW_HAS_MORE = "the new copy has more fields"
    OLD_SUFFICES = "the stored copy has every field of the new one"


class SentCopies:
    """Find the stored copy of a message that is about to be put into Sent.

    The search runs inside the commit, with the account's lock held: two copies that arrive at the same time, through
    any worker, still end up as one.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._content = transport.content
        # Messages staged lately are among them: the files of a batch are put in place after all of it is planned.
        self._recent: OrderedDict[str, Fingerprint] = OrderedDict()
        self._mutex = threading.Lock()

    def finder(self, staged_id: str, fingerprint: Fingerprint | None) -> FindTwin | None:
        """Return the search for copies of a message that is staged under this id; None without a Message-ID. Blocking.

        Copies that exist are read now: the search itself, which runs under the lock, reads only those added since.
        """
        if fingerprint is None or not fingerprint.message_id:
            return None
        with contextlib.suppress(MailError, OSError, sqlite3.Error):
            for message_id in self._transport.index.ask(
                content_rows.with_header_id, fingerprint.message_id, _MAX_COPIES
            ):
                self._remember(message_id, self._stored(message_id))
        self._remember(staged_id, fingerprint)
        return partial(self._find, fingerprint)

    def _remember(self, message_id: str, fingerprint: Fingerprint) -> None:
        with self._mutex:
            self._recent[message_id] = fingerprint
            self._recent.move_to_end(message_id)
            while len(self._recent) > _MAX_RECENT:
                self._recent.popitem(last=False)

    def _find(self, fingerprint: Fingerprint, plan: Plan, folder: Folder) -> Twin | None:
        copies = content_rows.undeleted_copies(plan.connection, folder.id, fingerprint.message_id, _MAX_COPIES)
        for uid, message_id in copies:
            try:
                relation = _compare(self._stored(message_id), fingerprint)
            except (MailError, OSError):
                continue  # a copy that cannot be read now cannot stand for this one
            if relation is not _Relation.DIFFERENT:
                return Twin(uid, yields=relation is _Relation.NEW_HAS_MORE)
        return None

    def _stored(self, message_id: str) -> Fingerprint:
        with self._mutex:
            recent = self._recent.get(message_id)
        if recent is not None:
            return recent
        # Not through the index: this runs inside its write transaction.
        file = self._content.file(message_id)
        recipe = front_matter.recipe_of(file)

        def read(start: int, stop: int) -> Iterator[bytes]:
            return wire.octets(file, recipe, self._content, start, stop)

        header, start = _split(b"".join(read(0, min(recipe.size, _MAX_HEADER_BYTES))))
        plain = _without_html(header, recipe.size, read)
        if plain is not None:
            return fingerprint_of(plain)
        return _fingerprint(header, _body(start, recipe.size, read))


def fingerprint_of(octets: Buffer) -> Fingerprint:
    """Compute what is compared of a message. CPU work."""
    header, start = _split(bytes(octets[:_MAX_HEADER_BYTES]))

    def read(first: int, last: int) -> Iterator[bytes]:
        for position in range(first, last, _CHUNK_BYTES):
            yield bytes(octets[position : min(position + _CHUNK_BYTES, last)])

    plain = _without_html(header, len(octets), read)
    if plain is not None:
        return fingerprint_of(plain)
    return _fingerprint(header, _body(start, len(octets), read))


def _split(head: bytes) -> tuple[bytes, int]:
    """Return the header block and the offset of the body."""
    end = head.find(b"\r\n\r\n")
    return (head, len(head)) if end < 0 else (head[: end + 2], end + 4)


def _body(start: int, size: int, read: _Read) -> Iterator[bytes]:
    """Yield the body without its final CRLF."""
    tail = b"".join(read(max(start, size - 2), size))
    stop = size - 2 if tail == b"\r\n" else size
    return read(start, stop) if stop > start else iter(())


def _without_html(header: bytes, size: int, read: _Read) -> bytes | None:
    """Return the message to which submission added an HTML alternative; None if it did not."""
    if size > _MAX_HTML_BYTES or html_alternative.boundary_of(header) is None:
        return None
    return html_alternative.remove_html(b"".join(read(0, size)))


def _fingerprint(header: bytes, body: Iterator[bytes]) -> Fingerprint:
    block = parse_headers(header, 0, len(header))
    message_id = _MESSAGE_ID.search(block.first("Message-ID") or b"")
    digest = hashlib.sha256()
    for chunk in body:
        digest.update(chunk)
    return Fingerprint(
        message_id[0].decode("utf-8", "replace") if message_id is not None else "",
        Counter((field.lower, header[field.start : field.end]) for field in block.fields if field.lower not in _TRACE),
        digest.digest(),
    )


def _compare(old: Fingerprint, new: Fingerprint) -> _Relation:
    if old.body != new.body or old.message_id != new.message_id:
        return _Relation.DIFFERENT
    missing, extra = _only_in(old, new), _only_in(new, old)
    if (missing and extra) or not all(_may_differ(name) for name, _ in missing | extra):
        return _Relation.DIFFERENT
    return _Relation.NEW_HAS_MORE if extra else _Relation.OLD_SUFFICES


def _only_in(one: Fingerprint, other: Fingerprint) -> Counter[tuple[str, bytes]]:
    """Return the fields that only ``one`` has, without those that submission may have added to it."""
    names = {name for name, _ in other.fields}
    only = one.fields - other.fields
    return Counter({key: count for key, count in only.items() if key[0] in names or key[0] not in _ADDED})


def _may_differ(name: str) -> bool:
    return name == "resent-bcc" or (name not in _RECORD and not name.startswith(("content-", "resent-")))
