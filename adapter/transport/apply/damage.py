"""Damage: which content is known to be lost, so that a message stays in its folders with a placeholder for it.

``damage`` and ``heal`` mark and unmark a part of a message that is still there. ``lose`` and ``return`` are for a
message of which nothing is left: it leaves its folders, and the record says where it was, so that it can come back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from adapter.store.journal import Effect

#: folder, uid, internal date, saved at, flags, keywords
Place = tuple[int, int, int, int, int, str]


def effect(message_id: str, part: str, found: str = "") -> Effect:
    """A lost blob (``part``: its SHA-256), or a damaged canonical file (``part`` empty, ``found``: its SHA-256 now)."""
    return {"do": "damage", "id": message_id, "part": part, "found": found}


def healing(message_id: str, parts: list[str]) -> Effect:
    return {"do": "heal", "id": message_id, "parts": parts}


def loss(message_id: str, places: list[Place]) -> Effect:
    """Nothing of the message is left; its blobs stay for the case that it comes back."""
    return {"do": "lose", "id": message_id, "places": places}


def restoration(message_id: str, file_sha256: str) -> Effect:
    """The canonical file of a lost message is there again."""
    return {"do": "return", "id": message_id, "file": file_sha256}


def index(effect: Effect, connection: sqlite3.Connection, at: int) -> None:
    values = (effect["id"], effect["part"], effect["found"])
    connection.execute("INSERT OR REPLACE INTO damaged_parts VALUES (?, ?, ?)", values)
    _forget_cache(connection, effect["id"])


def index_healing(effect: Effect, connection: sqlite3.Connection, at: int) -> None:
    gone = [(effect["id"], part) for part in effect["parts"]]
    connection.executemany("DELETE FROM damaged_parts WHERE message_id = ? AND part = ?", gone)
    _forget_cache(connection, effect["id"])


def index_loss(effect: Effect, connection: sqlite3.Connection, at: int) -> None:
    message_id = effect["id"]
    places = [(message_id, *each) for each in effect["places"]]
    connection.executemany("INSERT INTO lost_places VALUES (?, ?, ?, ?, ?, ?, ?)", places)
    connection.execute("DELETE FROM damaged_parts WHERE message_id = ? AND part = ''", (message_id,))
    connection.execute("DELETE FROM dsn_requests WHERE message_id = ?", (message_id,))
    connection.execute("UPDATE messages SET file_sha256 = '', unlinked_at = NULL WHERE message_id = ?", (message_id,))
    _forget_cache(connection, message_id)


def index_restoration(effect: Effect, connection: sqlite3.Connection, at: int) -> None:
    connection.execute("DELETE FROM lost_places WHERE message_id = ?", (effect["id"],))
    connection.execute(
        "UPDATE messages SET file_sha256 = ?, unlinked_at = NULL WHERE message_id = ?", (effect["file"], effect["id"])
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
