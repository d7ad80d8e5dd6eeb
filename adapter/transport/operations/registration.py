"""Registration and deregistration of addresses.

``safe`` refuses an address that is registered and gives an inactive one its mail back. ``force`` takes whatever is
there over, half-made leftovers included. ``stash`` sets an existing mailbox aside, whole, and starts an empty one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from adapter.store import effects, names
from adapter.store.effects import SetRegistration
from adapter.store.queries import content_rows, mailboxes
from adapter.store.queries.mailboxes import Registration
from adapter.transport import ids
from adapter.transport.operations.base import Operation, Plan
from adapter.transport.operations.folders import discard_folder, make_folder
from adapter.transport.operations.messages import drop_content
from protocol.errors import MailError, Reason

RegisterMode = Literal["safe", "force", "stash"]
DeregisterMode = Literal["deactivate", "stash", "purge"]


@dataclass(frozen=True, slots=True)
class Register(Operation[Registration]):
    name = "register"
    address: str
    mode: RegisterMode = "safe"

    def addresses(self) -> Iterable[str]:
        return (self.address,)

    def plan(self, plan: Plan) -> Registration:
        existing = current_registration(plan, self.address)
        if existing is not None:
            if existing.status == "active" and self.mode == "safe":
                raise MailError(Reason.ADDRESS_EXISTS, self.address)
            if self.mode == "stash":
                stash(plan, existing)
            else:
                plan.emit(SetRegistration(existing.id, self.address, "active", existing.directory))
                self._complete(plan, existing)
                return plan.registration(self.address)
        entry = names.address_entry(self.address)
        plan.emit(SetRegistration(ids.registration_id(), self.address, "active", entry))
        registration = plan.registration(self.address)
        self._complete(plan, registration)
        return registration

    def _complete(self, plan: Plan, registration: Registration) -> None:
        """Give the account every standard folder it lacks, subscribed; one that was renamed still has its use."""
        folders = mailboxes.folders(plan.connection, registration.id)
        have = {folder.name for folder in folders} | {folder.special_use for folder in folders if folder.special_use}
        for name, (_, special_use) in names.STANDARD_FOLDERS.items():
            if name not in have and special_use not in have:
                make_folder(plan, registration, name, special_use)
                plan.emit(effects.Subscribe(registration.id, name, on=True))


@dataclass(frozen=True, slots=True)
class Deregister(Operation[None]):
    """``deactivate`` keeps the mail in place, ``stash`` sets it aside, ``purge`` deletes it permanently."""

    name = "deregister"
    address: str
    mode: DeregisterMode = "deactivate"

    def addresses(self) -> Iterable[str]:
        return (self.address,)

    def plan(self, plan: Plan) -> None:
        existing = current_registration(plan, self.address)
        if existing is None or (self.mode == "deactivate" and existing.status != "active"):
            raise MailError(Reason.NO_SUCH_ADDRESS, self.address)
        if self.mode == "deactivate":
            plan.emit(SetRegistration(existing.id, self.address, "inactive", existing.directory))
        elif self.mode == "stash":
            stash(plan, existing)
        else:
            shown = {
                row.message_id
                for folder in mailboxes.folders(plan.connection, existing.id)
                for row in mailboxes.rows(plan.connection, folder.id)
            }
            folders = mailboxes.folders(plan.connection, existing.id)
            lost = content_rows.lost_only_from(plan.connection, {folder.id for folder in folders})
            for folder in folders:
                discard_folder(plan, folder)
            plan.emit(SetRegistration(existing.id, self.address, "purged", existing.directory))
            gone = shown.intersection(content_rows.unlinked(plan.connection, plan.seconds, -1)) | lost
            if gone:
                drop_content(plan, sorted(gone))


def current_registration(plan: Plan, address: str) -> Registration | None:
    """The registration that occupies the address's directory: active, or inactive with its mail in place."""
    for registration in mailboxes.registrations_of(plan.connection, address):
        if registration.status in ("active", "inactive"):
            return registration
    return None


def stash(plan: Plan, registration: Registration) -> None:
    aside = names.stash_entry(registration.address, registration.id)
    plan.emit(
        SetRegistration(registration.id, registration.address, "stashed", aside, moved_from=registration.directory)
    )
