"""Mending messages: adopting what only its file tells of, taking lost messages out of folders, and links one by one."""

from __future__ import annotations

import contextlib
from typing import Any

from adapter.maintenance import quarantine
from adapter.maintenance.findings import Finding, Outcome, Severity
from adapter.maintenance.repair.accounts import register
from adapter.maintenance.repair.folders import Mender
from adapter.maintenance.repair.links import Placing
from adapter.maintenance.scan.message_rows import arrived, content_effect, damage_effects, describe, is_unreadable
from adapter.store import disk, layout, names
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


def link(mender: Mender, placing: Placing, finding: Finding) -> Outcome:
    """A link that is missing, wrong, or one too many. The row is read again first."""
    state = mender.state
    where = (*layout.mailbox_directory(finding.mailbox), finding.entry)
    if mender.query(
        "SELECT 1 FROM mailbox_projections WHERE folder_id = ? AND uid = ? AND message_id = ?",
        finding.folder,
        finding.uid,
        finding.id,
    ):
        if finding.kind == "projection-wrong-target":
            quarantine.move(state.directories, where, finding.name, "not the link that belongs here")
        with state.directories.open(where) as directory:
            if not disk.exists(directory, finding.name):
                disk.symlink(directory, finding.name, layout.projection_target(finding.id))
        return Outcome(finding, "repaired", "made the link")
    if finding.kind in ("projection-orphan", "projection-duplicate-uid") and not state.facts.complete:
        folder = mailboxes.folder_by_id(state.connection, finding.folder)
        if folder is not None:
            placing.project(folder, finding.id, finding.uid)
            return Outcome(finding, "repaired", "added the row; its flags are the default")
    moved = quarantine.move(state.directories, where, finding.name, f"{finding.kind}: no row shows it")
    return Outcome(finding, "repaired", f"moved to {moved}" if moved else "gone already")


def adopt(
    mender: Mender, placing: Placing, finding: Finding, homes: list[dict[str, Any]], meta: bytes | None
) -> Outcome:
    """Index a message that only its file tells of, and show it where links say, else in its recipients' inboxes."""
    state = mender.state
    severity: Severity = "loss" if finding.kind == "message-corrupt" else "repaired"
    if mender.query("SELECT 1 FROM messages WHERE message_id = ?", finding.id):
        return Outcome(finding, severity, "indexed with the folder that shows it")
    where = layout.message_directory(finding.id)
    told = describe(state, finding.id, meta)
    if told is None:
        if is_unreadable(state, finding.id):
            return Outcome(finding, "unreadable", "left as it is until it can be read")
        moved = quarantine.move(state.directories, where, layout.message_name(finding.id), "is no message")
        return Outcome(finding, "loss", f"is no message: moved to {moved}")
    effect = content_effect(state, finding.id, told)
    shown: dict[str, tuple[Folder, int]] = {}
    for home in homes:
        folder = mender.at(home["mailbox"], home["entry"])
        if folder is not None:
            shown[f"{home['mailbox']}/{home['entry']}"] = folder, home["uid"]
    for folder_id, uid in mender.set_aside.places(finding.id):
        folder = mailboxes.folder_by_id(state.connection, folder_id)
        if folder is not None:
            shown[f"{folder.directory}/{names.folder_entry(folder.name)}"] = folder, uid
    if not shown:
        for address in _recipients(mender, told):
            inbox = mailboxes.active_folder(state.connection, address, names.INBOX)
            if inbox is not None:
                shown[address] = inbox, 0
    if shown:
        placing.content(effect)
        for each in damage_effects(finding.id, told):
            placing.content(each)
        for folder, uid in shown.values():
            placing.project(folder, finding.id, uid)
        done = f"shown in {', '.join(shown)}; flags are the default where the index has none"
        if told["damaged"]:
            return Outcome(finding, "loss", f"marked as damaged, {done}; the file stays where it is")
        return Outcome(finding, "repaired", f"indexed; {done}")
    moved = quarantine.move(
        state.directories, where, layout.message_name(finding.id), "no record, no folder and no recipient here"
    )
    return Outcome(finding, severity, f"nobody here is its recipient: moved to {moved}")


def _recipients(mender: Mender, told: dict[str, Any]) -> list[str]:
    """Who gets a message that no folder shows: by its headers; where no account is known, they are made."""
    wanted = _valid(told["addressed"])

    def has_inbox(address: str) -> bool:
        return mailboxes.active_folder(mender.state.connection, address, names.INBOX) is not None

    if mender.has_accounts:
        return [address for address in wanted if has_inbox(address)] or [
            address for address in (told["from"].casefold(),) if has_inbox(address)
        ]
    wanted = wanted or _valid([told["from"]])
    for address in wanted:
        if not has_inbox(address):
            register(mender, address)
    return wanted


def _valid(found: list[str]) -> list[str]:
    known = []
    for address in found:
        with contextlib.suppress(MailError):
            known.append(names.normalise_address(address))
    return list(dict.fromkeys(known))


def mark(mender: Mender, finding: Finding, sha256: str) -> Outcome:
    """A canonical file that nothing restores stays readable where it is; mail clients get a stand-in for it."""
    mender.state.commit([MarkDamaged(finding.id, "", sha256), *_unqueue(mender, finding.id)])
    done = f"marked as damaged: {_title(mender, finding.id)}; it stays in its folders, and the file where it is"
    return Outcome(finding, "loss", done)


def mark_blob(mender: Mender, finding: Finding) -> Outcome:
    """A lost part does not take its messages away: a placeholder of the same size stands for it."""
    needing = mender.query("SELECT DISTINCT message_id FROM message_attachments WHERE sha256 = ?", finding.id)
    names = []
    for (message_id,) in needing:
        mender.state.commit([MarkDamaged(message_id, finding.id), *_unqueue(mender, message_id)])
        names.append(_title(mender, message_id))
    done = f"a placeholder stands for it in: {'; '.join(names)}" if names else "no message needs it any more"
    return Outcome(finding, "loss", done)


def heal(mender: Mender, message_id: str, parts: list[str]) -> str:
    """Parts that are there again: the octets change, so the message gets a new UID in each of its folders."""
    state = mender.state
    shown = _places(mender, message_id)
    renamed = _Showing(mender, message_id)
    for place in shown:
        renamed.add(place, replaces=True)
    state.commit([ClearDamage(message_id, tuple(parts)), *renamed.changes])
    renamed.link()
    return f"complete again: {_title(mender, message_id)}; shown {len(shown)} times under a new UID"


def restore_lost(mender: Mender, finding: Finding, sha256: str) -> Outcome:
    """A message whose loss was recorded is there again: shown where it was, with its flags and a new UID."""
    state = mender.state
    message_id = finding.id
    where = layout.message_directory(message_id)
    told = describe(state, message_id, None)
    wire = mender.query("SELECT wire_sha256, size FROM messages WHERE message_id = ?", message_id)
    if told is None or wire != [(told["wire"], told["size"])]:
        moved = quarantine.move(
            state.directories, where, layout.message_name(message_id), "not the message that was lost"
        )
        return Outcome(finding, "repaired", f"not the message that was lost: moved to {moved}")
    shown = _Showing(mender, message_id)
    for row in mender.query(f"{_LOST_PLACES} WHERE message_id = ?", message_id):
        shown.add(LostPlace(*row))
    if not shown.folders:
        for address in _recipients(mender, told):
            inbox = mailboxes.active_folder(state.connection, address, names.INBOX)
            if inbox is not None:
                at = arrived(message_id)
                shown.add(LostPlace(inbox.id, 0, at, at, 0, ""))
    state.commit([RestoreLost(message_id, sha256), *shown.changes])
    shown.link()
    places = ", ".join(f"{each.directory}/{each.name}" for each in shown.folders)
    return Outcome(finding, "repaired", f"shown again: {_title(mender, message_id)}; in {places or 'no folder'}")


_PLACES = """
SELECT p.folder_id, p.uid, p.internal_date, p.saved_at, s.flags, s.keywords
FROM mailbox_projections p JOIN mailbox_state s USING (folder_id, uid) WHERE p.message_id = ? ORDER BY 1, 2
"""
_LOST_PLACES = "SELECT folder_id, uid, internal_date, saved_at, flags, keywords FROM lost_places"


def _places(mender: Mender, message_id: str) -> list[LostPlace]:
    return [LostPlace(*row) for row in mender.query(_PLACES, message_id)]


def _unqueue(mender: Mender, message_id: str) -> list[Effect]:
    """A damaged message is not sent on to others: it leaves the outbox."""
    queued = mender.query("SELECT queue_id, recipient FROM outbox WHERE message_id = ?", message_id)
    rows = tuple(
        DequeuedRow(queue_id, message_id, recipient, "dropped", "the content is lost") for queue_id, recipient in queued
    )
    return [Dequeue(rows)] if rows else []


def _title(mender: Mender, message_id: str) -> str:
    row = mender.query("SELECT header_from, subject FROM messages WHERE message_id = ?", message_id)
    return f"{row[0][1]!r} from {row[0][0]}" if row else message_id


class _Showing:
    """One message on its way into folders under new UIDs: effects for one record, and links afterwards."""

    def __init__(self, mender: Mender, message_id: str) -> None:
        self._mender = mender
        self._message_id = message_id
        self._numbers: dict[int, list[int]] = {}  # folder -> UIDNEXT, highest mod-sequence
        self._links: list[tuple[Folder, int, int]] = []  # the UID before, 0 if there was none, and the new one
        self.changes: list[Effect] = []

    @property
    def folders(self) -> list[Folder]:
        return [folder for folder, _, _ in self._links]

    def add(self, place: LostPlace, *, replaces: bool = False) -> None:
        """Show the message in the folder of ``place``, instead of there if it ``replaces`` it. Skip a folder that is
        gone."""
        folder = mailboxes.folder_by_id(self._mender.state.connection, place.folder)
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
            where = layout.folder_directory(folder.directory, folder.name)
            with self._mender.state.directories.open(where) as directory:
                old, new = (layout.projection_name(each, self._message_id) for each in (before, uid))
                if disk.exists(directory, new):
                    continue
                if before and disk.exists(directory, old):
                    disk.rename(directory, old, directory, new)
                else:
                    disk.symlink(directory, new, layout.projection_target(self._message_id))


def lose(mender: Mender, finding: Finding, why: str) -> Outcome:
    """Content of which nothing is left: the message leaves its folders, and the record says where it was."""
    state = mender.state
    message_id = finding.id
    shown = _places(mender, message_id)
    changes: list[Effect] = []
    places = []
    for place in shown:
        folder = mailboxes.folder_by_id(state.connection, place.folder)
        if folder is not None:
            modseq = folder.highestmodseq + 1 + len(changes)
            changes.append(Unproject.out_of(folder, modseq, (UnprojectedRow(place.uid, message_id),)))
            places.append((folder, place.uid))
    state.commit([*changes, *_unqueue(mender, message_id), MarkLost(message_id, tuple(shown))])
    for folder, uid in places:
        where = layout.folder_directory(folder.directory, folder.name)
        quarantine.move(state.directories, where, layout.projection_name(uid, message_id), "its message is lost")
    title = _title(mender, message_id)
    return Outcome(finding, "loss", f"{why}: {title}, shown {len(places)} times; taken out of its folders")
