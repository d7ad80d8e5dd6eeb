"""Bookmarks: what a follower of the store, or a source of mail, remembers. Rows of the index only.

Each function takes a connection; every query is fetched whole.
"""

from __future__ import annotations

import sqlite3

from adapter.store.effects import SetBookmarks


def value(connection: sqlite3.Connection, owner: str, item: str) -> str | None:
    row = connection.execute("SELECT value FROM bookmarks WHERE owner = ? AND item = ?", (owner, item)).fetchone()
    return str(row[0]) if row else None


def of_owner(connection: sqlite3.Connection, owner: str) -> dict[str, str]:
    """All bookmarks of an owner."""
    return dict(connection.execute("SELECT item, value FROM bookmarks WHERE owner = ?", (owner,)).fetchall())


def owners(connection: sqlite3.Connection, prefix: str) -> list[str]:
    """The owners with this prefix."""
    rows = connection.execute(
        "SELECT DISTINCT owner FROM bookmarks WHERE owner >= :prefix AND substr(owner, 1, length(:prefix)) = :prefix"
        " ORDER BY owner",
        {"prefix": prefix},
    )
    return [row[0] for row in rows.fetchall()]


def set_bookmarks(connection: sqlite3.Connection, effect: SetBookmarks) -> None:
    connection.executemany(
        "DELETE FROM bookmarks WHERE owner = ? AND item = ?",
        [(effect.owner, bookmark.item) for bookmark in effect.bookmarks if bookmark.value is None],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO bookmarks VALUES (?, ?, ?)",
        [(effect.owner, bookmark.item, bookmark.value) for bookmark in effect.bookmarks if bookmark.value is not None],
    )
