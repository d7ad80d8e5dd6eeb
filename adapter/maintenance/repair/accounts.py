"""Mending accounts: the registration, the mailbox's directory and the password, of which any may be missing.

Each is read again first: who does not know the service lock may have changed it since it was looked at.
"""

from __future__ import annotations

import contextlib
import os

from adapter.accounts.credentials import Credentials
from adapter.maintenance import quarantine
from adapter.maintenance.findings import Finding, Outcome
from adapter.maintenance.repair import decisions
from adapter.maintenance.repair.folders import Mender
from adapter.store import disk, layout, names
from adapter.store.effects import CreateFolder, SetRegistration, Subscribe
from adapter.store.folder_identity import Identity
from adapter.store.queries.mailboxes import Folder
from adapter.transport import ids
from protocol.errors import MailError


def directory(mender: Mender, finding: Finding) -> Outcome:
    """A directory that no registration owns, or a registration without one."""
    entry = finding.mailbox
    is_owned = bool(mender.owners(entry))
    if finding.kind == "registration-directory-missing":
        if not is_owned:
            return Outcome(finding, "repaired", "nobody's any more")
        with mender.state.directories.open(layout.mailbox_directory(entry), create=True):
            pass
        return Outcome(finding, "repaired", "made the directory")
    if is_owned or not mender.exists(layout.mailbox_directory(entry)):
        return Outcome(finding, "repaired", "registered already" if is_owned else "gone already")
    address, status = _whose(mender, entry)
    has_password = status == "active" and bool(_password_lines(mender, address))
    if not has_password and not _has_mail(mender, entry):
        where = quarantine.move(mender.state.directories, layout.MAILBOXES, entry, "no registration owns it")
        return Outcome(finding, "repaired", f"moved to {where}")
    registration = _register(mender, address, status, entry)
    return Outcome(finding, "repaired", f"registered {address} as {registration}, {status}")


def _whose(mender: Mender, entry: str) -> tuple[str, str]:
    """The address a directory tells, and the status that its registration can have."""
    told = names.owner_of_entry(entry)
    try:
        address = names.normalise_address(told)
    except MailError:
        return told, "stashed"  # nobody's, but mail all the same
    is_own = names.address_entry(address) == entry
    return address, "active" if is_own and not _is_registered(mender, address) else "stashed"


def register(mender: Mender, address: str) -> None:
    """An account that only its mail or its password tells of."""
    _register(mender, address, "active", names.address_entry(address))


def _register(mender: Mender, address: str, status: str, entry: str) -> str:
    """One record gives an account its registration and the standard folders it lacks; those on disk get rows later.

    What is missing on disk if the process dies now is found by the next run.
    """
    inside = _identities(mender, entry)
    taken = {row[0] for row in mender.query("SELECT registration_id FROM mailbox_registrations")}
    told = {known.registration for known in inside.values() if known is not None}
    registration = min(told - taken, default="") or ids.registration_id()
    uses = {known.special_use for known in inside.values() if known is not None}
    lacking = [
        Folder(ids.folder_id(), registration, entry, name, use, mender.uidvalidity() + number)
        for number, (name, (its_entry, use)) in enumerate(names.STANDARD_FOLDERS.items())
        if status == "active" and its_entry not in inside and (not use or use not in uses)
    ]
    subscribed = [Subscribe(registration, folder.name, on=True) for folder in lacking]
    mender.state.commit(
        [
            SetRegistration(registration, address, status, entry),
            *(CreateFolder.of(folder) for folder in lacking),
            *subscribed,
        ]
    )
    with mender.state.directories.open(layout.mailbox_directory(entry), create=True):
        pass
    for folder in lacking:
        mender.make_path(folder)
    return registration


def credentials(mender: Mender, finding: Finding) -> Outcome:
    """A password without a registration. One that was removed must not come back by itself."""
    address = finding.subject
    if _is_registered(mender, address):
        return Outcome(finding, "repaired", "registered with its directory")
    if not _password_lines(mender, address):
        return Outcome(finding, "repaired", "gone already")
    decided = mender.decisions.get(f"{finding.kind}:{address}")
    if decided == decisions.REMOVE:
        return Outcome(finding, "repaired", f"its line moved to {_set_aside_password(mender, address)}")
    if decided is None and (why := undecidable(mender, finding)):
        return Outcome(finding, "conflict", why, decisions.offer(finding))
    register(mender, address)
    return Outcome(finding, "repaired", f"registered {address}, whose password was there already")


def undecidable(mender: Mender, finding: Finding) -> str:
    """Why a password without a registration is left to a person; empty if it is not."""
    known = mender.query("SELECT 1 FROM mailbox_registrations WHERE address = ?", finding.subject)
    return "the address was removed, its password is still there" if known else ""


def _set_aside_password(mender: Mender, address: str) -> str:
    """Nothing is deleted: the line goes to quarantine, readable by its owner only."""
    directories = mender.state.directories
    kept = f"{os.urandom(6).hex()}-{layout.CREDENTIALS_FILE}"
    own = _password_lines(mender, address)
    with directories.open(layout.QUARANTINE, create=True) as target:
        data = "".join(f"{line}\n" for line in own).encode("utf-8", "surrogateescape")
        disk.write_new(target, kept, data, mode=0o600, sync=True)
    with Credentials.open(directories.root) as passwords:
        passwords.remove(address)
    return layout.absolute(*layout.QUARANTINE, kept)


def _password_lines(mender: Mender, address: str) -> list[str]:
    """What the credentials say of an address."""
    try:
        with mender.state.directories.open(layout.CREDENTIALS) as directory:
            data = disk.read_file(directory, layout.CREDENTIALS_FILE)
    except OSError:
        return []
    return [line for line in data.decode("utf-8", "surrogateescape").splitlines() if _user(line) == address]


def _user(line: str) -> str:
    with contextlib.suppress(MailError):
        return names.normalise_address(line.partition(":")[0])
    return ""


def _is_registered(mender: Mender, address: str) -> bool:
    rows = mender.query(
        "SELECT 1 FROM mailbox_registrations WHERE address = ? AND status IN ('active', 'inactive')", address
    )
    return bool(rows)


def _has_mail(mender: Mender, entry: str) -> bool:
    """Whether any directory in a mailbox is known as a folder, or shows messages."""
    where = layout.mailbox_directory(entry)
    return any(known is not None or mender.links((*where, name)) for name, known in _identities(mender, entry).items())


def _identities(mender: Mender, entry: str) -> dict[str, Identity | None]:
    """The directories in a mailbox, and whose each is."""
    try:
        with mender.state.directories.open(layout.mailbox_directory(entry)) as parent, os.scandir(parent) as found:
            inside = sorted(each.name for each in found if each.is_dir(follow_symlinks=False))
    except OSError:
        return {}
    return {name: mender.identity_at((*layout.mailbox_directory(entry), name)) for name in inside}
