"""Content: a canonical file, the blobs it names, and its rows."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from enum import Enum
from functools import partial

from pybase64 import b64decode, b64encode_as_string

from adapter.content.ingest import Ingested
from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.store.journal import Effect
from adapter.transport.apply import quarantine
from adapter.transport.apply.undo import Undo
from adapter.transport.staging import Staged


def effect(staged: Staged, sender: str, recipients: list[tuple[str, str]]) -> Effect:
    content = staged.content
    attached = [(item.sha256, "attachment", item.name, item.type, item.size) for item in content.attachments]
    listed = {item[0] for item in attached}
    parts = [(blob.sha256, "part", "", "", blob.size) for blob in staged.blobs if blob.sha256 not in listed]
    return {
        "do": "content",
        "id": content.id,
        "arrived": staged.arrived // 1_000_000,
        "sender": sender,
        "from": content.sender,
        "subject": content.subject,
        "header_id": content.message_id or "",
        "thread": content.thread,
        "size": content.size,
        "wire": content.wire_sha256,
        "file": content.file_sha256,
        "text": content.file.decode() if staged.inline else None,
        "staged": [staged.session, staged.name],
        "blobs": [
            [
                blob.sha256,
                blob.size,
                b64encode_as_string(blob.data) if blob.data is not None else None,
                blob.name,
            ]
            for blob in staged.blobs
        ],
        "attachments": attached + parts,
        "recipients": recipients,
    }


# --- files -----------------------------------------------------------------------------------------------------------


def place(effect: Effect, directories: Directories, undo: Undo) -> None:
    session, name = effect["staged"]
    with directories.open(layout.staging_directory(session)) as staging:
        for sha256, size, data, staged in effect["blobs"]:
            where = layout.blob_directory(sha256)
            with directories.stable(where, create=True) as target:
                if staged is None or disk.is_file(target, sha256, size):
                    continue
                if disk.exists(target, sha256):
                    quarantine.set_aside(directories, target, sha256)
            _move(directories, staging, session, staged, where, sha256, data, undo)
        where = layout.message_directory(effect["id"])
        _move(directories, staging, session, name, where, layout.message_name(effect["id"]), effect["text"], undo)


def _move(
    directories: Directories,
    staging: int,
    session: str,
    name: str,
    where: layout.Parts,
    new_name: str,
    journaled: str | None,
    undo: Undo,
) -> None:
    """Put a staged file in place.

    What the journal carries is renamed. What it does not carry is linked and keeps its synced name in staging until a
    checkpoint, since a power loss could otherwise take both names of it.
    """
    with directories.stable(where, create=True) as target:
        if journaled is None:
            disk.link(staging, name, target, new_name)
        else:
            disk.rename(staging, name, target, new_name)

    def back() -> None:
        with (
            directories.open(layout.staging_directory(session)) as source,
            directories.stable(where) as target,
        ):
            if journaled is None:
                disk.unlink(target, new_name)
            else:
                disk.rename(target, new_name, source, name)

    undo.add(back)


class Belief(Enum):
    """Which files need not be written: those there are, those with the right content, or none."""

    NAMES = "names"
    CONTENT = "content"
    NOTHING = "nothing"


def restore(effect: Effect, directories: Directories, belief: Belief, *, leaving: bool) -> None:
    """Recovery: make sure the file and its blobs are in place, from the journal or from staging.

    ``leaving``: a later record drops the message again. Its blobs are restored all the same, since others may count
    on them; what has left staging was durable elsewhere and need not come back.
    """
    blobs = [
        (layout.blob_directory(sha256), sha256, sha256, data, staged) for sha256, _, data, staged in effect["blobs"]
    ]
    text = effect["text"]
    message = (
        layout.message_directory(effect["id"]),
        layout.message_name(effect["id"]),
        effect["file"],
        None if text is None else b64encode_as_string(text.encode()),
        effect["staged"][1],
    )
    for where, name, sha256, data, staged in (*blobs, message):
        with directories.stable(where, create=True) as target:
            temporary = f".{name[:200]}.restored"
            if disk.exists(target, temporary):  # of a recovery that was cut short
                disk.unlink(target, temporary)
            rewritten = belief is Belief.NOTHING and data is not None
            if not rewritten and _is_there(target, name, None if belief is Belief.NAMES else sha256):
                continue
            if data is not None:
                raw = b64decode(data, validate=True)
                disk.write_new(target, temporary, raw)
                disk.rename(target, temporary, target, name)
            elif staged is not None:
                gone = contextlib.suppress(FileNotFoundError) if leaving else contextlib.nullcontext()
                with gone, directories.open(layout.staging_directory(effect["staged"][0])) as staging:
                    with contextlib.suppress(FileNotFoundError):
                        disk.unlink(target, name)
                    disk.link(staging, staged, target, name)


def _is_there(directory: int, name: str, sha256: str | None) -> bool:
    try:
        with open(disk.open_read(directory, name), "rb") as file:
            return sha256 is None or hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:  # none, or something that is no file
        return False


def remove(effect: Effect, directories: Directories, undo: Undo) -> None:
    """Move the files to staging, from where they go once the commit is done."""
    going = [(layout.message_directory(message_id), layout.message_name(message_id)) for message_id in effect["ids"]]
    going += [(layout.blob_directory(sha256), sha256) for sha256 in effect["blobs"]]
    with directories.open(layout.DROPPED, create=True) as dropped:
        for where, name in going:
            gone = contextlib.suppress(FileNotFoundError, NotADirectoryError)  # or never reached through a planted link
            with gone, directories.stable(where, create=True) as directory:
                disk.rename(directory, name, dropped, name)
                undo.add(partial(_bring_back, directories, where, name))
                undo.after_commit(partial(_forget, directories, name))


def _bring_back(directories: Directories, where: layout.Parts, name: str) -> None:
    with directories.open(layout.DROPPED) as dropped, directories.stable(where) as directory:
        disk.rename(dropped, name, directory, name)


def _forget(directories: Directories, name: str) -> None:
    with directories.open(layout.DROPPED) as dropped:
        disk.unlink(dropped, name)


def remove_again(effect: Effect, directories: Directories) -> None:
    """Recovery: make sure the files are gone."""
    undo = Undo()
    remove(effect, directories, undo)
    undo.committed()


def settle(effect: Effect, directories: Directories, connection: sqlite3.Connection) -> None:
    """Recovery: an effect was taken back; make sure its files are as the index says."""
    if effect["do"] == "content":
        row = connection.execute("SELECT 1 FROM messages WHERE message_id = ?", (effect["id"],)).fetchone()
        if row is None:
            _remove_stray(directories, layout.message_directory(effect["id"]), layout.message_name(effect["id"]))
        for sha256, _, _, staged in effect["blobs"]:
            if staged is not None and not is_known(connection, sha256):
                _remove_stray(directories, layout.blob_directory(sha256), sha256)
    elif effect["do"] == "drop":
        for message_id in effect["ids"]:
            row = connection.execute("SELECT file_sha256 FROM messages WHERE message_id = ?", (message_id,)).fetchone()
            if row and row[0]:
                _take_out(directories, layout.message_directory(message_id), layout.message_name(message_id))
        for sha256 in effect["blobs"]:
            if is_known(connection, sha256):
                _take_out(directories, layout.blob_directory(sha256), sha256)


def _remove_stray(directories: Directories, where: layout.Parts, name: str) -> None:
    # Where no directory of ours is, nothing of ours was put.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), directories.open(where) as directory:
        if disk.exists(directory, name):
            disk.unlink(directory, name)


def _take_out(directories: Directories, where: layout.Parts, name: str) -> None:
    """Bring a file back from where it waited to be removed."""
    with contextlib.suppress(FileNotFoundError), directories.open(layout.DROPPED) as dropped:
        if disk.exists(dropped, name):
            _bring_back(directories, where, name)


# --- index -----------------------------------------------------------------------------------------------------------


def index(effect: Effect, connection: sqlite3.Connection, at: int) -> None:
    message_id = effect["id"]
    connection.execute(
        "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)",
        (
            message_id,
            effect["arrived"],
            effect["sender"],
            effect["from"],
            effect["subject"],
            effect["header_id"],
            effect["thread"],
            effect["size"],
            effect["wire"],
            effect["file"],
        ),
    )
    if effect["recipients"]:
        connection.executemany(
            "INSERT INTO message_recipients VALUES (?, ?, ?)",
            [(message_id, address, kind) for address, kind in effect["recipients"]],
        )
    if effect["attachments"]:
        connection.executemany(
            "INSERT OR IGNORE INTO attachments VALUES (?, ?)",
            [(item[0], item[4]) for item in effect["attachments"]],
        )
        connection.executemany(
            "INSERT INTO message_attachments VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(message_id, position, *item) for position, item in enumerate(effect["attachments"])],
        )


def cache(content: Ingested, connection: sqlite3.Connection) -> None:
    """Keep what was computed at staging; not part of the effect, since it can be computed again."""
    connection.execute(
        "INSERT INTO cache_messages VALUES (?, ?, ?, ?, ?, ?)",
        (
            content.id,
            content.recipe.encode(),
            content.envelope,
            content.structure,
            content.outline,
            content.preview,
        ),
    )


def drop_rows(effect: Effect, connection: sqlite3.Connection, at: int) -> None:
    """The content goes; that it was delivered, by whom and to whom, stays in ``messages``."""
    ids = [(message_id,) for message_id in effect["ids"]]
    connection.executemany("DELETE FROM message_attachments WHERE message_id = ?", ids)
    connection.executemany("DELETE FROM cache_messages WHERE message_id = ?", ids)
    connection.executemany("DELETE FROM dsn_requests WHERE message_id = ?", ids)
    connection.executemany("DELETE FROM damaged_parts WHERE message_id = ?", ids)
    connection.executemany("DELETE FROM lost_places WHERE message_id = ?", ids)
    connection.executemany("UPDATE messages SET unlinked_at = NULL, file_sha256 = '' WHERE message_id = ?", ids)
    connection.executemany("DELETE FROM attachments WHERE sha256 = ?", [(sha256,) for sha256 in effect["blobs"]])


def drop(connection: sqlite3.Connection, ids: list[str]) -> Effect:
    """Remove the content of these messages, which no folder shows, and the blobs that only they need."""
    going = set(ids)
    blobs = {
        row[0]
        for message_id in ids
        for row in connection.execute("SELECT sha256 FROM message_attachments WHERE message_id = ?", (message_id,))
    }
    free = sorted(
        sha256
        for sha256 in blobs
        if all(
            row[0] in going
            for row in connection.execute("SELECT message_id FROM message_attachments WHERE sha256 = ?", (sha256,))
        )
    )
    return {"do": "drop", "ids": ids, "blobs": free}


def is_known(connection: sqlite3.Connection, sha256: str) -> bool:
    """Whether a message in the store needs this blob."""
    return connection.execute("SELECT 1 FROM attachments WHERE sha256 = ?", (sha256,)).fetchone() is not None


def unlinked(connection: sqlite3.Connection, before: int, limit: int) -> list[str]:
    """Messages no folder shows since ``before``. One that repair shows again keeps its time, and is not meant."""
    found = connection.execute(
        "SELECT message_id FROM messages m WHERE unlinked_at <= ?"
        " AND NOT EXISTS (SELECT 1 FROM mailbox_projections p WHERE p.message_id = m.message_id) LIMIT ?",
        (before, limit),
    )
    return [row[0] for row in found.fetchall()]
