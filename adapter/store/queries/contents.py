"""Queries about message contents and attachments, without regard to the folders that show them: for backups.

``Query`` runs a statement and fetches all rows, on the live index or on a copy of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

#: Runs a statement and fetches all rows.
Query = Callable[[str, tuple[object, ...]], list[tuple[Any, ...]]]

_PAGE_ROWS = 5000


def disable_sync(connection: sqlite3.Connection) -> None:
    """Let SQLite write without fsync, because the caller syncs the file system afterwards."""
    connection.execute("PRAGMA synchronous=OFF")


def on_connection(connection: sqlite3.Connection) -> Query:
    return partial(_fetch_all, connection)


def _fetch_all(connection: sqlite3.Connection, sql: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
    return connection.execute(sql, values).fetchall()


def message_ids(query: Query) -> Iterator[str]:
    """Yield the id of every message with content, page by page."""
    return _paged(
        query, "SELECT message_id FROM messages WHERE file_sha256 <> '' AND message_id > ? ORDER BY 1 LIMIT ?"
    )


def blob_digests(query: Query) -> Iterator[str]:
    """Yield the SHA-256 of every blob, page by page."""
    return _paged(query, "SELECT sha256 FROM attachments WHERE sha256 > ? ORDER BY 1 LIMIT ?")


def _paged(query: Query, sql: str) -> Iterator[str]:
    last = ""
    while rows := query(sql, (last, _PAGE_ROWS)):
        for (key,) in rows:
            yield key
        last = rows[-1][0]


def has_message(query: Query, message_id: str) -> bool:
    return bool(query("SELECT 1 FROM messages WHERE message_id = ? AND file_sha256 <> ''", (message_id,)))


def has_blob(query: Query, sha256: str) -> bool:
    return bool(query("SELECT 1 FROM attachments WHERE sha256 = ?", (sha256,)))


def lost_parts(query: Query) -> set[str]:
    """Return the digests of blobs that are recorded as lost."""
    return {part for (part,) in query("SELECT part FROM damaged_parts WHERE part <> ''", ())}


def file_digests(query: Query) -> list[tuple[str, str]]:
    """Return message id and SHA-256 of every message file; of damaged files the digest that was recorded."""
    sql = (
        "SELECT m.message_id, coalesce(d.found, m.file_sha256) FROM messages m"
        " LEFT JOIN damaged_parts d ON d.message_id = m.message_id AND d.part = '' WHERE m.file_sha256 <> ''"
    )
    return [(message_id, sha256) for message_id, sha256 in query(sql, ())]
