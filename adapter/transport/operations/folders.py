"""Operations on folders: create, rename, delete, subscribe."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from adapter.store import effects, names
from adapter.store.queries import mailboxes
from adapter.store.queries.mailboxes import Folder, Registration
from adapter.transport import ids
from adapter.transport.operations.base import Operation, Plan
from adapter.transport.operations.messages import move_messages, remove_messages
from protocol.errors import MailError, Reason


@dataclass(frozen=True, slots=True)
class CreateFolder(Operation[Folder]):
    """Create a folder and the ancestors it lacks (RFC 3501 6.3.3, RFC 6154 3)."""

    name = "create-folder"
    address: str
    folder: str
    special_use: str = ""

    def addresses(self) -> Iterable[str]:
        return (self.address,)

    def plan(self, plan: Plan) -> Folder:
        registration = plan.registration(self.address)
        name = names.normalise_folder(self.folder)
        existing = {folder.name: folder for folder in mailboxes.folders(plan.connection, registration.id)}
        if name in existing:
            raise MailError(Reason.FOLDER_EXISTS, name)
        if self.special_use and any(folder.special_use == self.special_use for folder in existing.values()):
            raise MailError(Reason.FOLDER_EXISTS, f"there is a {self.special_use} folder already")
        for ancestor in names.parents(name):
            if ancestor not in existing:
                make_folder(plan, registration, ancestor)
        return make_folder(plan, registration, name, self.special_use)


def make_folder(plan: Plan, registration: Registration, name: str, special_use: str = "") -> Folder:
    folder = Folder(
        ids.folder_id(), registration.id, registration.directory, name, special_use, plan.next_uidvalidity()
    )
    plan.emit(effects.CreateFolder.of(folder))
    return folder


@dataclass(frozen=True, slots=True)
class RenameFolder(Operation[Folder]):
    """Rename a folder with its children; INBOX keeps existing and gives away its messages (RFC 3501 6.3.5)."""

    name = "rename-folder"
    address: str
    folder: str
    to: str

    def addresses(self) -> Iterable[str]:
        return (self.address,)

    def plan(self, plan: Plan) -> Folder:
        registration = plan.registration(self.address)
        old, new = names.normalise_folder(self.folder), names.normalise_folder(self.to)
        existing = {folder.name: folder for folder in mailboxes.folders(plan.connection, registration.id)}
        below = [name for name in existing if name.startswith(old + names.DELIMITER)]
        if old not in existing and not below:
            raise MailError(Reason.NO_SUCH_FOLDER, old)
        if new in existing or new == old:  # a name that only has children is renamed to another, not to itself
            raise MailError(Reason.FOLDER_EXISTS, new)
        if new.startswith(old + names.DELIMITER) and old != names.INBOX:  # INBOX stays: only its messages move
            raise MailError(Reason.NOT_ALLOWED, "a folder cannot move below itself")
        for ancestor in names.parents(new):
            if ancestor not in existing:
                make_folder(plan, registration, ancestor)
        if old == names.INBOX:
            return self._rename_inbox(plan, registration, existing[old], new)
        moved = [*([old] if old in existing else []), *below]
        targets = [names.normalise_folder(new + name[len(old) :]) for name in moved]
        if taken := set(targets) & (existing.keys() - set(moved)):
            raise MailError(Reason.FOLDER_EXISTS, min(taken))
        for name, target in zip(moved, targets):
            plan.emit(effects.RenameFolder.of(existing[name], target))
        return plan.folder(self.address, targets[0])

    def _rename_inbox(self, plan: Plan, registration: Registration, inbox: Folder, new: str) -> Folder:
        make_folder(plan, registration, new)
        uids = [row.uid for row in mailboxes.rows(plan.connection, inbox.id)]
        move_messages(plan, self.address, inbox, uids, new)
        return plan.folder(self.address, new)


@dataclass(frozen=True, slots=True)
class DeleteFolder(Operation[None]):
    """Delete a folder and its messages; its children stay (RFC 3501 6.3.4)."""

    name = "delete-folder"
    address: str
    folder: str

    def addresses(self) -> Iterable[str]:
        return (self.address,)

    def plan(self, plan: Plan) -> None:
        folder = plan.folder(self.address, self.folder)
        if folder.name == names.INBOX:
            raise MailError(Reason.NOT_ALLOWED, "INBOX cannot be deleted")
        discard_folder(plan, folder)


def discard_folder(plan: Plan, folder: Folder) -> None:
    uids = [row.uid for row in mailboxes.rows(plan.connection, folder.id)]
    remove_messages(plan, folder, uids)
    plan.emit(effects.RemoveFolder.of(folder))


@dataclass(frozen=True, slots=True)
class Subscribe(Operation[bool]):
    """Subscribe or unsubscribe; the folder need not exist (RFC 3501 6.3.6, 6.3.7). True if that changed anything."""

    name = "subscribe"
    address: str
    folder: str
    on: bool = True

    def addresses(self) -> Iterable[str]:
        return (self.address,)

    def plan(self, plan: Plan) -> bool:
        registration = plan.registration(self.address)
        name = names.normalise_folder(self.folder)
        changes = (name in mailboxes.subscriptions(plan.connection, registration.id)) != self.on
        if changes:
            plan.emit(effects.Subscribe(registration.id, name, self.on))
        return changes
