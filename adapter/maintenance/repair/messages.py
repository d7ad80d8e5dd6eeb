"""Repair messages: adopt those known only from their files, remove lost ones from folders, and repair links."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from adapter.maintenance.findings import Finding, Outcome, Severity
from adapter.maintenance.repair.accounts import register
from adapter.maintenance.repair.folders import FolderRepair
from adapter.maintenance.repair.links import LinkPlacement
from adapter.maintenance.repair.message_rows import arrived, content_effect, damage_effects, describe, is_unreadable
from adapter.maintenance.scan.message_check import IndexEntries
from adapter.store import disk, layout, names, quarantine
from adapter.store.effects import (
    ClearDamage,
    Dequeue,
    DequeuedRow,
    Effect,
    LostPlace,
    MarkDamaged,
    MarkLost,
    Project,
    ProjectedRow,
    RestoreLost,
    Unproject,
    UnprojectedRow,
)
from adapter.store.queries import mailboxes
from adapter.store.queries.mailboxes import Folder
from adapter.transport.operations.base import MAX_UID
from protocol.errors import MailError


def link(repair: FolderRepair, placement: LinkPlacement, finding: Finding) -> Outcome:
    """Repair a missing, wrong or orphaned link. The row is read again first."""
    target = repair.target
    where = (*layout.mailbox_directory(finding.mailbox), finding.entry)
    if repair.query(
        "SELECT 1 FROM mailbox_projections WHERE folder_id = ? AND uid = ? AND message_id = ?",
        finding.folder,
        finding.uid,
        finding.id,
    ):
        if finding.kind == "projection-wrong-target":
            quarantine.move(target.directories, where, finding.name, "the link has another target")
        with target.directories.open(where) as directory:
            if not disk.exists(directory, finding.name):
                disk.symlink(directory, finding.name, layout.projection_target(finding.id))
        return Outcome(finding, "repaired", "created the link")
    if finding.kind in ("projection-orphan", "projection-duplicate-uid") and not target.facts.complete:
        folder = mailboxes.folder_by_id(target.connection, finding.folder)
        if folder is not None:
            placement.project(folder, finding.id, finding.uid)
            return Outcome(finding, "repaired", "added the row with default flags")
    moved = quarantine.move(target.directories, where, finding.name, f"{finding.kind}: the folder has no such row")
    return Outcome(finding, "repaired", f"moved to {moved}" if moved else "already gone")


def adopt(
    repair: FolderRepair, placement: LinkPlacement, finding: Finding, homes: list[dict[str, Any]], meta: bytes | None
) -> Outcome:
    """Index a message known only from its file; show it in the folders of its links, else in recipients' inboxes."""
    target = repair.target
    severity: Severity = "loss" if finding.kind == "message-corrupt" else "repaired"
    if repair.query("SELECT 1 FROM messages WHERE message_id = ?", finding.id):
        return Outcome(finding, severity, "indexed with the folder that shows it")
    where = layout.message_directory(finding.id)
    entries = describe(target, finding.id, meta)
    if entries is None:
        if is_unreadable(target, finding.id):
            return Outcome(finding, "unreadable", "unchanged until it can be read")
        moved = quarantine.move(target.directories, where, layout.message_name(finding.id), "not a message")
        return Outcome(finding, "loss", f"not a message: moved to {moved}")
    effect = content_effect(target, finding.id, entries)
    shown: dict[str, tuple[Folder, int]] = {}
    for home in homes:
        folder = repair.at(home["mailbox"], home["entry"])
        if folder is not None:
            shown[f"{home['mailbox']}/{home['entry']}"] = folder, home["uid"]
    for folder_id, uid in repair.set_aside.places(finding.id):
        folder = mailboxes.folder_by_id(target.connection, folder_id)
        if folder is not None:
            shown[f"{folder.directory}/{names.folder_entry(folder.name)}"] = folder, uid
    if not shown:
        for address in _recipients(repair, entries):
            inbox = mailboxes.active_folder(target.connection, address, names.INBOX)
            if inbox is not None:
                shown[address] = inbox, 0
    if shown:
        placement.content(effect)
        for each in damage_effects(finding.id, entries):
            placement.content(each)
        for folder, uid in shown.values():
            placement.project(folder, finding.id, uid)
        done = f"shown in {', '.join(shown)}; default flags where the index has none"
        if entries.damaged:
            return Outcome(finding, "loss", f"marked as damaged, {done}; the file is unchanged")
        return Outcome(finding, "repaired", f"indexed; {done}")
    moved = quarantine.move(
        target.directories, where, layout.message_name(finding.id), "no record, no folder and no local recipient"
    )
    return Outcome(finding, severity, f"no local recipient: moved to {moved}")


def _recipients(repair: FolderRepair, entries: IndexEntries) -> list[str]:
    """The recipients of a message that no folder shows, by its headers. Without any account, they are registered."""
    recipients = _valid(entries.addressed)

    def has_inbox(address: str) -> bool:
        return mailboxes.active_folder(repair.target.connection, address, names.INBOX) is not None

    if repair.has_accounts:
        return [address for address in recipients if has_inbox(address)] or [
            address for address in (entries.sender.casefold(),) if has_inbox(address)
        ]
    recipients = recipients or _valid([entries.sender])
    for address in recipients:
        if not has_inbox(address):
            register(repair, address)
    return recipients


def _valid(addresses: Iterable[str]) -> list[str]:
    """The valid addresses, normalised and without duplicates."""
    normalised = []
    for address in addresses:
        with contextlib.suppress(MailError):
            normalised.append(names.normalise_address(address))
    return list(dict.fromkeys(normalised))


def mark(repair: FolderRepair, finding: Finding, sha256: str) -> Outcome:
    """Mark a message with an unrecoverable file as damaged: the file stays readable, clients get a stand-in."""
    repair.target.commit([MarkDamaged(finding.id, "", sha256), *_unqueue(repair, finding.id)])
    done = f"marked as damaged: {_title(repair, finding.id)}; its folders and its file are unchanged"
    return Outcome(finding, "loss", done)


def mark_blob(repair: FolderRepair, finding: Finding) -> Outcome:
    """Mark the messages of an unrecoverable part as damaged: they are served with a placeholder of the same size."""
    needing = repair.query("SELECT DISTINCT message_id FROM message_attachments WHERE sha256 = ?", finding.id)
    names = []
    for (message_id,) in needing:
        repair.target.commit([MarkDamaged(message_id, finding.id), *_unqueue(repair, message_id)])
        names.append(_title(repair, message_id))
    done = f"replaced with a placeholder in: {'; '.join(names)}" if names else "no longer needed by any message"
    return Outcome(finding, "loss", done)


def heal(repair: FolderRepair, message_id: str, parts: list[str]) -> str:
    """Clear the damage of returned parts. The octets change, so the message gets a new UID in each folder."""
    target = repair.target
    shown = _places(repair, message_id)
    renamed = _Showing(repair, message_id)
    for place in shown:
        renamed.add(place, replaces=True)
    target.commit([ClearDamage(message_id, tuple(parts)), *renamed.changes])
    renamed.link()
    return f"complete again: {_title(repair, message_id)}; new UID in {len(shown)} folders"


def restore_lost(repair: FolderRepair, finding: Finding, sha256: str) -> Outcome:
    """Show a message that returned after its loss was recorded: in its former folders, with its flags and a new UID."""
    target = repair.target
    message_id = finding.id
    where = layout.message_directory(message_id)
    entries = describe(target, message_id, None)
    wire = repair.query("SELECT wire_sha256, size FROM messages WHERE message_id = ?", message_id)
    if entries is None or wire != [(entries.wire_sha256, entries.size)]:
        why = "differs from the lost message"
        moved = quarantine.move(target.directories, where, layout.message_name(message_id), why)
        return Outcome(finding, "repaired", f"{why}: moved to {moved}")
    shown = _Showing(repair, message_id)
    for row in repair.query(f"{_LOST_PLACES} WHERE message_id = ?", message_id):
        shown.add(LostPlace(*row))
    if not shown.folders:
        for address in _recipients(repair, entries):
            inbox = mailboxes.active_folder(target.connection, address, names.INBOX)
            if inbox is not None:
                at = arrived(message_id)
                shown.add(LostPlace(inbox.id, 0, at, at, 0, ""))
    target.commit([RestoreLost(message_id, sha256), *shown.changes])
    shown.link()
    places = ", ".join(f"{each.directory}/{each.name}" for each in shown.folders)
    return Outcome(finding, "repaired", f"shown again: {_title(repair, message_id)}; in {places or 'no folder'}")


_PLACES = """
SELECT p.folder_id, p.uid, p.internal_date, p.saved_at, s.flags, s.keywords
FROM mailbox_projections p JOIN mailbox_state s USING (folder_id, uid) WHERE p.message_id = ? ORDER BY 1, 2
"""
_LOST_PLACES = "SELECT folder_id, uid, internal_date, saved_at, flags, keywords FROM lost_places"


def _places(repair: FolderRepair, message_id: str) -> list[LostPlace]:
    return [LostPlace(*row) for row in repair.query(_PLACES, message_id)]


def _unqueue(repair: FolderRepair, message_id: str) -> list[Effect]:
    """Effects that remove a damaged message from the outbox, so that it is not relayed."""
    queued = repair.query("SELECT queue_id, recipient FROM outbox WHERE message_id = ?", message_id)
    rows = tuple(
        DequeuedRow(queue_id, message_id, recipient, "dropped", "the content is lost") for queue_id, recipient in queued
    )
    return [Dequeue(rows)] if rows else []


def _title(repair: FolderRepair, message_id: str) -> str:
    row = repair.query("SELECT header_from, subject FROM messages WHERE message_id = ?", message_id)
    return f"{row[0][1]!r} from {row[0][0]}" if row else message_id


class _Showing:
    """Shows one message in folders under new UIDs: effects for one record, then the links."""

    def __init__(self, repair: FolderRepair, message_id: str) -> None:
        self._folder_repair = repair
        self._message_id = message_id
        self._numbers: dict[int, list[int]] = {}  # folder -> UIDNEXT, highest mod-sequence
        self._links: list[tuple[Folder, int, int]] = []  # the UID before, 0 if there was none, and the new one
        self.changes: list[Effect] = []

    @property
    def folders(self) -> list[Folder]:
        return [folder for folder, _, _ in self._links]

    def add(self, place: LostPlace, *, replaces: bool = False) -> None:
        """Show the message in the folder of ``place``, if it exists. ``replaces``: instead of its UID there."""
        folder = mailboxes.folder_by_id(self._folder_repair.target.connection, place.folder)
        if folder is None:
            return
        numbers = self._numbers.setdefault(place.folder, [folder.uidnext, folder.highestmodseq])
        if numbers[0] > MAX_UID:
            return
        uid = place.uid if replaces else 0
        if uid:
            numbers[1] += 1
            self.changes.append(Unproject.out_of(folder, numbers[1], (UnprojectedRow(uid, self._message_id),)))
        numbers[1] += 1
        row = ProjectedRow(
            numbers[0], self._message_id, place.internal_date, place.saved_at, place.flags, place.keywords
        )
        self.changes.append(Project.into(folder, numbers[1], (row,)))
        self._links.append((folder, uid, numbers[0]))
        numbers[0] += 1

    def link(self) -> None:
        for folder, before, uid in self._links:
            try:
                self._link_in(layout.folder_directory(folder.directory, folder.name), before, uid)
            except OSError as error:
                if not disk.is_unreadable(error):  # else the link is a finding once the folder can be read
                    raise

    def _link_in(self, where: layout.Parts, before: int, uid: int) -> None:
        with self._folder_repair.target.directories.open(where) as directory:
            old, new = (layout.projection_name(each, self._message_id) for each in (before, uid))
            if disk.exists(directory, new):
                return
            if before and disk.exists(directory, old):
                disk.rename(directory, old, directory, new)
            else:
                disk.symlink(directory, new, layout.projection_target(self._message_id))


def lose(repair: FolderRepair, finding: Finding, why: str) -> Outcome:
    """Remove a message with unrecoverable content from its folders, and record its former places."""
    target = repair.target
    message_id = finding.id
    shown = _places(repair, message_id)
    changes: list[Effect] = []
    places = []
    for place in shown:
        folder = mailboxes.folder_by_id(target.connection, place.folder)
        if folder is not None:
            modseq = folder.highestmodseq + 1 + len(changes)
            changes.append(Unproject.out_of(folder, modseq, (UnprojectedRow(place.uid, message_id),)))
            places.append((folder, place.uid))
    target.commit([*changes, *_unqueue(repair, message_id), MarkLost(message_id, tuple(shown))])
    for folder, uid in places:
        where = layout.folder_directory(folder.directory, folder.name)
        name = layout.projection_name(uid, message_id)
        try:
            quarantine.move(target.directories, where, name, "its message is lost")
        except OSError as error:
            if not disk.is_unreadable(error):  # else the link is a finding once the folder can be read
                raise
    title = _title(repair, message_id)
    return Outcome(finding, "loss", f"{why}: {title}; removed from {len(places)} folders")
