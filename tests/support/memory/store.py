"""Accounts, folders and messages as dicts and lists, with the numbers that a store would give them."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from adapter.read_model.interface import STANDARD_FOLDERS, Folder, FolderListener
from protocol.errors import MailError, Reason
from protocol.imap.flags import DELETED, DRAFT, SEEN, FlagTable
from protocol.imap.session_view import FolderChange, Uids

NOW = 1_800_000_000
_SYSTEM_BITS = 2 * DRAFT - 1


@dataclass(frozen=True)
class MemoryMessage:
    uid: int
    octets: bytes
    flags: int
    keywords: tuple[str, ...]  # sorted, each once whatever its case
    modseq: int
    internal_date: int
    email_id: str


class MemorySubscription:
    def __init__(self, folder: MemoryFolder, listener: FolderListener) -> None:
        self._folder = folder
        self.listener = listener

    def close(self) -> None:
        self._folder.subscriptions = [each for each in self._folder.subscriptions if each is not self]


class MemoryFolder:
    """The :class:`~adapter.read_model.interface.OpenFolder` of the memory store."""

    def __init__(self, folder_id: int, name: str, special_use: str, uidvalidity: int) -> None:
        self._id = folder_id
        self.name = name
        self.special_use = special_use
        self._uidvalidity = uidvalidity
        self._uidnext = 1
        self._modseq = 1
        self._table = FlagTable()
        self.messages: dict[int, MemoryMessage] = {}
        self.expunged: list[tuple[int, list[int]]] = []  # mod-sequence, UIDs
        self.first_unannounced = 1  # for \Recent
        self.subscriptions: list[MemorySubscription] = []

    @property
    def id(self) -> int:
        return self._id

    @property
    def uidvalidity(self) -> int:
        return self._uidvalidity

    @property
    def uidnext(self) -> int:
        return self._uidnext

    @property
    def modseq(self) -> int:
        return self._modseq

    @property
    def uids(self) -> Uids:
        return array("I", self.messages)

    @property
    def flags(self) -> FlagTable:
        return self._table

    def mask(self, message: MemoryMessage) -> int:
        return message.flags & _SYSTEM_BITS | self._table.mask(message.keywords)

    def masks(self, uids: Sequence[int]) -> Sequence[int]:
        return [self.mask(self.messages[uid]) if uid in self.messages else 0 for uid in uids]

    def modseqs(self, uids: Sequence[int]) -> Sequence[int]:
        return [self.messages[uid].modseq if uid in self.messages else 0 for uid in uids]

    def sizes(self, uids: Sequence[int]) -> Sequence[int]:
        return [len(self.messages[uid].octets) if uid in self.messages else 0 for uid in uids]

    def first_unseen(self) -> int:
        unseen = (number for number, each in enumerate(self.messages.values(), 1) if not each.flags & SEEN)
        return next(unseen, 0)

    def changed_since(self, modseq: int) -> list[int]:
        return [message.uid for message in self.messages.values() if message.modseq > modseq]

    def subscribe(self, listener: FolderListener) -> MemorySubscription:
        subscription = MemorySubscription(self, listener)
        self.subscriptions.append(subscription)
        return subscription

    # --- changes ---------------------------------------------------------------------------------------------------

    def add(self, messages: Iterable[MemoryMessage]) -> list[MemoryMessage]:
        """Add messages under new UIDs, as one change."""
        self._modseq += 1
        added = []
        for message in messages:
            added.append(replace(message, uid=self._uidnext, modseq=self._modseq))
            self.messages[self._uidnext] = added[-1]
            self._table.mask(message.keywords)
            self._uidnext += 1
        self._notify()
        return added

    def change(self, uids: Iterable[int], new: Callable[[MemoryMessage], MemoryMessage]) -> None:
        self._modseq += 1
        flagged = list(uids)
        for uid in flagged:
            self.messages[uid] = replace(new(self.messages[uid]), modseq=self._modseq)
        self._notify(flagged=flagged)

    def remove(self, uids: Iterable[int]) -> list[int]:
        gone = [uid for uid in uids if uid in self.messages]
        if gone:
            self._modseq += 1
            for uid in gone:
                del self.messages[uid]
            self.expunged.append((self._modseq, gone))
            self._notify(expunged=gone)
        return gone

    def delete(self) -> None:
        for subscription in list(self.subscriptions):
            subscription.listener.folder_removed()

    def _notify(self, expunged: Sequence[int] = (), flagged: Sequence[int] = ()) -> None:
        change = FolderChange(self.uids, self._modseq, expunged, flagged)
        for subscription in list(self.subscriptions):
            subscription.listener.folder_changed([change])

    def row(self, registration: str) -> Folder:
        """The folder as STATUS and LIST see it."""
        messages = self.messages.values()
        return Folder(
            self._id,
            registration,
            registration,
            self.name,
            self.special_use,
            self._uidvalidity,
            self._uidnext,
            self._modseq,
            len(self.messages),
            sum(not message.flags & SEEN for message in messages),
            sum(bool(message.flags & DELETED) for message in messages),
            sum(len(message.octets) for message in messages),
        )


@dataclass
class MemoryAccount:
    address: str
    folders: dict[str, MemoryFolder] = field(default_factory=dict)
    subscriptions: set[str] = field(default_factory=set)

    def folder(self, name: str) -> MemoryFolder:
        if name not in self.folders:
            raise MailError(Reason.NO_SUCH_FOLDER, name)
        return self.folders[name]


class MemoryStore:
    def __init__(self, *addresses: str) -> None:
        self._ids = itertools.count(1)
        self._uidvalidity = itertools.count(NOW)
        self._message_numbers = itertools.count(1)
        self.accounts: dict[str, MemoryAccount] = {}
        for address in addresses:
            account = self.accounts[address] = MemoryAccount(address)
            for name, (_, special_use) in STANDARD_FOLDERS.items():
                self.create(account, name, special_use)
                account.subscriptions.add(name)

    def account(self, address: str) -> MemoryAccount:
        if address not in self.accounts:
            raise MailError(Reason.NO_SUCH_ADDRESS, address)
        return self.accounts[address]

    def create(self, account: MemoryAccount, name: str, special_use: str = "") -> MemoryFolder:
        folder = MemoryFolder(next(self._ids), name, special_use, next(self._uidvalidity))
        account.folders[name] = folder
        return folder

    def folder(self, folder_id: int) -> MemoryFolder:
        for account in self.accounts.values():
            for folder in account.folders.values():
                if folder.id == folder_id:
                    return folder
        raise MailError(Reason.NO_SUCH_FOLDER, str(folder_id))

    def new_message(
        self, octets: bytes, flags: int = 0, keywords: Sequence[str] = (), internal_date: int | None = None
    ) -> MemoryMessage:
        """A message without a place yet."""
        date = NOW if internal_date is None else internal_date
        number = next(self._message_numbers)
        return MemoryMessage(0, octets, flags, sorted_keywords(keywords), 0, date, f"msg-{number}")


def sorted_keywords(keywords: Iterable[str]) -> tuple[str, ...]:
    unique = {keyword.casefold(): keyword for keyword in keywords}
    return tuple(unique[key] for key in sorted(unique))
