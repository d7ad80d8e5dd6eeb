"""Mending messages: adopting what only its file tells of, taking lost messages out of folders, and links one by one."""

from __future__ import annotations

import contextlib
from typing import Any

from adapter.maintenance import quarantine
from adapter.maintenance.findings import Finding, Outcome
from adapter.maintenance.mend_folders import Mender
from adapter.maintenance.mend_registrations import register
from adapter.maintenance.message_rows import arrived, content_effect
from adapter.store import disk, layout, names, queries
from adapter.store.journal import Effect
from adapter.store.queries import Folder
from adapter.transport.effects import outbox, projections
from adapter.transport.flags import Flag
from protocol.errors import MailError


def link(mender: Mender, finding: Finding) -> Outcome:
    """A link that is missing, wrong, or one too many. The row is read again first."""
    state = mender.state
    where = (*layout.mailbox_directory(finding.mailbox), finding.entry)
    rows = state.connection.execute(
        "SELECT 1 FROM mailbox_projections WHERE folder_id = ? AND uid = ? AND message_id = ?",
        (finding.folder, finding.uid, finding.id),
    ).fetchall()
    if rows:
        if finding.kind == "projection-wrong-target":
            quarantine.move(state.directories, where, finding.name, "not the link that belongs here")
        with state.directories.open(where) as directory:
            if not disk.exists(directory, finding.name):
                disk.symlink(directory, finding.name, layout.projection_target(finding.id))
        return Outcome(finding, "repaired", "made the link")
    if finding.kind in ("projection-orphan", "projection-duplicate-uid") and not state.facts.complete:
        folder = queries.folder_by_id(state.connection, finding.folder)
        if folder is not None and project(mender, folder, finding.id, finding.uid, []):
            return Outcome(finding, "repaired", "added the row; its flags are the default")
    moved = quarantine.move(state.directories, where, finding.name, f"{finding.kind}: no row shows it")
    return Outcome(finding, "repaired", f"moved to {moved}" if moved else "gone already")


def project(mender: Mender, folder: Folder, message_id: str, wanted: int, changes: list[Effect]) -> int:
    """Show a message in a folder, under ``wanted`` if that UID is free and was never given out; returns the UID."""
    state = mender.state
    floor = mender.floors.setdefault(folder.id, folder.uidnext)
    taken = state.connection.execute(
        "SELECT 1 FROM mailbox_projections WHERE folder_id = ? AND uid = ?", (folder.id, wanted)
    ).fetchone()
    uid = wanted if wanted >= floor and not taken else max(folder.uidnext, wanted + 1)
    at = arrived(message_id)
    flags = int(Flag.ARCHIVED) if folder.special_use == "\\Archive" else 0
    effect = projections.effect(folder, folder.highestmodseq + 1, [(uid, message_id, at, at, flags, "")])
    state.commit([*changes, effect])
    changes.clear()
    with state.directories.open(layout.folder_directory(folder.directory, folder.name)) as directory:
        name, old = layout.projection_name(uid, message_id), layout.projection_name(wanted, message_id)
        if not disk.exists(directory, name):
            if uid != wanted and disk.exists(directory, old):
                disk.rename(directory, old, directory, name)
            else:
                disk.symlink(directory, name, layout.projection_target(message_id))
    return uid


def adopt(mender: Mender, finding: Finding, homes: list[dict[str, Any]], meta: bytes | None) -> Outcome:
    """Index a message that only its file tells of, and show it where links say, else in its recipients' inboxes."""
    state = mender.state
    if state.connection.execute("SELECT 1 FROM messages WHERE message_id = ?", (finding.id,)).fetchone():
        return Outcome(finding, "repaired", "indexed with the folder that shows it")
    effect = content_effect(state, finding.id, meta)
    where = layout.message_directory(finding.id)
    if effect is None:
        moved = quarantine.move(state.directories, where, layout.message_name(finding.id), "a part of it is lost")
        return Outcome(finding, "loss", f"a part of it is lost: moved to {moved}")
    changes: list[Effect] = [effect]
    shown = []
    for home in homes:
        folder = mender.at(home["mailbox"], home["entry"])
        if folder is not None:
            project(mender, folder, finding.id, home["uid"], changes)
            shown.append(f"{home['mailbox']}/{home['entry']}")
    if not shown:
        for address in _recipients(mender, finding.id, effect):
            inbox = queries.active_folder(state.connection, address, names.INBOX)
            if inbox is not None:
                project(mender, inbox, finding.id, 0, changes)
                shown.append(address)
    if shown:
        return Outcome(finding, "repaired", f"indexed; shown in {', '.join(shown)} with default flags")
    moved = quarantine.move(
        state.directories, where, layout.message_name(finding.id), "no record, no folder and no recipient here"
    )
    return Outcome(finding, "repaired", f"nobody here is its recipient: moved to {moved}")


def _recipients(mender: Mender, message_id: str, effect: Effect) -> list[str]:
    """Who gets a message that no folder shows: by its headers; where no account is known, they are made."""
    state = mender.state
    wanted = header_addresses(mender, message_id)
    if mender.found_accounts:
        local = [
            address for address in wanted if queries.active_folder(state.connection, address, names.INBOX) is not None
        ]
        sender = effect["from"].casefold()
        if not local and queries.active_folder(state.connection, sender, names.INBOX) is not None:
            local = [sender]
        return local
    for address in wanted or _valid([effect["from"]]):
        if queries.active_folder(state.connection, address, names.INBOX) is None:
            register(mender, address)
    return wanted or _valid([effect["from"]])


def header_addresses(mender: Mender, message_id: str) -> list[str]:
    """To, Cc and Delivered-To of the octets, each address once, in that order."""
    from adapter.content import front_matter, wire
    from adapter.maintenance.examine import Blobs
    from protocol.mime.address import mailboxes
    from protocol.mime.scanner import scan

    directories = mender.state.directories
    with directories.open(layout.message_directory(message_id)) as directory:
        file = disk.read_file(directory, layout.message_name(message_id))
    recipe = front_matter.recipe_of(file)
    head = b"".join(wire.octets(file, recipe, Blobs(directories), 0, 1 << 20))
    headers = scan(head).headers
    found = [
        mailbox.address
        for name in ("to", "cc", "delivered-to")
        for value in headers.all(name)
        for mailbox in mailboxes(value)
    ]
    return _valid(found)


def _valid(found: list[str]) -> list[str]:
    known = []
    for address in found:
        with contextlib.suppress(MailError):
            known.append(names.normalise_address(address))
    return list(dict.fromkeys(known))


def lose(mender: Mender, finding: Finding, why: str) -> Outcome:
    """Content that nothing holds any more: the message leaves its folders; that it was delivered stays on record."""
    state = mender.state
    message_id = finding.id
    shown = state.connection.execute(
        "SELECT folder_id, uid FROM mailbox_projections WHERE message_id = ? ORDER BY folder_id, uid", (message_id,)
    ).fetchall()
    changes: list[Effect] = []
    places = []
    for folder_id, uid in shown:
        folder = queries.folder_by_id(state.connection, folder_id)
        if folder is not None:
            changes.append(projections.removal(folder, folder.highestmodseq + 1 + len(changes), [(uid, message_id)]))
            places.append((folder, uid))
    queued = state.connection.execute(
        "SELECT queue_id, message_id, recipient FROM outbox WHERE message_id = ?", (message_id,)
    ).fetchall()
    if queued:
        changes.append(outbox.removal([(*row, "dropped", "the content is lost") for row in queued]))
    changes.append({"do": "drop", "ids": [message_id], "blobs": []})
    state.commit(changes)
    for folder, uid in places:
        where = layout.folder_directory(folder.directory, folder.name)
        quarantine.move(state.directories, where, layout.projection_name(uid, message_id), "its message is lost")
    subject = state.connection.execute(
        "SELECT header_from, subject FROM messages WHERE message_id = ?", (message_id,)
    ).fetchone()
    told = f"{subject[1]!r} from {subject[0]}" if subject else message_id
    return Outcome(finding, "loss", f"{why}: {told}, shown {len(places)} times; taken out of its folders")
