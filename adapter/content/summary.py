"""Header summary of a message: sender, recipients, date, subject and message IDs, decoded and bounded in size."""

from __future__ import annotations

import re
from datetime import UTC
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from protocol.mime.addresses import Address, Mailbox
from protocol.mime.dates import parse_date
from protocol.mime.encoding import decode_words
from protocol.mime.structure import Envelope

MAX_PEOPLE = 500
MAX_REFERENCES = 100
_MAX_NAME = 200
_MAX_ADDRESS = 320
_MAX_SUBJECT_CHARACTERS = 2000
_MAX_ID = 500
_CACHED_LENGTH = 200
_MESSAGE_ID = re.compile(r"<[^<>\s]{1,498}>")
_is_common_address = re.compile(rb"[A-Za-z0-9._+-]{1,64}@[A-Za-z0-9.-]{1,255}").fullmatch
# A local part that needs no quotes (RFC 5322 section 3.2.3).
_is_plain_local = re.compile(r"[^\s\"(),:;<>@\[\\\]]+").fullmatch


class HeaderSummary(NamedTuple):
    sender: Mailbox | None
    to: tuple[Mailbox, ...]
    cc: tuple[Mailbox, ...]
    reply_to: tuple[Mailbox, ...]
    subject: str
    date: str | None
    message_id: str | None
    in_reply_to: str | None
    references: tuple[str, ...]


def summarise_headers(envelope: Envelope, references: bytes | None) -> HeaderSummary:
    from_ = envelope.from_
    senders = _people(from_)
    return HeaderSummary(
        senders[0] if senders else None,
        _people(envelope.to),
        _people(envelope.cc),
        () if envelope.reply_to is from_ else _people(envelope.reply_to),
        "" if envelope.subject is None else decode_words(envelope.subject)[:_MAX_SUBJECT_CHARACTERS].strip(),
        _moment(envelope.date),
        _one_id(envelope.message_id),
        _one_id(envelope.in_reply_to),
        _ids(references),
    )


def _text(raw: bytes) -> str:
    """Decode a header value; plain ASCII, the most common case, takes a fast path."""
    if raw.isascii() and b"=?" not in raw:
        text = raw.decode("ascii")
        if text.isprintable():
            return text
    return decode_words(raw)


def _people(addresses: list[Address]) -> tuple[Mailbox, ...]:
    """The mailboxes of an address list, with groups flattened."""
    people: list[Mailbox] = []
    for name, _, local, host in addresses:
        if local is None or host is None:
            continue
        short = len(local) + len(host) + len(name or b"") <= _CACHED_LENGTH
        person = (_person if short else _person.__wrapped__)(name, local, host)
        if person.name or person.address:
            people.append(person)
            if len(people) == MAX_PEOPLE:
                break
    return tuple(people)


@lru_cache(maxsize=4096)
def _person(name: bytes | None, local: bytes, host: bytes) -> Mailbox:
    """Decode one mailbox. Cached: the same correspondents appear again and again."""
    person = "" if name is None else _text(name)[:_MAX_NAME].strip()
    raw = b"%b@%b" % (local, host)
    return Mailbox(person, raw.decode("ascii") if _is_common_address(raw) else _address(local, host)[:_MAX_ADDRESS])


def _address(local: bytes, host: bytes) -> str:
    address = _text(local)
    if not host:
        return address
    if not _is_plain_local(address):
        address = '"' + address.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{address}@{_text(host)}"


def _one_id(raw: bytes | None) -> str | None:
    """The first message ID of a field, or its text if it contains no valid ID."""
    if not raw:
        return None
    text = _text(raw)
    match = _MESSAGE_ID.search(text)
    return (text[:_MAX_ID].strip() or None) if match is None else match[0]


def _ids(raw: bytes | None) -> tuple[str, ...]:
    """The message IDs of a field; of too many, the root and the latest."""
    if not raw:
        return ()
    ids: list[str] = _MESSAGE_ID.findall(_text(raw))
    if len(ids) > MAX_REFERENCES:
        ids[1 : len(ids) - MAX_REFERENCES + 1] = []
    return tuple(ids)


def _moment(raw: bytes | None) -> str | None:
    moment = parse_date(raw) if raw else None
    if moment is None:
        return None
    if moment.tzinfo is not UTC:
        try:
            moment = moment.astimezone(UTC)
        except OverflowError:
            return None
    return f"{moment.year:04}-{moment.month:02}-{moment.day:02}T{moment.hour:02}:{moment.minute:02}:{moment.second:02}Z"


class ThreadKeys(NamedTuple):
    """The header fields that decide the thread of a message."""

    message_id: str | None
    in_reply_to: str | None
    references: tuple[str, ...]
    id: str


def default_thread(keys: ThreadKeys) -> str:
    """Derive the thread ID from the oldest ancestor in the headers, or from the message itself."""
    root = (keys.references[0] if keys.references else None) or keys.in_reply_to or keys.message_id or keys.id
    return "thr-" + sha256(root.encode("utf-8", "replace")).hexdigest()[:20]
