"""Bookmarks: what a follower of the store, or a source of mail, has to remember; rows of the index only.

A bookmark that tells of a message is set in the record that brings the message: neither is there without the other.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from adapter.store.journal import Effect


def effect(owner: str, items: Mapping[str, str | None]) -> Effect:
    """Set these bookmarks of one owner; None removes one."""
    return {"do": "bookmark", "owner": owner, "items": list(items.items())}


def index(effect: Effect, connection: sqlite3.Connection, at: int) -> None:
    owner = effect["owner"]
    connection.executemany(
        "DELETE FROM bookmarks WHERE owner = ? AND item = ?",
        [(owner, item) for item, value in effect["items"] if value is None],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO bookmarks VALUES (?, ?, ?)",
        [(owner, item, value) for item, value in effect["items"] if value is not None],
    )
