"""Rows of messages: content and its attachments, damage and losses, and the cache of what is computed from content.

Each function takes a connection (a reader's, or the writer's inside its transaction). Queries are short, fetched whole.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from typing import NamedTuple

from msgspec.structs import astuple

from adapter.content.damaged_file import IndexedMessage
from adapter.store.effects import AddContent, ClearDamage, DropContent, MarkDamaged, MarkLost, RestoreLost
from adapter.store.flags import Flag

_DELETED = int(Flag.DELETED)

# --- content ---------------------------------------------------------------------------------------------------------


def add_content(connection: sqlite3.Connection, effect: AddContent) -> None:
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


def drop_content(connection: sqlite3.Connection, effect: DropContent) -> None:
    """Remove the content. That it was delivered, by whom and to whom, stays in ``messages``."""
    ids = [(message_id,) for message_id in effect.message_ids]
    connection.executemany("DELETE FROM message_attachments WHERE message_id = ?", ids)
    connection.executemany("DELETE FROM cache_messages WHERE message_id = ?", ids)
    connection.executemany("DELETE FROM dsn_requests WHERE message_id = ?", ids)
    connection.executemany("DELETE FROM damaged_parts WHERE message_id = ?", ids)
    connection.executemany("DELETE FROM lost_places WHERE message_id = ?", ids)
    connection.executemany("UPDATE messages SET unlinked_at = NULL, file_sha256 = '' WHERE message_id = ?", ids)
    connection.executemany("DELETE FROM attachments WHERE sha256 = ?", [(sha256,) for sha256 in effect.blobs])


def has_message(connection: sqlite3.Connection, message_id: str) -> bool:
    """True if a message was ever delivered; its content may be gone."""
    return connection.execute("SELECT 1 FROM messages WHERE message_id = ?", (message_id,)).fetchone() is not None


def has_content(connection: sqlite3.Connection, message_id: str) -> bool:
    row = connection.execute("SELECT file_sha256 FROM messages WHERE message_id = ?", (message_id,)).fetchone()
    return bool(row and row[0])


def has_blob(connection: sqlite3.Connection, sha256: str) -> bool:
    """True if a message in the store needs this blob."""
    return connection.execute("SELECT 1 FROM attachments WHERE sha256 = ?", (sha256,)).fetchone() is not None


def blobs_only_in(connection: sqlite3.Connection, message_ids: Collection[str]) -> list[str]:
    """The blobs that no other message needs, in order."""
    sql = "SELECT sha256 FROM message_attachments WHERE message_id = ?"
    blobs = {row[0] for message_id in message_ids for row in connection.execute(sql, (message_id,)).fetchall()}
    sql = "SELECT message_id FROM message_attachments WHERE sha256 = ?"
    return sorted(
        sha256
        for sha256 in blobs
        if all(row[0] in message_ids for row in connection.execute(sql, (sha256,)).fetchall())
    )


def unlinked(connection: sqlite3.Connection, before: int, limit: int) -> list[str]:
    """Messages that no folder shows since ``before``. One that repair shows again keeps its time, and is left out."""
    rows = connection.execute(
        "SELECT message_id FROM messages m WHERE unlinked_at <= ?"
        " AND NOT EXISTS (SELECT 1 FROM mailbox_projections p WHERE p.message_id = m.message_id) LIMIT ?",
        (before, limit),
    )
    return [row[0] for row in rows.fetchall()]


def indexed_message(connection: sqlite3.Connection, message_id: str) -> IndexedMessage | None:
    """The header fields of a message that the index stores."""
    row = connection.execute(
        "SELECT size, wire_sha256, header_from, subject, header_id, arrived_at FROM messages WHERE message_id = ?",
        (message_id,),
    ).fetchone()
    return IndexedMessage(*row) if row else None


# --- copies of one message -------------------------------------------------------------------------------------------

_UNDELETED_COPIES = f"""
SELECT p.uid, p.message_id FROM messages m JOIN mailbox_projections p USING (message_id)
JOIN mailbox_state s USING (folder_id, uid)
WHERE m.header_id = ? AND m.header_id <> '' AND p.folder_id = ? AND NOT s.flags & {_DELETED}
ORDER BY p.uid DESC LIMIT ?
"""  # noqa: S608 - a number of ours


def undeleted_copies(
    connection: sqlite3.Connection, folder_id: int, header_id: str, limit: int
) -> list[tuple[int, str]]:
    """UID and id of messages in a folder with this Message-ID that are not flagged deleted, the newest first."""
    return connection.execute(_UNDELETED_COPIES, (header_id, folder_id, limit)).fetchall()


def with_header_id(connection: sqlite3.Connection, header_id: str, limit: int) -> list[str]:
    """Messages with this Message-ID, the newest first."""
    rows = connection.execute(
        "SELECT message_id FROM messages WHERE header_id = ? AND header_id <> '' ORDER BY message_id DESC LIMIT ?",
        (header_id, limit),
    )
    return [row[0] for row in rows.fetchall()]


# --- the cache -------------------------------------------------------------------------------------------------------


class CacheRow(NamedTuple):
    """A row of ``cache_messages``."""

    message_id: str
    recipe: bytes
    envelope: bytes
    structure: bytes
    outline: bytes
    preview: str


def cache(connection: sqlite3.Connection, row: CacheRow) -> None:
    """Keep what was computed of a message that was just added."""
    connection.execute("INSERT INTO cache_messages VALUES (?, ?, ?, ?, ?, ?)", row)


def cache_existing(connection: sqlite3.Connection, rows: Iterable[CacheRow]) -> None:
    """Store rows of messages that still have content."""
    connection.executemany(
        "INSERT OR IGNORE INTO cache_messages (message_id, recipe, envelope, structure, outline, preview)"
        " SELECT ?, ?, ?, ?, ?, ? FROM messages WHERE message_id = ?1 AND file_sha256 <> ''",
        list(rows),
    )


def cached_recipe(connection: sqlite3.Connection, message_id: str) -> bytes | None:
    row = connection.execute("SELECT recipe FROM cache_messages WHERE message_id = ?", (message_id,)).fetchone()
    return row[0] if row else None


def cached_outline(connection: sqlite3.Connection, message_id: str) -> bytes | None:
    row = connection.execute("SELECT outline FROM cache_messages WHERE message_id = ?", (message_id,)).fetchone()
    return row[0] if row else None


def _forget_cache(connection: sqlite3.Connection, message_id: str) -> None:
    connection.execute("DELETE FROM cache_messages WHERE message_id = ?", (message_id,))


# --- damage ----------------------------------------------------------------------------------------------------------


def mark_damaged(connection: sqlite3.Connection, effect: MarkDamaged) -> None:
    values = (effect.message_id, effect.part, effect.observed)
    connection.execute("INSERT OR REPLACE INTO damaged_parts VALUES (?, ?, ?)", values)
    _forget_cache(connection, effect.message_id)


def clear_damage(connection: sqlite3.Connection, effect: ClearDamage) -> None:
    parts = [(effect.message_id, part) for part in effect.parts]
    connection.executemany("DELETE FROM damaged_parts WHERE message_id = ? AND part = ?", parts)
    _forget_cache(connection, effect.message_id)


def damaged_parts(connection: sqlite3.Connection, message_id: str) -> dict[str, str]:
    """Digests of lost blobs; under the empty key the digest of a damaged canonical file."""
    sql = "SELECT part, found FROM damaged_parts WHERE message_id = ?"
    return dict(connection.execute(sql, (message_id,)).fetchall())


def mark_lost(connection: sqlite3.Connection, effect: MarkLost) -> None:
    message_id = effect.message_id
    places = [(message_id, *astuple(place)) for place in effect.places]
    connection.executemany("INSERT INTO lost_places VALUES (?, ?, ?, ?, ?, ?, ?)", places)
    connection.execute("DELETE FROM damaged_parts WHERE message_id = ? AND part = ''", (message_id,))
    connection.execute("DELETE FROM dsn_requests WHERE message_id = ?", (message_id,))
    connection.execute("UPDATE messages SET file_sha256 = '', unlinked_at = NULL WHERE message_id = ?", (message_id,))
    _forget_cache(connection, message_id)


def restore_lost(connection: sqlite3.Connection, effect: RestoreLost) -> None:
    connection.execute("DELETE FROM lost_places WHERE message_id = ?", (effect.message_id,))
    connection.execute(
        "UPDATE messages SET file_sha256 = ?, unlinked_at = NULL WHERE message_id = ?",
        (effect.file_sha256, effect.message_id),
    )


def lost_only_from(connection: sqlite3.Connection, folders: Collection[int]) -> set[str]:
    """Lost messages that were in no folder but these."""
    sql = "SELECT message_id FROM lost_places WHERE folder_id = ?"
    lost = {row[0] for folder in folders for row in connection.execute(sql, (folder,)).fetchall()}
    sql = "SELECT folder_id FROM lost_places WHERE message_id = ?"
    return {
        message_id
        for message_id in lost
        if all(row[0] in folders for row in connection.execute(sql, (message_id,)).fetchall())
    }
