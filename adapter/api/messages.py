"""What the API hands out: folders, messages as they stand in a list, and messages to read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from adapter.content.front_matter import AttachmentMeta, FrontMatter
from adapter.store.flags import KEYWORD, SETTABLE, Flag
from adapter.transport.content import ContentReader
from protocol.errors import MailError, Reason
from protocol.mime.addresses import Mailbox as Person


@dataclass(frozen=True, slots=True)
class FolderInfo:
    name: str  # levels are separated by "/"
    special_use: str  # "\\Sent", "\\Archive" …, or empty
    messages: int
    unread: int
    octets: int


@dataclass(frozen=True, slots=True)
class Summary:
    """A message in a folder, as a list shows it. ``flags`` are the names of flags, and keywords."""

    id: str
    folder: str
    folder_id: int
    uid: int
    date: datetime  # when it arrived
    sender: str  # the address it says it is from
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
    _content: ContentReader = field(repr=False, compare=False)

    def data(self) -> bytes:
        return self._content.read(self.sha256, 0, -1)


@dataclass(frozen=True, slots=True)
class Mail:
    """A message with all it says: the fields of its front matter, its text as Markdown, its attachments."""

    summary: Summary
    sender: Person | None  # name and address
    to: tuple[Person, ...]
    cc: tuple[Person, ...]
    reply_to: tuple[Person, ...]
    subject: str
    date: str  # what its Date says, in ISO 8601 and UTC; empty if it says nothing
    message_id: str
    in_reply_to: str
    references: tuple[str, ...]
    text: str
    attachments: tuple[Attachment, ...]
    _content: ContentReader = field(repr=False, compare=False)

    @property
    def id(self) -> str:
        return self.summary.id

    def octets(self) -> bytes:
        """Exactly what arrived."""
        return self._content.octets(self.id)

    def file(self) -> bytes:
        """The canonical Markdown file, front matter included."""
        return self._content.file(self.id)


def mail(summary: Summary, file: bytes, matter: FrontMatter, content: ContentReader) -> Mail:
    def attachment(meta: AttachmentMeta) -> Attachment:
        return Attachment(meta.name, meta.type, meta.size, meta.sha256, content)

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
        _content=content,
    )


_NAMES = {flag: flag.name.lower() for flag in Flag if flag.name}
_SETTABLE = {name: flag for flag, name in _NAMES.items() if flag & SETTABLE}


def flag_names(flags: int, keywords: str) -> frozenset[str]:
    return frozenset([*(name for flag, name in _NAMES.items() if flags & flag), *keywords.split()])


def split_flags(wanted: Iterable[str]) -> tuple[int, list[str]]:
    """Flags by name as bits, anything else as keywords. Raises ``NOT_ALLOWED``."""
    bits, keywords = 0, []
    for name in wanted:
        if name in _SETTABLE:
            bits |= _SETTABLE[name]
        elif name == "archived":
            raise MailError(Reason.NOT_ALLOWED, "archived is where a message lies: use archive() or move()")
        elif KEYWORD.match(name):
            keywords.append(name)
        else:
            raise MailError(Reason.NOT_ALLOWED, f"not a flag or keyword: {name!r}")
    return bits, keywords


def moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
