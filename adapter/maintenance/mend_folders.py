"""Mending mailbox objects: registrations, and folders known by id and by path. Each is read again first."""

from __future__ import annotations

import calendar
import contextlib
import os
import time
from dataclasses import dataclass, field
from typing import Any

import orjson

from adapter.maintenance import examine, quarantine
from adapter.maintenance.findings import Finding, Outcome
from adapter.maintenance.scan import folder_name
from adapter.maintenance.state import State
from adapter.store import disk, identity, layout, names, queries
from adapter.store.identity import Identity
from adapter.store.journal import Effect
from adapter.store.queries import Folder
from adapter.transport import ids
from adapter.transport.effects import folders, projections, registrations
from adapter.transport.flags import Flag
from protocol.errors import MailError

_RECORD = 20_000  # links of an adopted folder that go into one record


@dataclass(slots=True)
class Mender:
    state: State
    decisions: dict[str, str]
    removed_folders: set[int] = field(default_factory=set)
    gone_addresses: set[str] = field(default_factory=set)
    floors: dict[int, int] = field(default_factory=dict)  # folder -> UIDs below were given out before
    passwords: set[str] = field(default_factory=set)
    found_accounts: bool = True  # False: nothing tells of any account, and mail alone says whose it is

    # --- registrations ---------------------------------------------------------------------------------------------

    def registration(self, finding: Finding) -> Outcome:
        """A directory that no registration owns, or a registration without one."""
        entry = finding.mailbox
        if finding.kind == "registration-directory-missing":
            with self.state.directories.open(layout.mailbox_directory(entry), create=True):
                pass
            return Outcome(finding, "repaired", "made the directory")
        found = self._identities(entry)
        address = names.address_of_entry(entry.partition("%~")[0])
        known = {each.registration for each in found}
        taken = [row[0] for row in self._query("SELECT registration_id FROM mailbox_registrations")]
        if finding.kind == "registration-directory-orphan" and address not in self.passwords:
            where = quarantine.move(self.state.directories, layout.MAILBOXES, entry, "no registration owns it")
            return Outcome(finding, "repaired", f"moved to {where}")
        registration = next((each for each in sorted(known) if each not in taken), None) or ids.registration_id()
        status = "stashed" if "%~" in entry else "active"
        if status == "active" and self._active(address):
            return Outcome(finding, "conflict", "the address is registered with another directory")
        self.state.commit([registrations.effect(registration, address, status, entry)])
        if not found:
            self.complete(registration)
        return Outcome(finding, "repaired", f"registered {address} as {registration}")

    def register(self, address: str) -> str:
        """An account that only its mail tells of."""
        entry = names.address_entry(address)
        registration = ids.registration_id()
        self.state.commit([registrations.effect(registration, address, "active", entry)])
        with self.state.directories.open(layout.mailbox_directory(entry), create=True):
            pass
        self.complete(registration)
        return registration

    def complete(self, registration: str) -> None:
        """Give an account every standard folder it lacks, subscribed."""
        have = queries.folders(self.state.connection, registration)
        used = {folder.name for folder in have} | {folder.special_use for folder in have if folder.special_use}
        row = self._query("SELECT directory FROM mailbox_registrations WHERE registration_id = ?", registration)[0]
        for name, (_, special_use) in names.STANDARD_FOLDERS.items():
            if name not in used and special_use not in used:
                self._make(Folder(ids.folder_id(), registration, row[0], name, special_use, self._uidvalidity()))
        self.state.commit(
            [folders.subscription(registration, folder.name, on=True)
             for folder in queries.folders(self.state.connection, registration)]
        )  # fmt: skip

    def credentials(self, finding: Finding) -> Outcome:
        address = finding.subject
        if address not in self.gone_addresses and not self._active(address):
            self.register(address)
            return Outcome(finding, "repaired", f"registered {address}, whose password was there already")
        return Outcome(
            finding,
            "conflict",
            "the address was removed, its password is still there",
            f"markpost account remove, or: --decide credentials-orphan:{address}=register",
        )

    def _active(self, address: str) -> bool:
        rows = self._query(
            "SELECT 1 FROM mailbox_registrations WHERE address = ? AND status IN ('active', 'inactive')", address
        )
        return bool(rows)

    def _identities(self, entry: str) -> list[Identity]:
        found = []
        with (
            contextlib.suppress(OSError),
            self.state.directories.open(layout.mailbox_directory(entry)) as parent,
            os.scandir(parent) as inside,
        ):
            for each in inside:
                known = self._identity((*layout.mailbox_directory(entry), each.name))
                if known is not None:
                    found.append(known)
        return found

    # --- folders ---------------------------------------------------------------------------------------------------

    def folder(self, finding: Finding) -> Outcome:
        mailbox, entry = finding.mailbox, finding.entry
        where = (*layout.mailbox_directory(mailbox), entry)
        here = self.at(mailbox, entry)
        there = self._identity(where)
        if here is not None and not self._exists(where):
            self._make_path(here)
            return Outcome(finding, "repaired", "made the directory, its identity and its links")
        if here is not None and (there is None or there.folder == here.id):
            self._identify(here)
            return Outcome(finding, "repaired", "wrote the identity again")
        if here is not None and there is not None:
            return self._two_ids(finding, here, there, where)
        if not self._exists(where):
            return Outcome(finding, "repaired", "gone already")
        elsewhere = queries.folder_by_id(self.state.connection, there.folder) if there else None
        if there is not None and elsewhere is None and there.folder in self.removed_folders:
            moved = quarantine.move(
                self.state.directories, where[:-1], entry, "the journal says that the folder was deleted"
            )
            return Outcome(finding, "repaired", f"moved to {moved}")
        if elsewhere is not None and not self._foreign_links(where, elsewhere):
            moved = quarantine.move(self.state.directories, where[:-1], entry, "a copy of another folder's directory")
            return Outcome(finding, "repaired", f"folded in; the path is at {moved}")
        return self._adopt(finding, where, None if elsewhere is not None else there)

    def _adopt(self, finding: Finding, where: layout.Parts, known: Identity | None) -> Outcome:
        """Give a path its row: with its own identity, or a new one if that is another's or lost."""
        row = self._query(
            "SELECT registration_id FROM mailbox_registrations WHERE directory = ? AND status <> 'purged'", where[1]
        )
        if not row:
            return Outcome(finding, "conflict", "the mailbox it lies in has no registration")
        with self.state.directories.open(where) as directory:
            name = folder_name(directory, where[2])
        if not name or names.folder_entry(name) != where[2]:
            name = f"recovered-{os.urandom(3).hex()}"
            with self.state.directories.open(where[:-1]) as parent:
                disk.rename(parent, where[2], parent, names.folder_entry(name))
            where = (*where[:-1], names.folder_entry(name))
        special = names.STANDARD_FOLDERS.get(name, ("", ""))[1] if known is None else known.special_use
        if special and any(each.special_use == special for each in queries.folders(self.state.connection, row[0][0])):
            special = ""
        folder = Folder(
            known.folder if known else ids.folder_id(),
            row[0][0],
            where[1],
            name,
            special,
            known.uidvalidity if known else self._uidvalidity(),
        )
        self.floors[folder.id] = 1
        if known is None:
            with self.state.directories.open(where) as directory:
                if disk.exists(directory, layout.IDENTITY_FILE):
                    quarantine.move(
                        self.state.directories, where, layout.IDENTITY_FILE, "the identity of another folder"
                    )
        changes: list[Effect] = [folders.effect(folder)]
        if not self.state.facts.complete:
            changes.append(folders.subscription(folder.registration, name, on=True))
        taken = self._take_links(folder, where, changes)
        self._identify(folder)
        new = "" if known else "a new identity and "
        return Outcome(finding, "repaired", f"added the row with {new}{taken} messages; their flags are the default")

    def _take_links(self, folder: Folder, where: layout.Parts, changes: list[Effect]) -> int:
        """Rows for every link whose message is there and that the folder does not show yet."""
        pairs = self._links(where)
        shown = {
            row[0]: row[1]
            for row in self._query("SELECT uid, message_id FROM mailbox_projections WHERE folder_id = ?", folder.id)
        }
        used, present, taken = set(shown), set(shown.values()), 0
        highest = max([folder.uidnext - 1, *used, *(uid for uid, _ in pairs)])
        items: list[projections.Item] = []
        renamed: list[tuple[str, int, str]] = []
        for uid, message_id in pairs:
            if shown.get(uid) == message_id:
                continue
            described = self._describe(message_id)
            if described is None or (message_id in present and uid not in used):
                continue
            if isinstance(described, dict):
                changes.append(described)
            if uid in used or uid < self.floors.get(folder.id, folder.uidnext):
                highest += 1
                renamed.append((layout.projection_name(uid, message_id), highest, message_id))
                uid = highest
            used.add(uid)
            present.add(message_id)
            at = arrived(message_id)
            flags = int(Flag.ARCHIVED) if folder.special_use == "\\Archive" else 0
            items.append((uid, message_id, at, at, flags, ""))
            taken += 1
        items.sort()
        modseq = folder.highestmodseq
        for at in range(0, len(items), _RECORD):
            modseq += 1
            changes.append(projections.effect(folder, modseq, items[at : at + _RECORD]))
        self.state.commit(changes)
        with self.state.directories.open(where) as directory:
            for old, uid, message_id in renamed:
                if uid not in shown and disk.exists(directory, old):
                    disk.rename(directory, old, directory, layout.projection_name(uid, message_id))
        return taken

    def _two_ids(self, finding: Finding, row: Folder, path: Identity, where: layout.Parts) -> Outcome:
        """The row and the path disagree on who the folder is: one of them, with every message of both."""
        subject = f"folder-two-ids:{ids.folder_label(row.id)}"
        decided = self.decisions.get(subject)
        other = queries.folder_by_id(self.state.connection, path.folder)
        keep_row = self.state.facts.complete or other is not None
        if not keep_row and decided is None:
            foreign = self._foreign_links(where, row)
            keep_row = not (foreign and row.messages == 0)
            if foreign and row.messages:
                one, two = ids.folder_label(row.id), ids.folder_label(path.folder)
                return Outcome(
                    finding,
                    "conflict",
                    f"the index says {one}, the path says {two}, both have mail and the journal cannot tell",
                    f"--decide {subject}={one}  or  --decide {subject}={two}",
                )
        elif decided is not None:
            keep_row = decided != ids.folder_label(path.folder)
        if not keep_row:
            row = self._become(row, path)
        taken = 0 if other is not None else self._take_links(row, where, [])
        self._identify(row)
        return Outcome(
            finding, "repaired", f"merged into {ids.folder_label(row.id)}, {taken} messages of the other kept"
        )

    def _become(self, row: Folder, path: Identity) -> Folder:
        """The folder takes the identity of its path; its messages keep UIDs and flags."""
        rows = queries.rows(self.state.connection, row.id)
        new = Folder(path.folder, row.registration, row.directory, row.name, row.special_use, path.uidvalidity)
        changes: list[Effect] = []
        if rows:
            gone = [(item.uid, item.message_id) for item in rows]
            changes.append(projections.removal(row, row.highestmodseq + 1, gone))
        changes += [folders.removal(row), folders.effect(new)]
        if rows:
            items = [(r.uid, r.message_id, r.internal_date, r.saved_at, r.flags, r.keywords) for r in rows]
            changes.append(projections.effect(new, row.highestmodseq + 1, items))
            ids_ = orjson.dumps([item.message_id for item in rows]).decode()
        self.state.commit(changes)
        if rows:
            self.state.connection.execute(
                "UPDATE messages SET unlinked_at = NULL WHERE message_id IN (SELECT value FROM json_each(?))", (ids_,)
            )
        self.floors[new.id] = 1
        return queries.folder_by_id(self.state.connection, new.id) or new

    # --- paths -----------------------------------------------------------------------------------------------------

    def _make(self, folder: Folder) -> None:
        self.state.commit([folders.effect(folder)])
        self._make_path(folder)

    def _make_path(self, folder: Folder) -> None:
        where = layout.folder_directory(folder.directory, folder.name)
        with self.state.directories.open(where, create=True) as directory:
            for uid, message_id in self._query(
                "SELECT uid, message_id FROM mailbox_projections WHERE folder_id = ?", folder.id
            ):
                name = layout.projection_name(uid, message_id)
                if not disk.exists(directory, name):
                    disk.symlink(directory, name, layout.projection_target(message_id))
        self._identify(folder)

    def _identify(self, folder: Folder) -> None:
        where = layout.folder_directory(folder.directory, folder.name)
        known = self._identity(where)
        if known is None or known.folder != folder.id:
            quarantine.move(self.state.directories, where, layout.IDENTITY_FILE, "not the identity of this folder")
        folders.identify(folders.effect(folder), self.state.directories)

    def _identity(self, where: layout.Parts) -> Identity | None:
        try:
            with self.state.directories.open(where) as directory:
                return identity.decode(disk.read_file(directory, layout.IDENTITY_FILE))
        except OSError:
            return None

    def _exists(self, where: layout.Parts) -> bool:
        try:
            with self.state.directories.open(where):
                return True
        except OSError:
            return False

    def _links(self, where: layout.Parts) -> list[tuple[int, str]]:
        with self.state.directories.open(where) as directory:
            found = (layout.PROJECTION.match(name) for name in os.listdir(directory))
            return sorted((int(match.group(1)), match.group(2)) for match in found if match)

    def _foreign_links(self, where: layout.Parts, folder: Folder) -> bool:
        """Whether a path shows messages that the folder does not."""
        rows = self._query("SELECT message_id FROM mailbox_projections WHERE folder_id = ?", folder.id)
        present = {row[0] for row in rows}
        return any(message_id not in present and self._describe(message_id) for _, message_id in self._links(where))

    def at(self, mailbox: str, entry: str) -> Folder | None:
        rows = self._query("SELECT registration_id FROM mailbox_registrations WHERE directory = ?"
                           " AND status <> 'purged'", mailbox)  # fmt: skip
        for (registration,) in rows:
            for folder in queries.folders(self.state.connection, registration):
                if names.folder_entry(folder.name) == entry:
                    return folder
        return None

    def _describe(self, message_id: str) -> Effect | bool | None:
        """True: the rows have it. An effect: its file alone tells of it. None: there is no such message."""
        row = self._query("SELECT file_sha256 FROM messages WHERE message_id = ?", message_id)
        if row:
            return True if row[0][0] else None
        return content_effect(self.state, message_id)

    def _uidvalidity(self) -> int:
        last = self._query("SELECT value FROM meta WHERE key = 'last_uidvalidity'")[0][0]
        return max(ids.microseconds() // 1_000_000, int(last) + 1)

    def _query(self, sql: str, *values: object) -> list[Any]:
        return self.state.connection.execute(sql, values).fetchall()


def content_effect(state: State, message_id: str, meta: bytes | None = None) -> Effect | None:
    """The rows of a message as its canonical file tells them; None if there is no good file."""
    try:
        if meta is None:
            with state.directories.open(layout.message_directory(message_id)) as directory:
                file = disk.read_file(directory, layout.message_name(message_id))
            if examine.examine(file, message_id, examine.Blobs(state.directories)).recipe is None:
                return None
            meta = examine.description(file)
        told = orjson.loads(meta)
    except (OSError, ValueError, MailError):
        return None
    known = {
        address
        for address in {*told["to"], *told["cc"]}
        if state.connection.execute(
            "SELECT 1 FROM mailbox_registrations WHERE address = ? AND status <> 'purged'", (address.casefold(),)
        ).fetchone()
    }
    recipients = {address.casefold(): "cc" for address in told["cc"] if address in known}
    recipients |= {address.casefold(): "to" for address in told["to"] if address in known}
    sizes = []
    for sha256 in told["parts"]:
        with state.directories.open(layout.blob_directory(sha256)) as directory:
            sizes.append((sha256, "part", "", "", os.stat(sha256, dir_fd=directory).st_size))
    return {
        "do": "content",
        "id": message_id,
        "arrived": arrived(message_id),
        "sender": told["from"],
        "from": told["from"],
        "subject": told["subject"],
        "header_id": told["header_id"],
        "thread": told["thread"],
        "size": told["size"],
        "wire": told["wire"],
        "file": told["file"],
        "text": None,
        "staged": ["", None],
        "blobs": [],
        "attachments": [*told["attachments"], *sizes],
        "recipients": list(recipients.items()),
    }


def arrived(message_id: str) -> int:
    return calendar.timegm(time.strptime(message_id[4:20], "%Y%m%dT%H%M%SZ"))
