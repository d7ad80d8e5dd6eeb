"""Mending messages: adopting what only its file tells of, taking lost messages out of folders, and links one by one."""

from __future__ import annotations

import contextlib
from typing import Any

from adapter.maintenance import quarantine
from adapter.maintenance.findings import Finding, Outcome
from adapter.maintenance.mend_folders import Mender
from adapter.maintenance.mend_registrations import register
from adapter.maintenance.message_rows import content_effect, describe
from adapter.maintenance.placing import Placing
from adapter.store import disk, layout, names, queries
from adapter.store.journal import Effect
from adapter.store.queries import Folder
from adapter.transport.effects import content, outbox, projections
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
        folder = queries.folder_by_id(state.connection, finding.folder)
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
    if mender.query("SELECT 1 FROM messages WHERE message_id = ?", finding.id):
        return Outcome(finding, "repaired", "indexed with the folder that shows it")
    where = layout.message_directory(finding.id)
    told = describe(state, finding.id, meta)
    effect = None if told is None else content_effect(state, finding.id, told)
    if told is None or effect is None:
        moved = quarantine.move(state.directories, where, layout.message_name(finding.id), "a part of it is lost")
        return Outcome(finding, "loss", f"a part of it is lost: moved to {moved}")
    shown: dict[str, tuple[Folder, int]] = {}
    for home in homes:
        folder = mender.at(home["mailbox"], home["entry"])
        if folder is not None:
            shown[f"{home['mailbox']}/{home['entry']}"] = folder, home["uid"]
    for folder_id, uid in mender.set_aside.places(finding.id):
        folder = queries.folder_by_id(state.connection, folder_id)
        if folder is not None:
            shown[f"{folder.directory}/{names.folder_entry(folder.name)}"] = folder, uid
    if not shown:
        for address in _recipients(mender, told):
            inbox = queries.active_folder(state.connection, address, names.INBOX)
            if inbox is not None:
                shown[address] = inbox, 0
    if shown:
        placing.content(effect)
        for folder, uid in shown.values():
            placing.project(folder, finding.id, uid)
        return Outcome(
            finding, "repaired", f"indexed; shown in {', '.join(shown)}; flags are the default where the index has none"
        )
    moved = quarantine.move(
        state.directories, where, layout.message_name(finding.id), "no record, no folder and no recipient here"
    )
    return Outcome(finding, "repaired", f"nobody here is its recipient: moved to {moved}")


def _recipients(mender: Mender, told: dict[str, Any]) -> list[str]:
    """Who gets a message that no folder shows: by its headers; where no account is known, they are made."""
    wanted = _valid(told["addressed"])

    def has_inbox(address: str) -> bool:
        return queries.active_folder(mender.state.connection, address, names.INBOX) is not None

    if mender.found_accounts:
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
    drop = content.drop(state.connection, [message_id])
    state.commit([*changes, drop])
    for sha256 in drop["blobs"]:
        quarantine.move(state.directories, layout.blob_directory(sha256), sha256, "its message is lost")
    for folder, uid in places:
        where = layout.folder_directory(folder.directory, folder.name)
        quarantine.move(state.directories, where, layout.projection_name(uid, message_id), "its message is lost")
    subject = state.connection.execute(
        "SELECT header_from, subject FROM messages WHERE message_id = ?", (message_id,)
    ).fetchone()
    told = f"{subject[1]!r} from {subject[0]}" if subject else message_id
    return Outcome(finding, "loss", f"{why}: {told}, shown {len(places)} times; taken out of its folders")
