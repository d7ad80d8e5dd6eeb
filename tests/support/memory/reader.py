"""The :class:`~adapter.read_model.interface.MailboxReader` over the memory store, one message at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import cast

from adapter.read_model.interface import (
    Account,
    Folder,
    ListedMessage,
    MessageHeader,
    OpenFolder,
    Registration,
    Row,
    StorageUse,
)
from adapter.search.searchable_text import SearchText, field_of, search_text
from adapter.store.quotas import Quotas, usage
from protocol.errors import MailError, Reason
from protocol.imap.commands.fetch_items import Attribute, BinaryPart, BinarySize, BodyPart, FetchItem, Preview
from protocol.imap.flags import SEEN
from protocol.imap.responses import fetch as form
from protocol.imap.responses.envelope import encode_envelope, encode_structure
from protocol.imap.search import sort, thread
from protocol.imap.search.program import Program, search
from protocol.imap.search.sort import SortCriterion, SortKey
from protocol.imap.search.source import Candidates, Scope
from protocol.imap.search.subject import base_subject
from protocol.imap.search.thread import Forest, ThreadMessage
from protocol.imap.sequence_set import Spans, merge
from protocol.imap.session_view import Rows, View
from protocol.imap.wire.lexer import Dialect
from protocol.imap.wire.strings import string
from protocol.mime.addresses import Address
from protocol.mime.dates import parse_date
from protocol.mime.encoding import decode_transfer, decode_words
from protocol.mime.parser import Part, scan
from protocol.mime.sections import find_part, section_bytes
from protocol.mime.structure import Envelope, envelope, structure
from tests.support.memory.store import NOW, MemoryFolder, MemoryMessage, MemoryStore

_IDENTITY = frozenset({"7bit", "8bit", "binary"})
_ENCODED = frozenset({"base64", "quoted-printable"})


class MemoryReader:
    def __init__(self, store: MemoryStore, quotas: Quotas | None = None) -> None:
        self._store = store
        self.quotas = quotas

    @property
    def is_behind(self) -> bool:
        return False

    async def catch_up(self) -> None:
        pass

    # --- accounts and folders --------------------------------------------------------------------------------------

    async def registrations(self) -> Sequence[Registration]:
        return [Registration(address, address, "active", address, NOW) for address in sorted(self._store.accounts)]

    async def account(self, address: str) -> Account:
        account = self._store.account(address)
        folders = {name: account.folders[name].row(address) for name in sorted(account.folders)}
        return Account(address, address, folders, frozenset(account.subscriptions))

    async def account_of(self, registration: Registration) -> Account:
        return await self.account(registration.address)

    async def status(self, address: str) -> Mapping[str, Folder]:
        return (await self.account(address)).folders

    async def storage_use(self, address: str) -> StorageUse | None:
        quota = self.quotas.of(address) if self.quotas is not None else None
        if quota is None or not quota.limited:
            return None
        return StorageUse(*usage(list((await self.status(address)).values())), quota.storage, quota.messages)

    async def folder(self, folder_id: int) -> MemoryFolder:
        return self._store.folder(folder_id)

    async def vanished(self, folder_id: int, modseq: int) -> Spans:
        expunged = self._store.folder(folder_id).expunged
        return merge((uid, uid) for after, uids in expunged if after > modseq for uid in uids)

    def first_recent(self, folder: OpenFolder, before: int, *, claim: bool) -> int:
        mine = self._store.folder(folder.id)
        first = min(mine.first_unannounced, before)
        if claim:
            mine.first_unannounced = max(mine.first_unannounced, before)
        return first

    async def recent_count(self, folder: Folder) -> int:
        mine = self._store.folder(folder.id)
        return sum(uid >= mine.first_unannounced for uid in mine.messages)

    # --- messages of an open folder --------------------------------------------------------------------------------

    def fetch(
        self, folder: OpenFolder, rows: Rows, items: Sequence[FetchItem], dialect: Dialect, view: View | None = None
    ) -> MemoryFetch:
        return MemoryFetch(cast("MemoryFolder", folder), rows, items, dialect, view)

    async def search(
        self, folder: OpenFolder, program: Program, on_progress: Callable[[int], None] | None = None
    ) -> Sequence[int]:
        steps = search(program, MemorySource(cast("MemoryFolder", folder)))
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return cast("list[int]", done.value)

    async def sort(self, folder: OpenFolder, criteria: Sequence[SortCriterion], uids: Sequence[int]) -> Sequence[int]:
        return sort.sort_uids(criteria, uids, MemorySource(cast("MemoryFolder", folder)))

    async def thread(self, folder: OpenFolder, algorithm: bytes, uids: Sequence[int], numbers: Sequence[int]) -> Forest:
        messages = MemorySource(cast("MemoryFolder", folder)).thread_messages(uids, numbers)
        by_references = algorithm == b"REFERENCES"
        return thread.thread_by_references(messages) if by_references else thread.thread_by_subject(messages)

    # --- messages for programs -------------------------------------------------------------------------------------

    async def rows(
        self, folder_id: int, first_uid: int = 1, *, saved_since: int = 0, limit: int | None = None
    ) -> Sequence[Row]:
        messages = self._store.folder(folder_id).messages.values()
        return [
            Row(
                each.uid,
                each.email_id,
                each.flags,
                " ".join(each.keywords),
                each.modseq,
                each.internal_date,
                NOW,
                len(each.octets),
                each.email_id,
            )
            for each in messages
            if each.uid >= first_uid and saved_since <= NOW
        ][:limit]

    async def listing(
        self, folder_id: int, *, uid: int | None = None, unread: bool = False, limit: int | None = None
    ) -> Sequence[ListedMessage]:
        folder = self._store.folder(folder_id)
        chosen = [
            message
            for message in reversed(folder.messages.values())
            if uid in (None, message.uid) and not (unread and message.flags & SEEN)
        ]
        return [_listed(folder, message) for message in chosen[:limit]]

    async def find(self, registration: str, message_id: str) -> Sequence[ListedMessage]:
        return [
            _listed(folder, message)
            for folder in self._store.account(registration).folders.values()
            for message in folder.messages.values()
            if message.email_id == message_id
        ]

    async def header(self, message_id: str) -> MessageHeader | None:
        octets = self._octets(message_id)
        subject = _text(_envelope(octets).subject)
        return MessageHeader("", "", subject, "", message_id, len(octets), NOW)

    async def markdown(self, message_id: str) -> bytes:
        return self._octets(message_id)

    async def octets(self, message_id: str) -> bytes:
        return self._octets(message_id)

    async def attachment(self, sha256: str) -> bytes:
        raise MailError(Reason.NO_SUCH_MESSAGE, sha256)

    def _octets(self, message_id: str) -> bytes:
        for account in self._store.accounts.values():
            for folder in account.folders.values():
                for message in folder.messages.values():
                    if message.email_id == message_id:
                        return message.octets
        raise MailError(Reason.NO_SUCH_MESSAGE, message_id)


def _listed(folder: MemoryFolder, message: MemoryMessage) -> ListedMessage:
    return ListedMessage(
        message.email_id,
        folder.name,
        folder.id,
        message.uid,
        message.internal_date,
        "",
        _text(_envelope(message.octets).subject),
        len(message.octets),
        message.flags,
        " ".join(message.keywords),
        message.email_id,
        "",
    )


# --- FETCH -----------------------------------------------------------------------------------------------------------


class MemoryFetch:
    """Builds each response by itself, from the octets."""

    def __init__(
        self, folder: MemoryFolder, rows: Rows, items: Sequence[FetchItem], dialect: Dialect, view: View | None
    ) -> None:
        self._folder = folder
        self._rows = rows
        self._items = items
        self._dialect = dialect
        self._view = view if Attribute.FLAGS in items else None
        self.failed: list[int] = []
        self.undecodable: list[int] = []
        self.is_corrupt = False

    def at_once(self) -> bytes | None:
        return None

    async def chunks(self) -> AsyncIterator[bytes]:
        for number, uid in zip(self._rows.numbers, self._rows.uids, strict=True):
            message = self._folder.messages.get(uid)
            if message is None:
                self.failed.append(uid)
                continue
            keywords = self._view.new_keywords(self._folder.flags) if self._view is not None else b""
            start = form.fetch_start(uid if self._dialect.uid_only else number, uid_only=self._dialect.uid_only)
            values = [self._value(item, message) for item in self._items]
            yield keywords + start + b" ".join(values) + form.FETCH_END

    async def failed_exist(self) -> bool:
        return any(uid in self._folder.messages for uid in self.failed)

    def _value(self, item: FetchItem, message: MemoryMessage) -> bytes:
        if isinstance(item, Attribute):
            return self._attribute(item, message)
        if isinstance(item, Preview):
            return form.PREVIEW % string(_preview(message.octets), self._dialect.utf8)
        value = self._content(item, message)
        if isinstance(item, BinarySize):
            return form.binary_size(item.label, len(value or b""))
        if value is None:
            return item.label + b" NIL"
        if item.partial is not None:
            value = value[item.partial[0] : item.partial[0] + item.partial[1]]
        binary = isinstance(item, BinaryPart)
        value = value if binary else form.without_nul(value)
        return form.literal_head(item.label, len(value), binary=binary and b"\0" in value) + value

    def _attribute(self, item: Attribute, message: MemoryMessage) -> bytes:
        root = scan(message.octets)
        match item:
            case Attribute.UID:
                return form.UID % message.uid
            case Attribute.FLAGS:
                mask, table = self._folder.mask(message), self._folder.flags
                encoded = [table.encoded[mask]]
                if self._view is not None:
                    encoded = list(self._view.encoded_flags([message.uid], [mask], table))
                return form.FLAGS % encoded[0]
            case Attribute.INTERNALDATE:
                return form.INTERNALDATE % form.date_time(message.internal_date)
            case Attribute.SAVEDATE:
                return form.SAVEDATE % form.date_time(NOW)
            case Attribute.RFC822_SIZE:
                return form.RFC822_SIZE % len(message.octets)
            case Attribute.MODSEQ:
                return form.MODSEQ % message.modseq
            case Attribute.ENVELOPE:
                return form.ENVELOPE % encode_envelope(envelope(root.headers))
            case Attribute.BODY:
                return form.BODY % encode_structure(structure(message.octets, root), False)
            case Attribute.BODYSTRUCTURE:
                return form.BODYSTRUCTURE % encode_structure(structure(message.octets, root), True)
            case Attribute.EMAILID:
                return form.EMAILID % message.email_id.encode()
            case Attribute.THREADID:
                return form.THREADID % message.email_id.encode()

    def _content(self, item: BodyPart | BinaryPart | BinarySize, message: MemoryMessage) -> bytes | None:
        root = scan(message.octets)
        if isinstance(item, BodyPart) or item.section is not None:
            section = item.section
            assert section is not None
            return section_bytes(message.octets, root, section)
        if not item.path:
            return message.octets
        part = find_part(root, tuple(item.path))
        if part is None:
            return None
        if part.encoding in _IDENTITY or part.children:
            return message.octets[part.body : part.end]
        if part.encoding not in _ENCODED:
            self.undecodable.append(message.uid)
            return None
        return decode_transfer(message.octets, part.encoding, part.body, part.end)


def _preview(octets: bytes) -> bytes:
    root = scan(octets)
    return b" ".join(octets[root.body : root.end].split())[:200]


# --- SEARCH ----------------------------------------------------------------------------------------------------------


class MemorySource:
    """The ``SearchSource`` and ``SortSource`` of :mod:`protocol.imap`, computed from the octets each time."""

    def __init__(self, folder: MemoryFolder) -> None:
        self._folder = folder
        self._messages = list(folder.messages.values())

    @property
    def uids(self) -> Sequence[int]:
        return self._folder.uids

    def flags(self) -> Sequence[int]:
        return self._folder.masks(self.uids)

    def flag_bit(self, name: str) -> int:
        return self._folder.flags.bit(name)

    def internal_dates(self) -> Sequence[int]:
        return [message.internal_date for message in self._messages]

    def save_dates(self) -> Sequence[int] | None:
        return [NOW for _ in self._messages]

    def sent_days(self) -> Sequence[int]:
        dates = [parse_date(_envelope(message.octets).date or b"") for message in self._messages]
        return [0 if date is None else date.toordinal() for date in dates]

    def sizes(self) -> Sequence[int]:
        return [len(message.octets) for message in self._messages]

    def modseqs(self) -> Sequence[int]:
        return [message.modseq for message in self._messages]

    def email_ids(self) -> Sequence[str]:
        return [message.email_id for message in self._messages]

    def thread_ids(self) -> Sequence[str]:
        return self.email_ids()

    def headers(self, name: str, rows: Sequence[int]) -> Iterable[str | None]:
        return [field_of(text.header, name) for text in self._texts(rows)]

    def bodies(self, rows: Sequence[int]) -> Iterable[str]:
        return [text.body for text in self._texts(rows)]

    def texts(self, rows: Sequence[int]) -> Iterable[str]:
        return [f"{text.header}\n{text.body}" for text in self._texts(rows)]

    def candidates(self, scope: Scope, name: str, needle: str) -> Candidates | None:
        return None

    def _texts(self, rows: Sequence[int]) -> list[SearchText]:
        return [_search_text(self._messages[row].octets) for row in rows]

    # --- SORT and THREAD -------------------------------------------------------------------------------------------

    def sort_values(self, key: SortKey, uids: Sequence[int]) -> Sequence[int] | Sequence[str]:
        messages = [self._folder.messages[uid] for uid in uids]
        if key is SortKey.ARRIVAL:
            return [message.internal_date for message in messages]
        if key is SortKey.SIZE:
            return [len(message.octets) for message in messages]
        if key is SortKey.DATE:
            return [_sent(message) for message in messages]
        return [_sort_text(key, _envelope(message.octets)) for message in messages]

    def thread_messages(self, uids: Sequence[int], numbers: Sequence[int]) -> list[ThreadMessage]:
        return [self._thread_message(uid, number) for uid, number in zip(uids, numbers, strict=True)]

    def _thread_message(self, uid: int, number: int) -> ThreadMessage:
        message = self._folder.messages[uid]
        header = _envelope(message.octets)
        subject = _text(header.subject)
        ids = thread.message_ids(_text(header.message_id))
        references = thread.reference_ids(_search_text(message.octets).references, _text(header.in_reply_to))
        return ThreadMessage(
            number,
            ids[0] if ids else None,
            tuple(references),
            _sent(message),
            sort.subject_sort_value(subject),
            base_subject(subject).reply,
        )


def _search_text(octets: bytes) -> SearchText:
    root: Part = scan(octets)
    return search_text(root, lambda start, stop: octets[start:stop])


def _envelope(octets: bytes) -> Envelope:
    return envelope(scan(octets).headers)


def _text(value: bytes | None) -> str:
    return decode_words(value or b"")


def _sent(message: MemoryMessage) -> int:
    date = parse_date(_envelope(message.octets).date or b"")
    return message.internal_date if date is None else int(date.timestamp())


def _sort_text(key: SortKey, header: Envelope) -> str:
    if key is SortKey.SUBJECT:
        return sort.subject_sort_value(_text(header.subject))
    fields: dict[SortKey, list[Address]] = {
        SortKey.CC: header.cc,
        SortKey.FROM: header.from_,
        SortKey.TO: header.to,
        SortKey.DISPLAYFROM: header.from_,
        SortKey.DISPLAYTO: header.to,
    }
    display = key in (SortKey.DISPLAYFROM, SortKey.DISPLAYTO)
    return (sort.display_sort_value if display else sort.address_sort_value)(fields[key])
