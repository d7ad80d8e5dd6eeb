"""The :class:`~adapter.read_model.interface.MailboxWriter` over the memory store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from adapter.read_model.interface import (
    DELIMITER,
    INBOX,
    SETTABLE_FLAGS,
    Copied,
    Delivery,
    Expunged,
    Flag,
    FlagChange,
    FlagsChanged,
    Folder,
    NewMessage,
    Placed,
    normalise_folder,
)
from protocol.errors import MailError, Reason
from protocol.imap.flags import DELETED, SEEN
from tests.support.memory.reader import MemoryReader
from tests.support.memory.store import MemoryAccount, MemoryFolder, MemoryMessage, MemoryStore, sorted_keywords


class MemoryUpload:
    def __init__(self) -> None:
        self.octets = b""

    @property
    def size(self) -> int:
        return len(self.octets)

    async def write(self, octets: bytes) -> None:
        self.octets += octets

    def close(self) -> None:
        pass


class MemoryWriter:
    def __init__(self, store: MemoryStore, reader: MemoryReader, address: str) -> None:
        self._store = store
        self._reader = reader
        self.address = address

    @property
    def _account(self) -> MemoryAccount:
        return self._store.account(self.address)

    # --- messages --------------------------------------------------------------------------------------------------

    def upload(self) -> MemoryUpload:
        return MemoryUpload()

    async def check_quota(self, octets: int, messages: int) -> None:
        if self._reader.quotas is not None:
            folders = list((await self._reader.status(self.address)).values())
            self._reader.quotas.of(self.address).check(folders, octets, messages)

    async def append(
        self, folder: Folder, messages: Sequence[NewMessage], replaced: tuple[int, Sequence[int]] | None = None
    ) -> Sequence[Placed]:
        target = self._account.folder(folder.name)
        archived = Flag.ARCHIVED if target.special_use == "\\Archive" else 0
        placed = []
        for message in messages:
            assert isinstance(message.upload, MemoryUpload)
            flags = message.flags & SETTABLE_FLAGS | archived
            new = self._store.new_message(message.upload.octets, flags, message.keywords, message.internal_date)
            (added,) = target.add([new])
            placed.append(Placed(self.address, target.id, target.name, target.uidvalidity, added.uid, added.modseq))
        if replaced is not None:
            self._store.folder(replaced[0]).remove(replaced[1])
        return placed

    async def change_flags(
        self,
        folder_id: int,
        uids: Sequence[int],
        how: FlagChange,
        flags: int = 0,
        keywords: Sequence[str] = (),
        unchanged_since: int | None = None,
    ) -> FlagsChanged:
        folder = self._own(folder_id)
        settable = flags & SETTABLE_FLAGS

        def changed(message: MemoryMessage) -> MemoryMessage:
            old, words = message.flags, message.keywords
            if how == "set":
                return replace(message, flags=old & Flag.ARCHIVED | settable, keywords=sorted_keywords(keywords))
            if how == "add":
                return replace(message, flags=old | settable, keywords=sorted_keywords([*keywords, *words]))
            removed = {keyword.casefold() for keyword in keywords}
            kept = tuple(word for word in words if word.casefold() not in removed)
            return replace(message, flags=old & ~settable, keywords=kept)

        named = [folder.messages[uid] for uid in uids if uid in folder.messages]
        modified = [each.uid for each in named if unchanged_since is not None and each.modseq > unchanged_since]
        candidates = [each for each in named if each.uid not in modified]
        affected = [each.uid for each in candidates if changed(each) != each]
        if affected:
            folder.flags.mask(keywords if how != "remove" else ())
            folder.change(affected, changed)
        after = [folder.messages[each.uid] for each in candidates]
        states = [(each.uid, each.flags, " ".join(each.keywords)) for each in after]
        return FlagsChanged(
            folder.modseq,
            [state for state in states if state[0] in affected],
            [state for state in states if state[0] not in affected],
            modified,
        )

    async def copy(self, folder_id: int, uids: Sequence[int], destination: str) -> Copied:
        source = self._own(folder_id)
        size = sum(source.sizes(uids))
        await self.check_quota(size, len([uid for uid in uids if uid in source.messages]))
        return self._copy(source, uids, destination)

    async def move(self, folder_id: int, uids: Sequence[int], destination: str) -> Copied:
        source = self._own(folder_id)
        return self._move(source, uids, destination)

    def _copy(self, source: MemoryFolder, uids: Sequence[int], destination: str) -> Copied:
        messages = [source.messages[uid] for uid in uids if uid in source.messages]
        target = self._account.folder(normalise_folder(destination))
        if not messages:
            return Copied(target.uidvalidity, [], target.modseq, target.id)
        archived = int(Flag.ARCHIVED) if target.special_use == "\\Archive" else 0
        copies = target.add(replace(each, flags=each.flags & ~Flag.ARCHIVED | archived) for each in messages)
        pairs = [(old.uid, new.uid) for old, new in zip(messages, copies, strict=True)]
        return Copied(target.uidvalidity, pairs, target.modseq, target.id)

    def _move(self, source: MemoryFolder, uids: Sequence[int], destination: str) -> Copied:
        copied = self._copy(source, uids, destination)
        source.remove([uid for uid, _ in copied.uids])
        return copied

    async def expunge(self, folder_id: int, uids: Sequence[int] | None = None) -> Expunged:
        folder = self._own(folder_id)
        chosen = [
            message.uid
            for message in folder.messages.values()
            if message.flags & DELETED and (uids is None or message.uid in uids)
        ]
        removed = folder.remove(chosen)
        return Expunged(folder.modseq, removed)

    async def send(self, octets: bytes, recipients: Sequence[str]) -> Delivery:
        message = self._store.new_message(octets)
        outcome: dict[str, Placed | MailError] = {}
        for address in recipients:
            inbox = self._store.account(address).folder(INBOX)
            (added,) = inbox.add([message])
            outcome[address] = Placed(address, inbox.id, INBOX, inbox.uidvalidity, added.uid, added.modseq)
        self._account.folder("Sent").add([replace(message, flags=SEEN)])
        return Delivery(message.email_id, outcome, None)

    # --- folders ---------------------------------------------------------------------------------------------------

    async def create_folder(self, name: str, special_use: str = "") -> Folder:
        name = normalise_folder(name)
        existing = self._account.folders
        if name in existing:
            raise MailError(Reason.FOLDER_EXISTS, name)
        if special_use and any(folder.special_use == special_use for folder in existing.values()):
            raise MailError(Reason.FOLDER_EXISTS, special_use)
        self._create_parents(name)
        return self._store.create(self._account, name, special_use).row(self.address)

    async def rename_folder(self, name: str, new_name: str) -> Folder:
        old, new = normalise_folder(name), normalise_folder(new_name)
        existing = self._account.folders
        below = [each for each in existing if each.startswith(old + DELIMITER)]
        if old not in existing and not below:
            raise MailError(Reason.NO_SUCH_FOLDER, old)
        if new in existing or new == old:
            raise MailError(Reason.FOLDER_EXISTS, new)
        if new.startswith(old + DELIMITER) and old != INBOX:
            raise MailError(Reason.NOT_ALLOWED, "a folder cannot move below itself")
        self._create_parents(new)
        if old == INBOX:
            self._store.create(self._account, new)
            self._move(existing[INBOX], list(existing[INBOX].messages), new)
            return existing[new].row(self.address)
        moved = [*([old] if old in existing else []), *below]
        for each in moved:
            folder = existing.pop(each)
            folder.name = new + each[len(old) :]
            existing[folder.name] = folder
        return existing[new + moved[0][len(old) :]].row(self.address)

    async def delete_folder(self, name: str) -> None:
        name = normalise_folder(name)
        folder = self._account.folder(name)
        if name == INBOX:
            raise MailError(Reason.NOT_ALLOWED, "INBOX cannot be deleted")
        folder.remove(list(folder.messages))
        del self._account.folders[name]
        folder.delete()

    async def subscribe(self, name: str) -> bool:
        return self._set_subscription(name, on=True)

    async def unsubscribe(self, name: str) -> bool:
        return self._set_subscription(name, on=False)

    def _set_subscription(self, name: str, *, on: bool) -> bool:
        name = normalise_folder(name)
        changes = (name in self._account.subscriptions) != on
        (self._account.subscriptions.add if on else self._account.subscriptions.discard)(name)
        return changes

    def _own(self, folder_id: int) -> MemoryFolder:
        for folder in self._account.folders.values():
            if folder.id == folder_id:
                return folder
        raise MailError(Reason.NO_SUCH_FOLDER, str(folder_id))

    def _create_parents(self, name: str) -> None:
        levels = name.split(DELIMITER)
        for count in range(1, len(levels)):
            parent = DELIMITER.join(levels[:count])
            if parent not in self._account.folders:
                self._store.create(self._account, parent)
