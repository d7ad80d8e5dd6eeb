"""Damage: which content is known to be lost, so that a message stays in its folders with a placeholder for it.

:class:`~adapter.store.effects.MarkDamaged` and ``ClearDamage`` are for a part of a message that is still there.
``MarkLost`` and ``RestoreLost`` are for a message of which nothing is left: it leaves its folders, and the record says
where it was, so that it can come back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from msgspec.structs import astuple

from adapter.store.effects import ClearDamage, MarkDamaged, MarkLost, RestoreLost


def index(effect: MarkDamaged, connection: sqlite3.Connection) -> None:
    values = (effect.message_id, effect.part, effect.observed)
    connection.execute("INSERT OR REPLACE INTO damaged_parts VALUES (?, ?, ?)", values)
    _forget_cache(connection, effect.message_id)


def index_healing(effect: ClearDamage, connection: sqlite3.Connection) -> None:
    gone = [(effect.message_id, part) for part in effect.parts]
    connection.executemany("DELETE FROM damaged_parts WHERE message_id = ? AND part = ?", gone)
    _forget_cache(connection, effect.message_id)


def index_loss(effect: MarkLost, connection: sqlite3.Connection) -> None:
    message_id = effect.message_id
    places = [(message_id, *astuple(place)) for place in effect.places]
    connection.executemany("INSERT INTO lost_places VALUES (?, ?, ?, ?, ?, ?, ?)", places)
    connection.execute("DELETE FROM damaged_parts WHERE message_id = ? AND part = ''", (message_id,))
    connection.execute("DELETE FROM dsn_requests WHERE message_id = ?", (message_id,))
    connection.execute("UPDATE messages SET file_sha256 = '', unlinked_at = NULL WHERE message_id = ?", (message_id,))
    _forget_cache(connection, message_id)


def index_restoration(effect: RestoreLost, connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM lost_places WHERE message_id = ?", (effect.message_id,))
    connection.execute(
        "UPDATE messages SET file_sha256 = ?, unlinked_at = NULL WHERE message_id = ?",
        (effect.file_sha256, effect.message_id),
    )


def lost_from(connection: sqlite3.Connection, folders: Collection[int]) -> set[str]:
    """Lost messages that were in no folder but these."""
    found = {
        row[0]
        for folder in folders
        for row in connection.execute("SELECT message_id FROM lost_places WHERE folder_id = ?", (folder,))
    }
    elsewhere = "SELECT folder_id FROM lost_places WHERE message_id = ?"
    return {
        message_id
        for message_id in found
        if all(row[0] in folders for row in connection.execute(elsewhere, (message_id,)))
    }


def _forget_cache(connection: sqlite3.Connection, message_id: str) -> None:
    connection.execute("DELETE FROM cache_messages WHERE message_id = ?", (message_id,))
