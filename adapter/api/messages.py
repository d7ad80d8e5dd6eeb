"""Values of the API: folders, summaries of messages, and messages to read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias

from adapter.content import front_matter
from adapter.content.front_matter import AttachmentMeta
from adapter.read_model.blocking import BlockingCalls
from adapter.read_model.interface import KEYWORD, SETTABLE_FLAGS, Flag, ListedMessage, MailboxReader
from protocol.errors import MailError, Reason
from protocol.mime.addresses import Mailbox as Person

Calls: TypeAlias = BlockingCalls[MailboxReader]


@dataclass(frozen=True, slots=True)
class FolderInfo:
    name: str  # levels are separated by "/"
    special_use: str  # "\\Sent", "\\Archive" …, or empty
    messages: int
    unread: int
    octets: int


@dataclass(frozen=True, slots=True)
class Summary:
    """A message in a folder, for lists. ``flags`` has the names of flags, and keywords."""

    id: str
    folder: str
    folder_id: int
    uid: int
    date: datetime  # of arrival
    sender: str  # the address in From
    subject: str
    octets: int
    flags: frozenset[str]
    thread: str
    preview: str

    @property
    def read(self) -> bool:
        return "read" in self.flags


@dataclass(frozen=True, slots=True)
class Attachment:
    name: str
    type: str
    size: int
    sha256: str
    _calls: Calls = field(repr=False, compare=False)

    def data(self) -> bytes:
        return self._calls.run(self._calls.reader.attachment(self.sha256))


@dataclass(frozen=True, slots=True)
class Mail:
    """A message: the fields of its front matter, its text as Markdown, and its attachments."""

    summary: Summary
    sender: Person | None  # name and address
    to: tuple[Person, ...]
    cc: tuple[Person, ...]
    reply_to: tuple[Person, ...]
    subject: str
    date: str  # of the Date field, in ISO 8601 and UTC; empty without one
    message_id: str
    in_reply_to: str
    references: tuple[str, ...]
    text: str
    attachments: tuple[Attachment, ...]
    _calls: Calls = field(repr=False, compare=False)

    @property
    def id(self) -> str:
        return self.summary.id

    def octets(self) -> bytes:
        """Return exactly what arrived."""
        return self._calls.run(self._calls.reader.octets(self.id))

    def file(self) -> bytes:
        """Return the canonical Markdown file, front matter included."""
        return self._calls.run(self._calls.reader.markdown(self.id))


def mail(summary: Summary, file: bytes, calls: Calls) -> Mail:
    matter = front_matter.read(file)

    def attachment(meta: AttachmentMeta) -> Attachment:
        return Attachment(meta.name, meta.type, meta.size, meta.sha256, calls)

    return Mail(
        summary=summary,
        sender=matter.sender,
        to=matter.to,
        cc=matter.cc,
        reply_to=matter.reply_to,
        subject=matter.subject,
        date=matter.date,
        message_id=matter.message_id,
        in_reply_to=matter.in_reply_to,
        references=matter.references,
        text=file[matter.body_start :].decode("utf-8", "replace"),
        attachments=tuple(map(attachment, matter.attachments)),
        _calls=calls,
    )


_NAMES = {flag: flag.name.lower() for flag in Flag if flag.name}
_SETTABLE = {name: flag for flag, name in _NAMES.items() if flag & SETTABLE_FLAGS}


def flag_names(flags: int, keywords: str) -> frozenset[str]:
    return frozenset([*(name for flag, name in _NAMES.items() if flags & flag), *keywords.split()])


def split_flags(flags: Iterable[str]) -> tuple[int, list[str]]:
    """Return the bits of named flags, and all other names as keywords. Raises ``NOT_ALLOWED``."""
    bits, keywords = 0, []
    for name in flags:
        if name in _SETTABLE:
            bits |= _SETTABLE[name]
        elif name == "archived":
            raise MailError(Reason.NOT_ALLOWED, "'archived' is not a settable flag: call archive() or move()")
        elif KEYWORD.match(name):
            keywords.append(name)
        else:
            raise MailError(Reason.NOT_ALLOWED, f"not a flag or keyword: {name!r}")
    return bits, keywords


def summary_of(row: ListedMessage) -> Summary:
    return Summary(
        id=row.message_id,
        folder=row.folder,
        folder_id=row.folder_id,
        uid=row.uid,
        date=datetime.fromtimestamp(row.internal_date, UTC),
        sender=row.header_from,
        subject=row.subject,
        octets=row.size,
        flags=flag_names(row.flags, row.keywords),
        thread=row.thread_id,
        preview=row.preview,
    )
