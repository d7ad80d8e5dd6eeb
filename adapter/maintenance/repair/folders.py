"""Repair folders, which have an id (the row) and a path (the directory). Each is read again before it is changed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

from adapter.maintenance.expected.normalise import SetAsideRows
from adapter.maintenance.findings import Finding, Outcome
from adapter.maintenance.repair import decisions, links
from adapter.maintenance.repair.message_rows import (
    MessageDescriptions,
    content_effect,
    damage_effects,
    describe,
    is_unreadable,
)
from adapter.maintenance.repair.target import RepairTarget
from adapter.maintenance.scan.executor import folder_name
from adapter.store import disk, effects, folder_identity, layout, names, quarantine
from adapter.store.effects import AddContent, Effect, MarkDamaged, ProjectedRow, UnprojectedRow
from adapter.store.folder_identity import Identity
from adapter.store.queries import mailboxes
from adapter.store.queries.mailboxes import Folder
from adapter.transport import ids
from adapter.transport.apply import folders
from adapter.transport.operations.base import MAX_UID

_BATCH_MESSAGES = 5000  # of an adopted folder


class _LinkAdoption:
    """Adds rows for the links of a folder, in UID order.

    With a complete journal, all rows are one record: if a folder had only some of its rows, the next run would treat
    the other links as orphans. Private tables are invisible until they are sealed, so rows are added in batches.
    """

    def __init__(self, target: RepairTarget, set_aside: SetAsideRows, folder: Folder, changes: list[Effect]) -> None:
        self._target = target
        self._set_aside = set_aside
        self._folder = folder
        self._changes = changes
        self._added: set[str] = set()
        self._rows: list[ProjectedRow] = []
        self._modseq = folder.highestmodseq + 1
        self.adopted = 0

    def add_message(self, rows: list[AddContent | MarkDamaged]) -> None:
        """Add the rows of a message that is not indexed."""
        if rows[0].message_id not in self._added:
            self._added.add(rows[0].message_id)
            self._changes += rows

    def add_link(self, uid: int, message_id: str) -> None:
        self.adopted += 1
        row = self._set_aside.item(self._folder.id, uid, message_id)
        self._rows.append(row or links.new_row(self._folder, uid, message_id))
        if len(self._rows) >= _BATCH_MESSAGES:
            self._flush()
            if not self._target.facts.complete:
                self.finish()

    def _flush(self) -> None:
        if self._rows:
            projected = links.project(self._target.connection, self._folder, self._modseq, self._rows)
            self._modseq += len(projected)
            self._changes += projected
            self._rows = []

    def finish(self) -> None:
        self._flush()
        self._target.commit(self._changes)
        self._changes = []


@dataclass(slots=True)
class FolderRepair:
    target: RepairTarget
    decisions: dict[str, str]
    descriptions: MessageDescriptions
    set_aside: SetAsideRows
    removed_folders: set[int] = field(default_factory=set)
    floors: dict[int, int] = field(default_factory=dict)  # folder -> first UID that a link may use
    has_accounts: bool = True  # False: no account is recorded, and only the messages name their recipients

    def folder(self, finding: Finding) -> Outcome:
        mailbox, entry = finding.mailbox, finding.entry
        where = (*layout.mailbox_directory(mailbox), entry)
        here = self.at(mailbox, entry)
        there = self.identity_at(where)
        if here is not None and not self.exists(where):
            changed = self._renumber(here)
            self.make_path(here)
            return Outcome(finding, "repaired", f"created the directory, its identity and its links{changed}")
        if here is not None and there is not None and there.folder == here.id:
            self._raise_uidnext(here, there)
            self._identify(here)
            return Outcome(finding, "repaired", "raised UIDNEXT and the UID mark of the identity to the same value")
        if here is not None and there is None:
            changed = self._renumber(here)
            self._identify(here)
            return Outcome(finding, "repaired", f"rewrote the identity{changed}")
        if here is not None and there is not None:
            return self._two_ids(finding, here, there, where)
        if not self.exists(where):
            return Outcome(finding, "repaired", "already gone")
        elsewhere = mailboxes.folder_by_id(self.target.connection, there.folder) if there else None
        if there is not None and elsewhere is None and there.folder in self.removed_folders:
            moved = quarantine.move(self.target.directories, where[:-1], entry, "the folder was deleted (journal)")
            return Outcome(finding, "repaired", f"moved to {moved}")
        if elsewhere is not None and not self._foreign_links(where, elsewhere):
            moved = quarantine.move(self.target.directories, where[:-1], entry, "a copy of another folder's directory")
            return Outcome(finding, "repaired", f"merged; the directory was moved to {moved}")
        return self._adopt(finding, where, None if elsewhere is not None else there)

    def _adopt(self, finding: Finding, where: layout.Parts, identity: Identity | None) -> Outcome:
        """Add the row of a path: with its identity, or with a new one if that is lost or belongs to another path."""
        owners = self.owners(where[1])
        if not owners:
            return Outcome(finding, "conflict", "its mailbox has no registration")
        with self.target.directories.open(where) as directory:
            name = folder_name(directory, where[2])
        if not name:
            name = f"recovered-{os.urandom(3).hex()}"
            with self.target.directories.open(where[:-1]) as parent:
                disk.rename(parent, where[2], parent, names.folder_entry(name))
            where = (*where[:-1], names.folder_entry(name))
        special = names.STANDARD_FOLDERS.get(name, ("", ""))[1] if identity is None else identity.special_use
        if special and any(
            each.special_use == special for each in mailboxes.folders(self.target.connection, owners[0])
        ):
            special = ""
        folder = Folder(
            identity.folder if identity else ids.folder_id(),
            owners[0],
            where[1],
            name,
            special,
            identity.uidvalidity if identity else self.uidvalidity(),
            identity.uids_below if identity else 1,
        )
        self.floors[folder.id] = 1
        if identity is None:
            with self.target.directories.open(where) as directory:
                if disk.exists(directory, layout.IDENTITY_FILE):
                    quarantine.move(
                        self.target.directories, where, layout.IDENTITY_FILE, "the identity of another folder"
                    )
        changes: list[Effect] = [
            effects.CreateFolder.of(folder),
            effects.RaiseUidFloor(folder.id, folder.uidnext),
            effects.Subscribe(folder.registration, name, on=True),
        ]
        adopted = self._adopt_links(folder, where, changes)
        self._identify(folder)
        new = "" if identity else "a new identity and "
        return Outcome(
            finding,
            "repaired",
            f"added the row with {new}{adopted} messages; default flags where the index has none",
        )

    def _adopt_links(self, folder: Folder, where: layout.Parts, changes: list[Effect]) -> int:
        """Add a row for each link to an existing message that the folder does not show; quarantine the other links."""
        shown = {
            row[0]: row[1]
            for row in self.query("SELECT uid, message_id FROM mailbox_projections WHERE folder_id = ?", folder.id)
        }
        before, used = set(shown.values()), set(shown)
        pairs = [pair for pair in self.links(where) if shown.get(pair[0]) != pair[1]]
        highest = max([folder.uidnext - 1, *used, *(uid for uid, _ in pairs if uid < MAX_UID)])
        floor = self.floor(folder)
        adoption = _LinkAdoption(self.target, self.set_aside, folder, changes)
        clashing: list[tuple[int, str]] = []
        needless: list[str] = []
        for uid, message_id in pairs:
            described = message_id not in before and self._describe(message_id)
            if not described and is_unreadable(self.target, message_id):
                continue  # keep the link: a later repair can add the row
            if not described:
                needless.append(layout.projection_name(uid, message_id))
                continue
            if isinstance(described, list):
                adoption.add_message(described)
            is_valid = floor <= uid <= MAX_UID or self.set_aside.item(folder.id, uid, message_id) is not None
            if uid in used or not is_valid:
                clashing.append((uid, message_id))
            else:
                used.add(uid)
                adoption.add_link(uid, message_id)
        for uid, (_, message_id) in enumerate(clashing, highest + 1):
            adoption.add_link(uid, message_id)
        adoption.finish()
        with self.target.directories.open(where) as directory:
            for uid, (old, message_id) in enumerate(clashing, highest + 1):
                name = layout.projection_name(old, message_id)
                if disk.exists(directory, name):
                    disk.rename(directory, name, directory, layout.projection_name(uid, message_id))
        for name in needless:
            quarantine.move(self.target.directories, where, name, "its message is already shown, or is missing")
        return adoption.adopted

    def _two_ids(self, finding: Finding, row: Folder, path: Identity, where: layout.Parts) -> Outcome:
        """Merge a folder with different ids in row and path into one of them, with all messages of both."""
        subject = f"{finding.kind}:{ids.folder_label(row.id)}"
        decided = self.decisions.get(subject)
        other = mailboxes.folder_by_id(self.target.connection, path.folder)
        keep_row = decided != ids.folder_label(path.folder) or other is not None
        if decided is None and self._is_unclear(subject, other):
            foreign = self._foreign_links(where, row)
            keep_row = not (foreign and row.messages == 0)
            if foreign and row.messages:
                decisions.remember(self.target.directories, subject, open_=True)
                return Outcome(finding, "conflict", _both(row, path), decisions.offer(finding))
        if not keep_row:
            row = self._become(row, path, where)
        if other is not None:
            moved = self._return_links(row, other, where)
            self._identify(row)
            return Outcome(finding, "repaired", f"rewrote the identity; quarantined {moved} links of another folder")
        adopted = self._adopt_links(row, where, [])
        self._identify(row)
        decisions.remember(self.target.directories, subject, open_=False)
        return Outcome(
            finding, "repaired", f"merged into {ids.folder_label(row.id)}, kept {adopted} messages of the other"
        )

    def _is_unclear(self, subject: str, other: Folder | None) -> bool:
        journal_decides = self.target.facts.complete and subject not in decisions.undecided(self.target.directories)
        return other is None and not journal_decides

    def undecidable(self, finding: Finding) -> str:
        """The reason why a folder with two ids is left to a person; "" if repair decides."""
        where = (*layout.mailbox_directory(finding.mailbox), finding.entry)
        row, path = self.at(finding.mailbox, finding.entry), self.identity_at(where)
        if row is None or path is None or not row.messages:
            return ""
        subject = f"{finding.kind}:{ids.folder_label(row.id)}"
        other = mailboxes.folder_by_id(self.target.connection, path.folder)
        return _both(row, path) if self._is_unclear(subject, other) and self._foreign_links(where, row) else ""

    def _return_links(self, row: Folder, other: Folder, where: layout.Parts) -> int:
        """Quarantine the links of another folder from this path: that folder shows their messages itself."""
        rows = self.query("SELECT uid, message_id FROM mailbox_projections WHERE folder_id = ?", row.id)
        own = {(uid, message_id) for uid, message_id in rows}
        theirs = {
            message_id
            for (message_id,) in self.query("SELECT message_id FROM mailbox_projections WHERE folder_id = ?", other.id)
        }
        moved = 0
        for uid, message_id in self.links(where):
            if (uid, message_id) not in own and (message_id in theirs or self.target.facts.complete):
                why = f"a link of {ids.folder_label(other.id)}"
                quarantine.move(self.target.directories, where, layout.projection_name(uid, message_id), why)
                moved += 1
        if not self.target.facts.complete:
            self._adopt_links(row, where, [])
        return moved

    def _become(self, row: Folder, path: Identity, where: layout.Parts) -> Folder:
        """Give a folder the identity of its path. Messages keep their flags, and their UIDs unless the path uses them.

        Clients know the UIDs of the path under its UIDVALIDITY, so the UIDs of the row are changed on a clash.
        """
        rows = mailboxes.rows(self.target.connection, row.id)
        links = self.links(where)
        taken = {uid: message_id for uid, message_id in links if self._describe(message_id)}
        highest = max([0, *(uid for uid, _ in links if uid < MAX_UID), *(item.uid for item in rows)])
        new = Folder(path.folder, row.registration, row.directory, row.name, row.special_use, path.uidvalidity)
        shown: list[ProjectedRow] = []
        renamed = []
        for item in rows:
            uid = item.uid
            if taken.get(uid, item.message_id) != item.message_id:
                uid = highest = highest + 1
                old = layout.projection_name(item.uid, item.message_id)
                renamed.append((old, layout.projection_name(uid, item.message_id)))
            shown.append(
                ProjectedRow(uid, item.message_id, item.internal_date, item.saved_at, item.flags, item.keywords)
            )
        aside = f"{row.name}-{ids.folder_label(row.id)}"
        changes: list[Effect] = [effects.RenameFolder.of(row, aside), effects.CreateFolder.of(new)]
        old_folder = replace(row, name=aside)
        if shown:
            gone = tuple(UnprojectedRow(item.uid, item.message_id) for item in rows)
            by_uid = tuple(sorted(shown, key=lambda each: each.uid))
            changes.append(effects.Project.into(new, row.highestmodseq + 1, by_uid))
            changes.append(effects.Unproject.out_of(old_folder, row.highestmodseq + 1, gone))
        changes.append(effects.RemoveFolder.of(old_folder))
        self.target.commit(changes)
        with self.target.directories.open(where) as directory:
            for before, after in renamed:
                if disk.exists(directory, before):
                    disk.rename(directory, before, directory, after)
        self.floors[new.id] = 1
        return mailboxes.folder_by_id(self.target.connection, new.id) or new

    # --- paths -----------------------------------------------------------------------------------------------------

    def make_path(self, folder: Folder) -> None:
        where = layout.folder_directory(folder.directory, folder.name)
        with self.target.directories.open(where, create=True) as directory:
            for uid, message_id in self.query(
                "SELECT uid, message_id FROM mailbox_projections WHERE folder_id = ?", folder.id
            ):
                name = layout.projection_name(uid, message_id)
                if not disk.exists(directory, name):
                    disk.symlink(directory, name, layout.projection_target(message_id))
        self._identify(folder)

    def _identify(self, folder: Folder) -> None:
        """Write the identity file of a folder from its current row."""
        folder = mailboxes.folder_by_id(self.target.connection, folder.id) or folder
        where = layout.folder_directory(folder.directory, folder.name)
        identity = self.identity_at(where)
        if identity is None or identity.folder != folder.id:
            quarantine.move(self.target.directories, where, layout.IDENTITY_FILE, "not the identity of this folder")
        folders.identify(effects.CreateFolder.of(folder), self.target.directories, folder.uidnext)
        folders.raise_mark(self.target.directories, where, folder.id, folder_identity.mark(folder.uidnext))

    def identity_at(self, where: layout.Parts) -> Identity | None:
        """The identity at a path; None if it is missing, unreadable, damaged, or of another store."""
        try:
            with self.target.directories.open(where) as directory:
                identity = folder_identity.decode(disk.read_file(directory, layout.IDENTITY_FILE))
        except OSError:
            return None
        return identity if identity is not None and identity.store == self.target.facts.store else None

    # --- UIDs ------------------------------------------------------------------------------------------------------

    def floor(self, folder: Folder) -> int:
        """The first UID of a link that repair accepts without a row.

        A UID below UIDNEXT without a row was assigned and expunged, so its link is a leftover. In salvaged tables the
        row itself may be missing, so any link is accepted.
        """
        return self.floors.setdefault(folder.id, 1 if self._is_salvaged else folder.uidnext)

    @property
    def _is_salvaged(self) -> bool:
        return self.target.facts.source in ("salvage", "nothing")

    def raise_uids(self) -> None:
        """Raise UIDNEXT of all folders to the UID marks of their identities, if index and journal are damaged."""
        if self._is_salvaged:
            for (folder_id,) in self.query("SELECT folder_id FROM folders ORDER BY folder_id"):
                folder = mailboxes.folder_by_id(self.target.connection, folder_id)
                identity = folder and self.identity_at(layout.folder_directory(folder.directory, folder.name))
                if folder and identity and identity.folder == folder.id and self._raise_uidnext(folder, identity):
                    self._identify(folder)

    def _raise_uidnext(self, folder: Folder, identity: Identity) -> bool:
        """Raise UIDNEXT to the UID mark if UIDs beyond the rows may have been assigned; True if it was raised."""
        beyond = identity.uids_below > folder_identity.mark(folder.uidnext)
        if not beyond and not (self._is_salvaged and identity.uids_below > folder.uidnext):
            return False
        self.target.commit([effects.RaiseUidFloor(folder.id, identity.uids_below)])
        return True

    def _renumber(self, folder: Folder) -> str:
        """Give a folder a new UIDVALIDITY if its assigned UIDs are unknown; return the text for the report."""
        if not self._is_salvaged:
            return ""
        self.target.commit([effects.RaiseUidFloor(folder.id, 1, self.uidvalidity())])
        return "; new UIDVALIDITY: the assigned UIDs are unknown"

    def exists(self, where: layout.Parts) -> bool:
        try:
            with self.target.directories.open(where):
                return True
        except OSError:
            return False

    def links(self, where: layout.Parts) -> list[tuple[int, str]]:
        with self.target.directories.open(where) as directory:
            matches = (layout.PROJECTION.match(name) for name in os.listdir(directory))
            return sorted((int(match.group(1)), match.group(2)) for match in matches if match)

    def _foreign_links(self, where: layout.Parts, folder: Folder) -> bool:
        """True if a path shows messages that the folder does not."""
        rows = self.query("SELECT message_id FROM mailbox_projections WHERE folder_id = ?", folder.id)
        present = {row[0] for row in rows}
        return any(message_id not in present and self._describe(message_id) for _, message_id in self.links(where))

    def at(self, mailbox: str, entry: str) -> Folder | None:
        """The folder with this path by its row. Queried by name: an account may have very many folders."""
        for registration in self.owners(mailbox):
            candidates: list[Folder] = []
            if names.is_shortened(entry):
                candidates = mailboxes.folders(self.target.connection, registration)
            elif names.is_text(name := names.folder_of_entry(entry)):
                candidates = mailboxes.folders_named(self.target.connection, registration, name)
            for folder in candidates:
                if names.folder_entry(folder.name) == entry:
                    return folder
        return None

    def owners(self, mailbox: str) -> list[str]:
        """The registrations of a mailbox directory. Queried by the address in its name first, which is fast."""
        sql = "SELECT registration_id FROM mailbox_registrations WHERE directory = ? AND status <> 'purged'"
        address = names.owner_of_entry(mailbox)
        return [row[0] for row in self.query(f"{sql} AND address = ?", mailbox, address) or self.query(sql, mailbox)]

    def _describe(self, message_id: str) -> list[AddContent | MarkDamaged] | bool:
        """True for an indexed message; effects for one known only from its file; False for a missing one."""
        row = self.query("SELECT file_sha256 FROM messages WHERE message_id = ?", message_id)
        if row:
            return bool(row[0][0])
        entries = describe(self.target, message_id, self.descriptions.get(message_id))
        if entries is None:
            return False
        return [content_effect(self.target, message_id, entries), *damage_effects(message_id, entries)]

    def uidvalidity(self) -> int:
        last = self.query("SELECT value FROM meta WHERE key = 'last_uidvalidity'")[0][0]
        return max(ids.microseconds() // 1_000_000, int(last) + 1)

    def query(self, sql: str, *values: object) -> list[Any]:
        return self.target.connection.execute(sql, values).fetchall()


def _both(row: Folder, path: Identity) -> str:
    one, two = ids.folder_label(row.id), ids.folder_label(path.folder)
    return f"the index has {one}, the path has {two}; both have mail, and the journal cannot decide"
