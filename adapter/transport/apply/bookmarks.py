"""Bookmarks: what a follower of the store, or a source of mail, has to remember; rows of the index only."""

from __future__ import annotations

import sqlite3

from adapter.store.effects import SetBookmarks


def index(effect: SetBookmarks, connection: sqlite3.Connection) -> None:
    connection.executemany(
        "DELETE FROM bookmarks WHERE owner = ? AND item = ?",
        [(effect.owner, bookmark.item) for bookmark in effect.bookmarks if bookmark.value is None],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO bookmarks VALUES (?, ?, ?)",
        [(effect.owner, bookmark.item, bookmark.value) for bookmark in effect.bookmarks if bookmark.value is not None],
    )
