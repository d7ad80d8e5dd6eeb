"""The storage contract: how IMAP, the Python API, hooks and export read mail and change it.

:class:`MailboxReader` reads one store, :class:`MailboxWriter` changes the mail of one account on behalf of one actor.
Both belong to the event loop of their caller and raise :class:`~protocol.errors.MailError`. The values they exchange
are re-exported here, so that a caller needs nothing below this module.

Implementations: :class:`~adapter.read_model.mailboxes.MailboxCache` and
:class:`~adapter.read_model.mailbox_writer.AccountWriter` over a store;
:class:`~adapter.read_model.blocking.BlockingCalls` runs them for callers without an event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from adapter.store.effects import FlagChange
from adapter.store.flags import KEYWORD, Flag
from adapter.store.flags import SETTABLE as SETTABLE_FLAGS
from adapter.store.names import (
    DELIMITER,
    INBOX,
    MAX_FOLDER_NAME,
    STANDARD_FOLDERS,
    normalise_address,
    normalise_folder,
)
from adapter.store.queries.mailboxes import Folder, Registration, Row
from adapter.store.queries.messages import ListedMessage, MessageHeader
from adapter.transport.ids import folder_label as mailbox_id
from adapter.transport.operations import Copied, Delivery, Expunged, FlagsChanged, Placed
from protocol.imap.commands.fetch_items import FetchItem
from protocol.imap.search.program import Program
from protocol.imap.search.sort import SortCriterion
from protocol.imap.search.thread import Forest
from protocol.imap.sequence_set import Spans
from protocol.imap.session_view import FolderChange, Rows, Uids, View
from protocol.imap.session_view import FolderState as ReportedFolder
from protocol.imap.wire.lexer import Dialect

__all__ = [
    "DELIMITER",
    "INBOX",
    "KEYWORD",
    "MAX_FOLDER_NAME",
    "SETTABLE_FLAGS",
    "STANDARD_FOLDERS",
    "Account",
    "Copied",
    "Delivery",
    "Expunged",
    "FetchResponses",
    "Flag",
    "FlagChange",
    "FlagsChanged",
    "Folder",
    "FolderListener",
    "ListedMessage",
    "MailboxReader",
    "MailboxWriter",
    "MessageHeader",
    "NewMessage",
    "OpenFolder",
    "Placed",
    "Registration",
    "Row",
    "StorageUse",
    "Subscription",
    "Upload",
    "mailbox_id",
    "normalise_address",
    "normalise_folder",
]


@dataclass(frozen=True, slots=True)
class Account:
    """The folders of a registration. A snapshot: ask again for each command."""

    address: str
    registration: str
    folders: Mapping[str, Folder]  # by name; identities are exact, counters are those of when they were read
    subscriptions: frozenset[str]


class StorageUse(NamedTuple):
    """The storage of an account and its limits; 0: unlimited."""

    octets: int
    messages: int
    octet_limit: int
    message_limit: int


class FolderListener(Protocol):
    """Receives the changes of a folder, on the event loop. It must neither block nor raise."""

    def folder_changed(self, changes: Sequence[FolderChange]) -> None:
        """Changes for ``View.apply``, in order: each flag change and each expunge with a ``modseq`` of its own, by
        which a session recognises the change it made itself. ``uids`` are those after all of them."""

    def folder_removed(self) -> None:
        """The folder was deleted, or its account is no longer active."""


class Subscription(Protocol):
    def close(self) -> None: ...


class OpenFolder(ReportedFolder, Protocol):
    """A folder as it is now: one value per message, by ascending UID. Kept up to date while there is a subscription:
    subscribe before the next ``await``."""

    @property
    def id(self) -> int: ...

    @property
    def uidvalidity(self) -> int: ...

    @property
    def uidnext(self) -> int: ...

    @property
    def modseq(self) -> int:
        """HIGHESTMODSEQ."""

    @property
    def uids(self) -> Uids:
        """Replaced at each change, never modified."""

    def sizes(self, uids: Sequence[int]) -> Sequence[int]:
        """RFC822.SIZE of these messages; 0 for one that is gone, as with flags and mod-sequences."""

    def first_unseen(self) -> int:
        """Message number of the first unseen message; 0 if there is none (RFC 3501 6.3.1)."""

    def changed_since(self, modseq: int) -> list[int]:
        """UIDs with a higher mod-sequence, ascending (RFC 7162 3.1.4.1, 3.2.5)."""

    def subscribe(self, listener: FolderListener) -> Subscription: ...


class FetchResponses(Protocol):
    """The responses to one FETCH. The lists of failures are complete when the chunks have ended."""

    failed: list[int]  # UIDs without a response: gone, or unreadable
    undecodable: list[int]  # UIDs of a BINARY part in an unknown encoding, answered with NIL (RFC 3516 4.3)
    is_corrupt: bool  # content was read and did not match its checksum

    def at_once(self) -> bytes | None:
        """All responses, if they are short and need no I/O."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Raises MailError only inside a literal: the connection must then be closed."""

    async def failed_exist(self) -> bool:
        """True if a message of ``failed`` is still there: its content is unreadable."""


class MailboxReader(Protocol):
    """Reads of one store. Everything acknowledged before a command, by any process, is in the answer to it: compare
    :attr:`is_behind` at the start of a command and await :meth:`catch_up` if it is true."""

    @property
    def is_behind(self) -> bool:
        """True if a change may have been acknowledged that is not shown yet. Costs no query."""

    async def catch_up(self) -> None:
        """Wait until every change acknowledged before this call is shown."""

    # --- accounts and folders

    async def registrations(self) -> Sequence[Registration]:
        """All accounts, of any status, by address."""

    async def account(self, address: str) -> Account:
        """Folders and subscriptions of an active address. Raises ``NO_SUCH_ADDRESS`` or ``INACTIVE_ADDRESS``."""

    async def account_of(self, registration: Registration) -> Account:
        """The same for a registration of any status."""

    async def status(self, address: str) -> Mapping[str, Folder]:
        """Folders of an active address by name, with exact counters (STATUS)."""

    async def storage_use(self, address: str) -> StorageUse | None:
        """None if the account has no quota (RFC 9208)."""

    async def folder(self, folder_id: int) -> OpenFolder:
        """Raises ``NO_SUCH_FOLDER``."""

    async def vanished(self, folder_id: int, modseq: int) -> Spans:
        """UIDs expunged after a mod-sequence (RFC 7162 3.2.5)."""

    def first_recent(self, folder: OpenFolder, before: int, *, claim: bool) -> int:
        r"""First UID below ``before`` that no session has announced as ``\Recent``; ``before`` if there is none. With
        ``claim`` these messages are recent to the caller and to no other session (RFC 3501 2.3.2)."""

    async def recent_count(self, folder: Folder) -> int:
        r"""Messages that were not announced to any session as ``\Recent``."""

    # --- messages of an open folder

    def fetch(
        self, folder: OpenFolder, rows: Rows, items: Sequence[FetchItem], dialect: Dialect, view: View | None = None
    ) -> FetchResponses:
        """``view``: that of the session, to announce new keywords before they are shown."""

    async def search(
        self, folder: OpenFolder, program: Program, on_progress: Callable[[int], None] | None = None
    ) -> Sequence[int]:
        """Matching UIDs, ascending. A long search reports how many texts it has read, and yields to other searches."""

    async def sort(self, folder: OpenFolder, criteria: Sequence[SortCriterion], uids: Sequence[int]) -> Sequence[int]:
        """``uids`` (ascending) in the order of the criteria (RFC 5256, RFC 5957)."""

    async def thread(self, folder: OpenFolder, algorithm: bytes, uids: Sequence[int], numbers: Sequence[int]) -> Forest:
        """Threads of ``uids`` by ``REFERENCES`` or ``ORDEREDSUBJECT``, in terms of ``numbers``."""

    # --- messages for programs

    async def rows(
        self, folder_id: int, first_uid: int = 1, *, saved_since: int = 0, limit: int | None = None
    ) -> Sequence[Row]:
        """Messages of a folder by ascending UID; ``saved_since`` in seconds."""

    async def listing(
        self, folder_id: int, *, uid: int | None = None, unread: bool = False, limit: int | None = None
    ) -> Sequence[ListedMessage]:
        """Messages of a folder with sender, subject and preview, the latest first; ``uid``: only this one."""

    async def find(self, registration: str, message_id: str) -> Sequence[ListedMessage]:
        """Every place of a message in the folders of an account."""

    async def header(self, message_id: str) -> MessageHeader | None:
        """Header values of a message in any folder; None if its content is gone."""

    async def markdown(self, message_id: str) -> bytes:
        """The canonical file. Raises ``NO_SUCH_MESSAGE`` or ``UNREADABLE``."""

    async def octets(self, message_id: str) -> bytes:
        """Exactly what arrived."""

    async def attachment(self, sha256: str) -> bytes: ...


class Upload(Protocol):
    """A message on its way in, in memory while it is small."""

    @property
    def size(self) -> int: ...

    async def write(self, octets: bytes) -> None: ...

    def close(self) -> None:
        """Discard it, unless it was appended."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    upload: Upload
    flags: int = 0
    keywords: Sequence[str] = ()
    internal_date: int | None = None  # seconds; None: now


class MailboxWriter(Protocol):
    """Changes to the mail of one account; the journal names the actor. Each method is one commit: when it returns, the
    change is durable and every reader of the process shows it; if it raises, nothing was changed."""

    @property
    def address(self) -> str: ...

    # --- messages

    def upload(self) -> Upload:
        """A place for the octets of a new message."""

    async def check_quota(self, octets: int, messages: int) -> None:
        """Raise ``OVER_QUOTA`` if the account has no room for so many more."""

    async def append(
        self, folder: Folder, messages: Sequence[NewMessage], replaced: tuple[int, Sequence[int]] | None = None
    ) -> Sequence[Placed]:
        """Add messages, all or none. ``replaced``: folder id and UIDs of messages that are removed in the same commit
        (RFC 8508). The uploads are closed in any case."""

    async def change_flags(
        self,
        folder_id: int,
        uids: Sequence[int],
        how: FlagChange,
        flags: int = 0,
        keywords: Sequence[str] = (),
        unchanged_since: int | None = None,
    ) -> FlagsChanged:
        """Add, remove or set flags and keywords (RFC 3501 6.4.6, RFC 7162 3.1.3)."""

    async def copy(self, folder_id: int, uids: Sequence[int], destination: str) -> Copied: ...

    async def move(self, folder_id: int, uids: Sequence[int], destination: str) -> Copied: ...

    async def expunge(self, folder_id: int, uids: Sequence[int] | None = None) -> Expunged:
        """Remove the messages flagged deleted; with ``uids`` only those among them (RFC 4315 2.1)."""

    async def send(self, octets: bytes, recipients: Sequence[str]) -> Delivery:
        """Deliver a message to accounts of this store, with a copy in the Sent folder."""

    # --- folders

    async def create_folder(self, name: str, special_use: str = "") -> Folder:
        """Create a folder and the parents it lacks."""

    async def rename_folder(self, name: str, new_name: str) -> Folder:
        """Rename a folder with its children; INBOX stays and gives away its messages (RFC 3501 6.3.5)."""

    async def delete_folder(self, name: str) -> None: ...

    async def subscribe(self, name: str) -> bool:
        """True if that changed anything."""

    async def unsubscribe(self, name: str) -> bool: ...
