"""Queries for messages: where they are, what is cached of them, and what lists show. Each fetches all its rows.

A range of UIDs is read as a range, a scattered set through a list; ``uids`` are never empty and ascend.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple

import orjson

from adapter.store.flags import Flag

#: Greater than every message id.
AFTER_ALL_MESSAGES = "~"


class ListedMessage(NamedTuple):
    """A message in a folder, as a list shows it."""

    message_id: str
    folder: str
    folder_id: int
    uid: int
    internal_date: int  # seconds
    header_from: str
    subject: str
    size: int
    flags: int
    keywords: str
    thread_id: str
    preview: str


class MessageHeader(NamedTuple):
    """Header values of a message in any folder."""

    sender: str  # of the envelope
    header_from: str
    subject: str
    header_id: str
    thread_id: str
    size: int
    arrived_at: int  # seconds


class CachedAttribute(Enum):
    """Immutable attributes that FETCH shows; the value is the column in :func:`attributes`."""

    ENVELOPE = "c.envelope"
    STRUCTURE = "c.structure"
    BODY = "c.structure AS plain"  # the same without extension data
    PREVIEW = "c.preview"  # UTF-8, not yet a string of IMAP
    EMAIL_ID = "p.message_id"
    THREAD_ID = "m.thread_id"


#: Attributes that :func:`adapter.transport.cache_fill` derives from the content.
DERIVED_ATTRIBUTES = frozenset(
    {CachedAttribute.ENVELOPE, CachedAttribute.STRUCTURE, CachedAttribute.BODY, CachedAttribute.PREVIEW}
)


def _json(values: Iterable[object]) -> str:
    return orjson.dumps(list(values)).decode()


def _is_range(uids: Sequence[int]) -> bool:
    """True if reading everything from the first to the last costs less than a list."""
    return uids[-1] - uids[0] < 2 * len(uids)


# --- folders ---------------------------------------------------------------------------------------------------------

_FOLDER_ROWS = """
SELECT p.uid, s.flags, s.keywords, s.modseq, p.internal_date, p.saved_at, m.size
FROM mailbox_projections p JOIN mailbox_state s USING (folder_id, uid) JOIN messages m USING (message_id)
WHERE p.folder_id = ? ORDER BY p.uid
"""

#: UID, flags, keywords, mod-sequence, internal date, saved at, size
FolderRow = tuple[int, int, str, int, int, int, int]


def folder_rows(connection: sqlite3.Connection, folder_id: int) -> list[FolderRow]:
    return connection.execute(_FOLDER_ROWS, (folder_id,)).fetchall()


def count_from(connection: sqlite3.Connection, folder_id: int, uid: int) -> int:
    """Messages of a folder from this UID on."""
    sql = "SELECT count(*) FROM mailbox_projections WHERE folder_id = ? AND uid >= ?"
    return int(connection.execute(sql, (folder_id, uid)).fetchone()[0])


def uid_marks(connection: sqlite3.Connection) -> list[tuple[int, int, int]]:
    """Folder id, UIDVALIDITY and UIDNEXT of every folder."""
    return connection.execute("SELECT folder_id, uidvalidity, uidnext FROM folders").fetchall()


_IDS = "SELECT uid, message_id FROM mailbox_projections WHERE folder_id = ?"
_IDS_IN_RANGE = f"{_IDS} AND uid BETWEEN ? AND ?"
_IDS_IN_LIST = f"{_IDS} AND uid IN (SELECT value FROM json_each(?))"  # noqa: S608
_IDS_AFTER = f"{_IDS} AND uid > ? ORDER BY uid"


def message_ids(connection: sqlite3.Connection, folder_id: int, uids: Sequence[int]) -> dict[int, str]:
    """Message ids by UID; perhaps also of UIDs between those asked for."""
    if _is_range(uids):
        return dict(connection.execute(_IDS_IN_RANGE, (folder_id, uids[0], uids[-1])).fetchall())
    return dict(connection.execute(_IDS_IN_LIST, (folder_id, _json(uids))).fetchall())


def message_ids_after(connection: sqlite3.Connection, folder_id: int, uid: int) -> dict[int, str]:
    """Message ids by ascending UID."""
    return dict(connection.execute(_IDS_AFTER, (folder_id, uid)).fetchall())


# --- lists -----------------------------------------------------------------------------------------------------------

_LISTED = """
SELECT p.message_id, f.name, p.folder_id, p.uid, p.internal_date, m.header_from, m.subject, m.size,
       s.flags, s.keywords, m.thread_id, coalesce(c.preview, '')
FROM mailbox_projections p JOIN folders f USING (folder_id) JOIN mailbox_state s USING (folder_id, uid)
JOIN messages m USING (message_id) LEFT JOIN cache_messages c USING (message_id)
"""
_LATEST = f"{_LISTED} WHERE p.folder_id = ? ORDER BY p.uid DESC LIMIT ?"
_LATEST_UNREAD = f"{_LISTED} WHERE p.folder_id = ? AND s.flags & {int(Flag.READ)} = 0 ORDER BY p.uid DESC LIMIT ?"
_PLACES = f"{_LISTED} WHERE p.message_id = ? AND f.registration_id = ? ORDER BY p.folder_id, p.uid"
_ONE = f"{_LISTED} WHERE p.folder_id = ? AND p.uid = ?"


def latest(
    connection: sqlite3.Connection, folder_id: int, *, unread: bool = False, limit: int | None = None
) -> list[ListedMessage]:
    """Messages of a folder, the latest first."""
    rows = connection.execute(_LATEST_UNREAD if unread else _LATEST, (folder_id, -1 if limit is None else limit))
    return list(map(ListedMessage._make, rows.fetchall()))


def places(connection: sqlite3.Connection, registration: str, message_id: str) -> list[ListedMessage]:
    """Every place of a message in the folders of an account."""
    rows = connection.execute(_PLACES, (message_id, registration))
    return list(map(ListedMessage._make, rows.fetchall()))


def listed(connection: sqlite3.Connection, folder_id: int, uid: int) -> list[ListedMessage]:
    """One message of a folder, if it is there."""
    return list(map(ListedMessage._make, connection.execute(_ONE, (folder_id, uid)).fetchall()))


_HEADER = """
SELECT sender, header_from, subject, header_id, thread_id, size, arrived_at
FROM messages WHERE message_id = ? AND file_sha256 <> ''
"""


def header(connection: sqlite3.Connection, message_id: str) -> MessageHeader | None:
    """None if the content of the message is gone."""
    row = connection.execute(_HEADER, (message_id,)).fetchone()
    return MessageHeader(*row) if row else None


_SIZES = "SELECT message_id, size FROM messages WHERE message_id IN (SELECT value FROM json_each(?))"


def sizes(connection: sqlite3.Connection, message_ids: Iterable[str]) -> dict[str, int]:
    return dict(connection.execute(_SIZES, (_json(message_ids),)).fetchall())


# --- the cache of the index ------------------------------------------------------------------------------------------

_IN_RANGE = "WHERE p.folder_id = ? AND p.uid BETWEEN ? AND ?"
_IN_LIST = "WHERE p.folder_id = ? AND p.uid IN (SELECT value FROM json_each(?))"


def attributes_statement(attributes: Sequence[CachedAttribute], *, by_range: bool) -> str:
    """The statement of :func:`attributes`."""
    cached = not DERIVED_ATTRIBUTES.isdisjoint(attributes)
    columns = ", ".join(attribute.value for attribute in attributes)
    sql = f"SELECT p.uid, p.message_id, {'c' if cached else 'p'}.message_id, {columns} FROM mailbox_projections p"  # noqa: S608
    if cached:
        sql += " LEFT JOIN cache_messages c USING (message_id)"
    if CachedAttribute.THREAD_ID in attributes:
        sql += " JOIN messages m USING (message_id)"
    return f"{sql} {_IN_RANGE if by_range else _IN_LIST}"


def attributes(
    connection: sqlite3.Connection, folder_id: int, selected: Sequence[CachedAttribute], uids: Sequence[int]
) -> list[tuple[Any, ...]]:
    """Rows of UID, message id, message id if the cache has the message, and the values; perhaps also of UIDs between
    those asked for."""
    if _is_range(uids):
        return connection.execute(
            attributes_statement(selected, by_range=True), (folder_id, uids[0], uids[-1])
        ).fetchall()
    return connection.execute(attributes_statement(selected, by_range=False), (folder_id, _json(uids))).fetchall()


_CONTENT = """
SELECT p.uid, p.message_id, c.recipe, c.outline
FROM mailbox_projections p LEFT JOIN cache_messages c USING (message_id) WHERE p.folder_id = ?
"""
_CONTENT_IN_RANGE = f"{_CONTENT} AND p.uid BETWEEN ? AND ?"
_CONTENT_IN_LIST = f"{_CONTENT} AND p.uid IN (SELECT value FROM json_each(?))"  # noqa: S608

#: UID, message id, encoded recipe and outline; both None if the cache lacks the message
ContentRow = tuple[int, str, bytes | None, bytes | None]


def content(connection: sqlite3.Connection, folder_id: int, uids: Sequence[int]) -> list[ContentRow]:
    if not _is_range(uids):
        return connection.execute(_CONTENT_IN_LIST, (folder_id, _json(uids))).fetchall()
    asked = set(uids)
    rows = connection.execute(_CONTENT_IN_RANGE, (folder_id, uids[0], uids[-1])).fetchall()
    return [row for row in rows if row[0] in asked]


_RECIPES = "SELECT message_id, recipe, outline FROM cache_messages WHERE message_id IN (SELECT value FROM json_each(?))"


def recipes(connection: sqlite3.Connection, message_ids: Iterable[str]) -> dict[str, tuple[bytes, bytes]]:
    """Encoded recipe and outline of those that the cache has."""
    rows = connection.execute(_RECIPES, (_json(message_ids),)).fetchall()
    return {message_id: (recipe, outline) for message_id, recipe, outline in rows}


# --- for the text index ----------------------------------------------------------------------------------------------

_OLDER = """
SELECT message_id FROM messages WHERE message_id < ? AND file_sha256 <> '' AND unlinked_at IS NULL
ORDER BY message_id DESC LIMIT ?
"""
_OWNERS = """
SELECT p.message_id, min(f.registration_id) FROM mailbox_projections p JOIN folders f USING (folder_id)
WHERE p.message_id IN (SELECT value FROM json_each(?)) GROUP BY p.message_id
"""


def older(connection: sqlite3.Connection, message_id: str, limit: int) -> list[str]:
    """Messages in folders that came before this one, the newest first."""
    return [row[0] for row in connection.execute(_OLDER, (message_id, limit)).fetchall()]


def owners(connection: sqlite3.Connection, message_ids: Iterable[str]) -> dict[str, str]:
    """A registration that has each of these messages; those in no folder are left out."""
    return dict(connection.execute(_OWNERS, (_json(message_ids),)).fetchall())
