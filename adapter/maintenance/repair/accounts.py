"""Repair accounts: registration, mailbox directory and password, any of which may be missing.

Each is read again first: a process that ignores the service lock may have changed it since the inspection.
"""

from __future__ import annotations

import contextlib
import os

from adapter.accounts.credentials import Credentials
from adapter.maintenance.findings import Finding, Outcome
from adapter.maintenance.repair import decisions
from adapter.maintenance.repair.folders import FolderRepair
from adapter.store import disk, layout, names, quarantine
from adapter.store.effects import CreateFolder, SetRegistration, Subscribe
from adapter.store.folder_identity import Identity
from adapter.store.queries.mailboxes import Folder
from adapter.transport import ids
from protocol.errors import MailError


def directory(repair: FolderRepair, finding: Finding) -> Outcome:
    """Repair a directory without registration, or a registration without directory."""
    entry = finding.mailbox
    is_owned = bool(repair.owners(entry))
    if finding.kind == "registration-directory-missing":
        if not is_owned:
            return Outcome(finding, "repaired", "the registration is already gone")
        with repair.target.directories.open(layout.mailbox_directory(entry), create=True):
            pass
        return Outcome(finding, "repaired", "created the directory")
    if is_owned or not repair.exists(layout.mailbox_directory(entry)):
        return Outcome(finding, "repaired", "already registered" if is_owned else "already gone")
    address, status = _owner(repair, entry)
    has_password = status == "active" and bool(_password_lines(repair, address))
    if not has_password and not _has_mail(repair, entry):
        where = quarantine.move(repair.target.directories, layout.MAILBOXES, entry, "no registration owns it")
        return Outcome(finding, "repaired", f"moved to {where}")
    registration = _register(repair, address, status, entry)
    return Outcome(finding, "repaired", f"registered {address} as {registration}, {status}")


def _owner(repair: FolderRepair, entry: str) -> tuple[str, str]:
    """The address in the name of a directory, and the status for its registration."""
    named = names.owner_of_entry(entry)
    try:
        address = names.normalise_address(named)
    except MailError:
        return named, "stashed"  # not a valid address, but the mail is kept
    is_own = names.address_entry(address) == entry
    return address, "active" if is_own and not _is_registered(repair, address) else "stashed"


def register(repair: FolderRepair, address: str) -> None:
    """Register an account known only from its mail or its password."""
    _register(repair, address, "active", names.address_entry(address))


def _register(repair: FolderRepair, address: str, status: str, entry: str) -> str:
    """Register an account and create its missing standard folders in one record; existing ones get their rows later.

    If the process crashes now, the next run finds the directories that are missing.
    """
    inside = _identities(repair, entry)
    taken = {row[0] for row in repair.query("SELECT registration_id FROM mailbox_registrations")}
    on_disk = {identity.registration for identity in inside.values() if identity is not None}
    registration = min(on_disk - taken, default="") or ids.registration_id()
    uses = {identity.special_use for identity in inside.values() if identity is not None}
    missing_folders = [
        Folder(ids.folder_id(), registration, entry, name, use, repair.uidvalidity() + number)
        for number, (name, (its_entry, use)) in enumerate(names.STANDARD_FOLDERS.items())
        if status == "active" and its_entry not in inside and (not use or use not in uses)
    ]
    subscribed = [Subscribe(registration, folder.name, on=True) for folder in missing_folders]
    repair.target.commit(
        [
            SetRegistration(registration, address, status, entry),
            *(CreateFolder.of(folder) for folder in missing_folders),
            *subscribed,
        ]
    )
    with repair.target.directories.open(layout.mailbox_directory(entry), create=True):
        pass
    for folder in missing_folders:
        repair.make_path(folder)
    return registration


def credentials(repair: FolderRepair, finding: Finding) -> Outcome:
    """Repair a password without a registration. A removed account must not come back by itself."""
    address = finding.subject
    if _is_registered(repair, address):
        return Outcome(finding, "repaired", "registered with its directory")
    if not _password_lines(repair, address):
        return Outcome(finding, "repaired", "already gone")
    decided = repair.decisions.get(f"{finding.kind}:{address}")
    if decided == decisions.REMOVE:
        return Outcome(finding, "repaired", f"password moved to {_quarantine_password(repair, address)}")
    if decided is None and (why := undecidable(repair, finding)):
        return Outcome(finding, "conflict", why, decisions.offer(finding))
    register(repair, address)
    return Outcome(finding, "repaired", f"registered {address} with its existing password")


def undecidable(repair: FolderRepair, finding: Finding) -> str:
    """The reason why a password without a registration is left to a person; "" if repair decides."""
    was_registered = repair.query("SELECT 1 FROM mailbox_registrations WHERE address = ?", finding.subject)
    return "the address was removed, but its password still exists" if was_registered else ""


def _quarantine_password(repair: FolderRepair, address: str) -> str:
    """Move a password line to quarantine, readable by its owner only; return its path."""
    directories = repair.target.directories
    kept = f"{os.urandom(6).hex()}-{layout.CREDENTIALS_FILE}"
    own = _password_lines(repair, address)
    with directories.open(layout.QUARANTINE, create=True) as target:
        data = "".join(f"{line}\n" for line in own).encode("utf-8", "surrogateescape")
        disk.write_new(target, kept, data, mode=0o600, sync=True)
    with Credentials.open(directories.root) as passwords:
        passwords.remove(address)
    return layout.absolute(*layout.QUARANTINE, kept)


def _password_lines(repair: FolderRepair, address: str) -> list[str]:
    """The lines of the credentials file for an address."""
    try:
        with repair.target.directories.open(layout.CREDENTIALS) as directory:
            data = disk.read_file(directory, layout.CREDENTIALS_FILE)
    except OSError:
        return []
    return [line for line in data.decode("utf-8", "surrogateescape").splitlines() if _user(line) == address]


def _user(line: str) -> str:
    with contextlib.suppress(MailError):
        return names.normalise_address(line.partition(":")[0])
    return ""


def _is_registered(repair: FolderRepair, address: str) -> bool:
    rows = repair.query(
        "SELECT 1 FROM mailbox_registrations WHERE address = ? AND status IN ('active', 'inactive')", address
    )
    return bool(rows)


def _has_mail(repair: FolderRepair, entry: str) -> bool:
    """True if any directory of a mailbox has an identity or shows messages."""
    where = layout.mailbox_directory(entry)
    identities = _identities(repair, entry)
    return any(identity is not None or repair.links((*where, name)) for name, identity in identities.items())


def _identities(repair: FolderRepair, entry: str) -> dict[str, Identity | None]:
    """The directories of a mailbox with their identities."""
    try:
        with repair.target.directories.open(layout.mailbox_directory(entry)) as parent, os.scandir(parent) as entries:
            inside = sorted(each.name for each in entries if each.is_dir(follow_symlinks=False))
    except OSError:
        return {}
    return {name: repair.identity_at((*layout.mailbox_directory(entry), name)) for name in inside}
