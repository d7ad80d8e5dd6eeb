"""Content: a canonical file, the blobs it names, and its rows."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from enum import Enum
from functools import partial

from adapter.content.ingest import Ingested
from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.store.effects import AddContent, DropContent, Effect
from adapter.transport.apply import quarantine
from adapter.transport.apply.undo import Undo

# --- files -----------------------------------------------------------------------------------------------------------


def place(effect: AddContent, directories: Directories, undo: Undo) -> None:
    session, name = effect.staged.session, effect.staged.name
    if name is None:
        raise ValueError(f"{effect.message_id} was never staged")
    with directories.open(layout.staging_directory(session)) as staging:
        for blob in effect.blobs:
            where = layout.blob_directory(blob.sha256)
            with directories.stable(where, create=True) as target:
                if blob.staged is None or disk.is_file(target, blob.sha256, blob.size):
                    continue
                if disk.exists(target, blob.sha256):
                    quarantine.set_aside(directories, target, blob.sha256)
            journaled = blob.data is not None
            _move(directories, staging, session, blob.staged, where, blob.sha256, undo, journaled=journaled)
        where, new_name = layout.message_directory(effect.message_id), layout.message_name(effect.message_id)
        _move(directories, staging, session, name, where, new_name, undo, journaled=effect.file is not None)


def _move(
    directories: Directories,
    staging: int,
    session: str,
    name: str,
    where: layout.Parts,
    new_name: str,
    undo: Undo,
    *,
    journaled: bool,
) -> None:
    """Put a staged file in place.

    What the journal carries is renamed. What it does not carry is linked and keeps its synced name in staging until a
    checkpoint, since a power loss could otherwise take both names of it.
    """
    with directories.stable(where, create=True) as target:
        if journaled:
            disk.rename(staging, name, target, new_name)
        else:
            disk.link(staging, name, target, new_name)

    def back() -> None:
        with (
            directories.open(layout.staging_directory(session)) as source,
            directories.stable(where) as target,
        ):
            if journaled:
                disk.rename(target, new_name, source, name)
            else:
                disk.unlink(target, new_name)

    undo.add(back)


class Belief(Enum):
    """Which files need not be written: those there are, those with the right content, or none."""

    NAMES = "names"
    CONTENT = "content"
    NOTHING = "nothing"


def restore(effect: AddContent, directories: Directories, belief: Belief, *, leaving: bool) -> None:
    """Recovery: make sure the file and its blobs are in place, from the journal or from staging.

    ``leaving``: a later record drops the message again. Its blobs are restored all the same, since others may count
    on them; what has left staging was durable elsewhere and need not come back.
    """
    blobs = [
        (layout.blob_directory(name := blob.sha256), name, name, blob.data.raw if blob.data else None, blob.staged)
        for blob in effect.blobs
    ]
    message = (
        layout.message_directory(effect.message_id),
        layout.message_name(effect.message_id),
        effect.file_sha256,
        None if effect.file is None else effect.file.encode(),
        effect.staged.name,
    )
    for where, name, sha256, raw, staged in (*blobs, message):
        with directories.stable(where, create=True) as target:
            temporary = f".{name[:200]}.restored"
            if disk.exists(target, temporary):  # of a recovery that was cut short
                disk.unlink(target, temporary)
            rewritten = belief is Belief.NOTHING and raw is not None
            if not rewritten and _is_there(target, name, None if belief is Belief.NAMES else sha256):
                continue
            if raw is not None:
                disk.write_new(target, temporary, raw)
                disk.rename(target, temporary, target, name)
            elif staged is not None:
                gone = contextlib.suppress(FileNotFoundError) if leaving else contextlib.nullcontext()
                with gone, directories.open(layout.staging_directory(effect.staged.session)) as staging:
                    with contextlib.suppress(FileNotFoundError):
                        disk.unlink(target, name)
                    disk.link(staging, staged, target, name)


def _is_there(directory: int, name: str, sha256: str | None) -> bool:
    try:
        with open(disk.open_read(directory, name), "rb") as file:
            return sha256 is None or hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:  # none, or something that is no file
        return False


def remove(effect: DropContent, directories: Directories, undo: Undo) -> None:
    """Move the files to staging, from where they go once the commit is done."""
    going = [
        (layout.message_directory(message_id), layout.message_name(message_id)) for message_id in effect.message_ids
    ]
    going += [(layout.blob_directory(sha256), sha256) for sha256 in effect.blobs]
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


def remove_again(effect: DropContent, directories: Directories) -> None:
    """Recovery: make sure the files are gone."""
    undo = Undo()
    remove(effect, directories, undo)
    undo.committed()


def settle(effect: Effect, directories: Directories, connection: sqlite3.Connection) -> None:
    """Recovery: an effect was taken back; make sure its files are as the index says."""
    if isinstance(effect, AddContent):
        message_id = effect.message_id
        row = connection.execute("SELECT 1 FROM messages WHERE message_id = ?", (message_id,)).fetchone()
        if row is None:
            _remove_stray(directories, layout.message_directory(message_id), layout.message_name(message_id))
        for blob in effect.blobs:
            if blob.staged is not None and not is_known(connection, blob.sha256):
                _remove_stray(directories, layout.blob_directory(blob.sha256), blob.sha256)
    elif isinstance(effect, DropContent):
        for message_id in effect.message_ids:
            row = connection.execute("SELECT file_sha256 FROM messages WHERE message_id = ?", (message_id,)).fetchone()
            if row and row[0]:
                _take_out(directories, layout.message_directory(message_id), layout.message_name(message_id))
        for sha256 in effect.blobs:
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


def index(effect: AddContent, connection: sqlite3.Connection) -> None:
    message_id = effect.message_id
    connection.execute(
        "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)",
        (
            message_id,
            effect.arrived,
            effect.sender,
            effect.header_from,
            effect.subject,
            effect.header_id,
            effect.thread,
            effect.size,
            effect.wire_sha256,
            effect.file_sha256,
        ),
    )
    if effect.recipients:
        connection.executemany(
            "INSERT INTO message_recipients VALUES (?, ?, ?)",
            [(message_id, each.address, each.kind) for each in effect.recipients],
        )
    if effect.attachments:
        connection.executemany(
            "INSERT OR IGNORE INTO attachments VALUES (?, ?)",
            [(item.sha256, item.size) for item in effect.attachments],
        )
        connection.executemany(
            "INSERT INTO message_attachments VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (message_id, position, item.sha256, item.kind, item.name, item.type, item.size)
                for position, item in enumerate(effect.attachments)
            ],
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


def drop_rows(effect: DropContent, connection: sqlite3.Connection) -> None:
    """The content goes; that it was delivered, by whom and to whom, stays in ``messages``."""
    ids = [(message_id,) for message_id in effect.message_ids]
    connection.executemany("DELETE FROM message_attachments WHERE message_id = ?", ids)
    connection.executemany("DELETE FROM cache_messages WHERE message_id = ?", ids)
    connection.executemany("DELETE FROM dsn_requests WHERE message_id = ?", ids)
    connection.executemany("DELETE FROM damaged_parts WHERE message_id = ?", ids)
    connection.executemany("DELETE FROM lost_places WHERE message_id = ?", ids)
    connection.executemany("UPDATE messages SET unlinked_at = NULL, file_sha256 = '' WHERE message_id = ?", ids)
    connection.executemany("DELETE FROM attachments WHERE sha256 = ?", [(sha256,) for sha256 in effect.blobs])


def drop(connection: sqlite3.Connection, ids: list[str]) -> DropContent:
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
    return DropContent(tuple(ids), tuple(free))


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
