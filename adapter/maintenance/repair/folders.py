"""Mending folders, which are known by id (the row) and by path (the directory). Each is read again first."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

from adapter.maintenance import quarantine
from adapter.maintenance.expected.set_aside import SetAside
from adapter.maintenance.findings import Finding, Outcome
from adapter.maintenance.repair import decisions
from adapter.maintenance.repair import links as placing
from adapter.maintenance.repair.index_state import State
from adapter.maintenance.scan.executor import folder_name
from adapter.maintenance.scan.message_rows import Descriptions, content_effect, damage_effects, describe, is_unreadable
from adapter.store import disk, effects, folder_identity, layout, names
from adapter.store.effects import AddContent, Effect, MarkDamaged, ProjectedRow, UnprojectedRow
from adapter.store.folder_identity import Identity
from adapter.store.queries import mailboxes
from adapter.store.queries.mailboxes import Folder
from adapter.transport import ids
from adapter.transport.apply import folders
from adapter.transport.operations.base import MAX_UID

_TOGETHER = 5000  # messages of an adopted folder


class _Taking:
    """Rows for what a path shows, in the order of its UIDs.

    The journal gets one record for all of them: of a folder that has some of its rows, the next run would take the rest
    for links that nobody wants. Private tables are nobody's until they are sealed, and get them as they come.
    """

    def __init__(self, state: State, set_aside: SetAside, folder: Folder, changes: list[Effect]) -> None:
        self._state = state
        self._set_aside = set_aside
        self._folder = folder
        self._changes = changes
        self._added: set[str] = set()
        self._rows: list[ProjectedRow] = []
        self._modseq = folder.highestmodseq + 1
        self.shown = 0

    def content(self, rows: list[AddContent | MarkDamaged]) -> None:
        """The rows of one message."""
        if rows[0].message_id not in self._added:
            self._added.add(rows[0].message_id)
            self._changes += rows

    def show(self, uid: int, message_id: str) -> None:
        self.shown += 1
        known = self._set_aside.item(self._folder.id, uid, message_id)
        self._rows.append(known or placing.new_row(self._folder, uid, message_id))
        if len(self._rows) >= _TOGETHER:
            self._take()
            if not self._state.facts.complete:
                self.finish()

    def _take(self) -> None:
        if self._rows:
            projected = placing.project(self._state.connection, self._folder, self._modseq, self._rows)
            self._modseq += len(projected)
            self._changes += projected
            self._rows = []

    def finish(self) -> None:
        self._take()
        self._state.commit(self._changes)
        self._changes = []


@dataclass(slots=True)
class Mender:
    state: State
    decisions: dict[str, str]
    descriptions: Descriptions
    set_aside: SetAside
    removed_folders: set[int] = field(default_factory=set)
    floors: dict[int, int] = field(default_factory=dict)  # folder -> UIDs below were given out before
    has_accounts: bool = True  # False: nothing tells of any account, and mail alone says whose it is

    def folder(self, finding: Finding) -> Outcome:
        mailbox, entry = finding.mailbox, finding.entry
        where = (*layout.mailbox_directory(mailbox), entry)
        here = self.at(mailbox, entry)
        there = self.identity_at(where)
        if here is not None and not self.exists(where):
            changed = self._renumber(here)
            self.make_path(here)
            return Outcome(finding, "repaired", f"made the directory, its identity and its links{changed}")
        if here is not None and there is not None and there.folder == here.id:
            self._raise_uidnext(here, there)
            self._identify(here)
            return Outcome(finding, "repaired", "UIDNEXT and the UID mark of the identity agree again")
        if here is not None and there is None:
            changed = self._renumber(here)
            self._identify(here)
            return Outcome(finding, "repaired", f"wrote the identity again{changed}")
        if here is not None and there is not None:
            return self._two_ids(finding, here, there, where)
        if not self.exists(where):
            return Outcome(finding, "repaired", "gone already")
        elsewhere = mailboxes.folder_by_id(self.state.connection, there.folder) if there else None
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
        owners = self.owners(where[1])
        if not owners:
            return Outcome(finding, "conflict", "the mailbox it lies in has no registration")
        with self.state.directories.open(where) as directory:
            name = folder_name(directory, where[2])
        if not name:
            name = f"recovered-{os.urandom(3).hex()}"
            with self.state.directories.open(where[:-1]) as parent:
                disk.rename(parent, where[2], parent, names.folder_entry(name))
            where = (*where[:-1], names.folder_entry(name))
        special = names.STANDARD_FOLDERS.get(name, ("", ""))[1] if known is None else known.special_use
        if special and any(each.special_use == special for each in mailboxes.folders(self.state.connection, owners[0])):
            special = ""
        folder = Folder(
            known.folder if known else ids.folder_id(),
            owners[0],
            where[1],
            name,
            special,
            known.uidvalidity if known else self.uidvalidity(),
            known.uids_below if known else 1,
        )
        self.floors[folder.id] = 1
        if known is None:
            with self.state.directories.open(where) as directory:
                if disk.exists(directory, layout.IDENTITY_FILE):
                    quarantine.move(
                        self.state.directories, where, layout.IDENTITY_FILE, "the identity of another folder"
                    )
        changes: list[Effect] = [
            effects.CreateFolder.of(folder),
            effects.RaiseUidFloor(folder.id, folder.uidnext),
            effects.Subscribe(folder.registration, name, on=True),
        ]
        taken = self._take_links(folder, where, changes)
        self._identify(folder)
        new = "" if known else "a new identity and "
        return Outcome(
            finding,
            "repaired",
            f"added the row with {new}{taken} messages; flags are the default where the index has none",
        )

    def _take_links(self, folder: Folder, where: layout.Parts, changes: list[Effect]) -> int:
        """Rows for every link whose message is there and that the folder does not show yet; other links leave."""
        shown = {
            row[0]: row[1]
            for row in self.query("SELECT uid, message_id FROM mailbox_projections WHERE folder_id = ?", folder.id)
        }
        before, used = set(shown.values()), set(shown)
        pairs = [pair for pair in self.links(where) if shown.get(pair[0]) != pair[1]]
        highest = max([folder.uidnext - 1, *used, *(uid for uid, _ in pairs if uid < MAX_UID)])
        floor = self.floor(folder)
        taking = _Taking(self.state, self.set_aside, folder, changes)
        clashing: list[tuple[int, str]] = []
        needless: list[str] = []
        for uid, message_id in pairs:
            described = message_id not in before and self._describe(message_id)
            if not described and is_unreadable(self.state, message_id):
                continue  # once it can be read, it is shown here
            if not described:
                needless.append(layout.projection_name(uid, message_id))
                continue
            if isinstance(described, list):
                taking.content(described)
            known = floor <= uid <= MAX_UID or self.set_aside.item(folder.id, uid, message_id) is not None
            if uid in used or not known:
                clashing.append((uid, message_id))
            else:
                used.add(uid)
                taking.show(uid, message_id)
        for uid, (_, message_id) in enumerate(clashing, highest + 1):
            taking.show(uid, message_id)
        taking.finish()
        with self.state.directories.open(where) as directory:
            for uid, (old, message_id) in enumerate(clashing, highest + 1):
                name = layout.projection_name(old, message_id)
                if disk.exists(directory, name):
                    disk.rename(directory, name, directory, layout.projection_name(uid, message_id))
        for name in needless:
            quarantine.move(self.state.directories, where, name, "its message is shown already, or is not there")
        return taking.shown

    def _two_ids(self, finding: Finding, row: Folder, path: Identity, where: layout.Parts) -> Outcome:
        """The row and the path disagree on who the folder is: one of them, with every message of both."""
        subject = f"{finding.kind}:{ids.folder_label(row.id)}"
        decided = self.decisions.get(subject)
        other = mailboxes.folder_by_id(self.state.connection, path.folder)
        keep_row = decided != ids.folder_label(path.folder) or other is not None
        if decided is None and self._is_unclear(subject, other):
            foreign = self._foreign_links(where, row)
            keep_row = not (foreign and row.messages == 0)
            if foreign and row.messages:
                decisions.remember(self.state.directories, subject, open_=True)
                return Outcome(finding, "conflict", _both(row, path), decisions.offer(finding))
        if not keep_row:
            row = self._become(row, path, where)
        if other is not None:
            moved = self._return_links(row, other, where)
            self._identify(row)
            return Outcome(finding, "repaired", f"wrote the identity again; {moved} links of another folder set aside")
        taken = self._take_links(row, where, [])
        self._identify(row)
        decisions.remember(self.state.directories, subject, open_=False)
        return Outcome(
            finding, "repaired", f"merged into {ids.folder_label(row.id)}, {taken} messages of the other kept"
        )

    def _is_unclear(self, subject: str, other: Folder | None) -> bool:
        known = self.state.facts.complete and subject not in decisions.undecided(self.state.directories)
        return other is None and not known

    def undecidable(self, finding: Finding) -> str:
        """Why a folder with two ids would be left to a person; empty if it would not."""
        where = (*layout.mailbox_directory(finding.mailbox), finding.entry)
        row, path = self.at(finding.mailbox, finding.entry), self.identity_at(where)
        if row is None or path is None or not row.messages:
            return ""
        subject = f"{finding.kind}:{ids.folder_label(row.id)}"
        other = mailboxes.folder_by_id(self.state.connection, path.folder)
        return _both(row, path) if self._is_unclear(subject, other) and self._foreign_links(where, row) else ""

    def _return_links(self, row: Folder, other: Folder, where: layout.Parts) -> int:
        """The directory of another folder lies here: its links leave, since that folder shows their messages."""
        rows = self.query("SELECT uid, message_id FROM mailbox_projections WHERE folder_id = ?", row.id)
        own = {(uid, message_id) for uid, message_id in rows}
        theirs = {
            message_id
            for (message_id,) in self.query("SELECT message_id FROM mailbox_projections WHERE folder_id = ?", other.id)
        }
        moved = 0
        for uid, message_id in self.links(where):
            if (uid, message_id) not in own and (message_id in theirs or self.state.facts.complete):
                why = f"a link of {ids.folder_label(other.id)}"
                quarantine.move(self.state.directories, where, layout.projection_name(uid, message_id), why)
                moved += 1
        if not self.state.facts.complete:
            self._take_links(row, where, [])
        return moved

    def _become(self, row: Folder, path: Identity, where: layout.Parts) -> Folder:
        """The folder takes the identity of its path. Messages keep flags, and UIDs unless the path uses them.

        Under the UIDVALIDITY of the path its UIDs are known to clients, so those of the row give way.
        """
        rows = mailboxes.rows(self.state.connection, row.id)
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
        self.state.commit(changes)
        with self.state.directories.open(where) as directory:
            for before, after in renamed:
                if disk.exists(directory, before):
                    disk.rename(directory, before, directory, after)
        self.floors[new.id] = 1
        return mailboxes.folder_by_id(self.state.connection, new.id) or new

    # --- paths -----------------------------------------------------------------------------------------------------

    def make_path(self, folder: Folder) -> None:
        where = layout.folder_directory(folder.directory, folder.name)
        with self.state.directories.open(where, create=True) as directory:
            for uid, message_id in self.query(
                "SELECT uid, message_id FROM mailbox_projections WHERE folder_id = ?", folder.id
            ):
                name = layout.projection_name(uid, message_id)
                if not disk.exists(directory, name):
                    disk.symlink(directory, name, layout.projection_target(message_id))
        self._identify(folder)

    def _identify(self, folder: Folder) -> None:
        """Write the identity of a folder as its row is now."""
        folder = mailboxes.folder_by_id(self.state.connection, folder.id) or folder
        where = layout.folder_directory(folder.directory, folder.name)
        known = self.identity_at(where)
        if known is None or known.folder != folder.id:
            quarantine.move(self.state.directories, where, layout.IDENTITY_FILE, "not the identity of this folder")
        folders.identify(effects.CreateFolder.of(folder), self.state.directories, folder.uidnext)
        folders.raise_mark(self.state.directories, where, folder.id, folder_identity.mark(folder.uidnext))

    def identity_at(self, where: layout.Parts) -> Identity | None:
        """The identity at a path; None if there is none that can be read, or it is of another store."""
        try:
            with self.state.directories.open(where) as directory:
                known = folder_identity.decode(disk.read_file(directory, layout.IDENTITY_FILE))
        except OSError:
            return None
        return known if known is not None and known.store == self.state.facts.store else None

    # --- UIDs ------------------------------------------------------------------------------------------------------

    def floor(self, folder: Folder) -> int:
        """The UID from which on the name of a link is believed.

        Below UIDNEXT a UID without a row was given out and expunged: a link of that name is a leftover. Where rows are
        put together from what is left of index and journal, the row may be what is missing: the link is believed.
        """
        return self.floors.setdefault(folder.id, 1 if self._is_salvaged else folder.uidnext)

    @property
    def _is_salvaged(self) -> bool:
        return self.state.facts.source in ("salvage", "nothing")

    def raise_uids(self) -> None:
        """Raise UIDNEXT of all folders to the marks of their identities, if neither index nor journal is whole."""
        if self._is_salvaged:
            for (folder_id,) in self.query("SELECT folder_id FROM folders ORDER BY folder_id"):
                folder = mailboxes.folder_by_id(self.state.connection, folder_id)
                known = folder and self.identity_at(layout.folder_directory(folder.directory, folder.name))
                if folder and known and known.folder == folder.id and self._raise_uidnext(folder, known):
                    self._identify(folder)

    def _raise_uidnext(self, folder: Folder, known: Identity) -> bool:
        """Raise UIDNEXT to the mark, if UIDs may have been given out that the rows do not know of."""
        beyond = known.uids_below > folder_identity.mark(folder.uidnext)
        if not beyond and not (self._is_salvaged and known.uids_below > folder.uidnext):
            return False
        self.state.commit([effects.RaiseUidFloor(folder.id, known.uids_below)])
        return True

    def _renumber(self, folder: Folder) -> str:
        """Give a folder a new UIDVALIDITY if nothing tells which UIDs were given out; returns what to report."""
        if not self._is_salvaged:
            return ""
        self.state.commit([effects.RaiseUidFloor(folder.id, 1, self.uidvalidity())])
        return "; UIDVALIDITY is new: nothing tells which UIDs were given out"

    def exists(self, where: layout.Parts) -> bool:
        try:
            with self.state.directories.open(where):
                return True
        except OSError:
            return False

    def links(self, where: layout.Parts) -> list[tuple[int, str]]:
        with self.state.directories.open(where) as directory:
            found = (layout.PROJECTION.match(name) for name in os.listdir(directory))
            return sorted((int(match.group(1)), match.group(2)) for match in found if match)

    def _foreign_links(self, where: layout.Parts, folder: Folder) -> bool:
        """Whether a path shows messages that the folder does not."""
        rows = self.query("SELECT message_id FROM mailbox_projections WHERE folder_id = ?", folder.id)
        present = {row[0] for row in rows}
        return any(message_id not in present and self._describe(message_id) for _, message_id in self.links(where))

    def at(self, mailbox: str, entry: str) -> Folder | None:
        """The folder whose row says that it lies there. Looked up by name: an account may have very many."""
        for registration in self.owners(mailbox):
            found: list[Folder] = []
            if names.is_shortened(entry):
                found = mailboxes.folders(self.state.connection, registration)
            elif names.is_text(name := names.folder_of_entry(entry)):
                found = mailboxes.folders_named(self.state.connection, registration, name)
            for folder in found:
                if names.folder_entry(folder.name) == entry:
                    return folder
        return None

    def owners(self, mailbox: str) -> list[str]:
        """The registrations whose directory this is; its name tells the address, by which they are found quickly."""
        sql = "SELECT registration_id FROM mailbox_registrations WHERE directory = ? AND status <> 'purged'"
        address = names.owner_of_entry(mailbox)
        return [row[0] for row in self.query(f"{sql} AND address = ?", mailbox, address) or self.query(sql, mailbox)]

    def _describe(self, message_id: str) -> list[AddContent | MarkDamaged] | bool:
        """True: the rows have it. Effects: its file alone tells of it. False: there is no such message."""
        row = self.query("SELECT file_sha256 FROM messages WHERE message_id = ?", message_id)
        if row:
            return bool(row[0][0])
        told = describe(self.state, message_id, self.descriptions.get(message_id))
        if told is None:
            return False
        return [content_effect(self.state, message_id, told), *damage_effects(message_id, told)]

    def uidvalidity(self) -> int:
        last = self.query("SELECT value FROM meta WHERE key = 'last_uidvalidity'")[0][0]
        return max(ids.microseconds() // 1_000_000, int(last) + 1)

    def query(self, sql: str, *values: object) -> list[Any]:
        return self.state.connection.execute(sql, values).fetchall()


def _both(row: Folder, path: Identity) -> str:
    one, two = ids.folder_label(row.id), ids.folder_label(path.folder)
    return f"the index says {one}, the path says {two}, both have mail and the journal cannot tell"
