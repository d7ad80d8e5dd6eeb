"""Queries for registrations, folders, messages in folders and threads: short, fetched whole, no locks.

Each function takes a connection (a reader's, or the writer's inside its transaction).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from protocol.errors import MailError, Reason


class Registration(NamedTuple):
    id: str
    address: str
    status: str
    directory: str
    created_at: int


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder as the index knows it, counters included."""

    id: int
    registration: str
    directory: str  # of the mailbox, below mailboxes/
    name: str
    special_use: str
    uidvalidity: int
    uidnext: int = 1
    highestmodseq: int = 1
    messages: int = 0
    unseen: int = 0
    deleted: int = 0
    size: int = 0


class Row(NamedTuple):
    """A message in a folder."""

    uid: int
    message_id: str
    flags: int
    keywords: str
    modseq: int
    internal_date: int
    saved_at: int
    size: int
    thread_id: str


#: The mutable part of a message in a folder: UID, flags, keywords, mod-sequence.
State = tuple[int, int, str, int]


class Thread(NamedTuple):
    thread_id: str
    messages: int
    unread: int
    latest_message_id: str
    subject: str


_REGISTRATIONS = "SELECT registration_id, address, status, directory, created_at FROM mailbox_registrations"


def registrations(connection: sqlite3.Connection) -> list[Registration]:
    return [Registration(*row) for row in connection.execute(f"{_REGISTRATIONS} ORDER BY address").fetchall()]


def registrations_of(connection: sqlite3.Connection, address: str) -> list[Registration]:
    """All that an address ever had: the active one first, then the latest."""
    rows = connection.execute(
        f"{_REGISTRATIONS} WHERE address = ? ORDER BY status = 'active' DESC, created_at DESC", (address,)
    ).fetchall()
    return [Registration(*row) for row in rows]


def active_registration(connection: sqlite3.Connection, address: str) -> Registration:
    """Raises ``NO_SUCH_ADDRESS`` or ``INACTIVE_ADDRESS``."""
    registered = registrations_of(connection, address)
    if registered and registered[0].status == "active":
        return registered[0]
    inactive = any(registration.status == "inactive" for registration in registered)
    raise MailError(Reason.INACTIVE_ADDRESS if inactive else Reason.NO_SUCH_ADDRESS, address)


_FOLDER = """
SELECT f.folder_id, f.registration_id, r.directory, f.name, f.special_use, f.uidvalidity, f.uidnext, f.highestmodseq,
       f.messages, f.unseen, f.deleted, f.size
FROM folders f JOIN mailbox_registrations r USING (registration_id)
"""


def folder(connection: sqlite3.Connection, registration: str, name: str) -> Folder:
    """Raises ``NO_SUCH_FOLDER``."""
    row = connection.execute(f"{_FOLDER} WHERE f.registration_id = ? AND f.name = ?", (registration, name)).fetchone()
    if row is None:
        raise MailError(Reason.NO_SUCH_FOLDER, name)
    return Folder(*row)


def active_folder(connection: sqlite3.Connection, address: str, name: str) -> Folder | None:
    """A folder of an active address, in one query; :func:`folder` raises the reason if there is none."""
    row = connection.execute(
        f"{_FOLDER} WHERE r.address = ? AND r.status = 'active' AND f.name = ?", (address, name)
    ).fetchone()
    return Folder(*row) if row else None


def oldest_rows(connection: sqlite3.Connection, folder_id: int, limit: int) -> list[tuple[int, str, int]]:
    """(UID, message id, arrival in the folder) of the lowest UIDs of a folder."""
    return connection.execute(
        "SELECT uid, message_id, saved_at FROM mailbox_projections WHERE folder_id = ? ORDER BY uid LIMIT ?",
        (folder_id, limit),
    ).fetchall()


def octets_digests(connection: sqlite3.Connection, folder_id: int) -> dict[str, int]:
    """Count each SHA-256 of octets among the messages of a folder."""
    rows = connection.execute(
        "SELECT m.wire_sha256, count(*) FROM mailbox_projections p JOIN messages m USING (message_id)"
        " WHERE p.folder_id = ? AND m.file_sha256 <> '' GROUP BY m.wire_sha256",
        (folder_id,),
    ).fetchall()
    return dict(rows)


def folder_by_id(connection: sqlite3.Connection, folder_id: int) -> Folder | None:
    row = connection.execute(f"{_FOLDER} WHERE f.folder_id = ?", (folder_id,)).fetchone()
    return Folder(*row) if row else None


def folders(connection: sqlite3.Connection, registration: str) -> list[Folder]:
    rows = connection.execute(f"{_FOLDER} WHERE f.registration_id = ? ORDER BY f.name", (registration,)).fetchall()
    return [Folder(*row) for row in rows]


def folders_named(connection: sqlite3.Connection, registration: str, name: str) -> list[Folder]:
    """The folder of that name, if there is one."""
    rows = connection.execute(f"{_FOLDER} WHERE f.registration_id = ? AND f.name = ?", (registration, name)).fetchall()
    return [Folder(*row) for row in rows]


def subscriptions(connection: sqlite3.Connection, registration: str) -> list[str]:
    rows = connection.execute("SELECT name FROM subscriptions WHERE registration_id = ? ORDER BY name", (registration,))
    return [row[0] for row in rows.fetchall()]


_ROWS = """
SELECT p.uid, p.message_id, s.flags, s.keywords, s.modseq, p.internal_date, p.saved_at, m.size, m.thread_id
FROM mailbox_projections p JOIN mailbox_state s USING (folder_id, uid) JOIN messages m USING (message_id)
WHERE p.folder_id = ?
"""
_CHOSEN_ROWS = f"{_ROWS} AND p.uid IN (SELECT value FROM json_each(?)) ORDER BY p.uid"  # noqa: S608
_MANY = 4096  # from here on it is cheaper to read a range and leave out what was not asked for


def rows(connection: sqlite3.Connection, folder_id: int, first: int = 1, last: int = 0xFFFFFFFF) -> list[Row]:
    """The messages of a folder with UIDs from ``first`` to ``last``, ascending."""
    rows = connection.execute(f"{_ROWS} AND p.uid BETWEEN ? AND ? ORDER BY p.uid", (folder_id, first, last))
    return list(map(Row._make, rows.fetchall()))


_ROWS_SAVED_SINCE = f"{_ROWS} AND p.uid >= ? AND p.saved_at >= ? ORDER BY p.uid LIMIT ?"


def rows_since(
    connection: sqlite3.Connection, folder_id: int, first: int, saved_since: int = 0, limit: int | None = None
) -> list[Row]:
    """Messages of a folder from a UID on that were saved at this time (seconds) or later, ascending."""
    values = (folder_id, first, saved_since, -1 if limit is None else limit)
    return list(map(Row._make, connection.execute(_ROWS_SAVED_SINCE, values).fetchall()))


def rows_of(connection: sqlite3.Connection, folder_id: int, uids: Collection[int]) -> list[Row]:
    """The messages of a folder with these UIDs, ascending; UIDs that are not there are passed over."""
    if len(uids) < _MANY:
        chosen = connection.execute(_CHOSEN_ROWS, (folder_id, orjson.dumps(list(uids)).decode()))
        return list(map(Row._make, chosen.fetchall()))
    chosen_uids = set(uids)
    return [row for row in rows(connection, folder_id, min(chosen_uids), max(chosen_uids)) if row.uid in chosen_uids]


_STATES = "SELECT uid, flags, keywords, modseq FROM mailbox_state WHERE folder_id = ? AND"
_CHOSEN_STATES = f"{_STATES} uid IN (SELECT value FROM json_each(?)) ORDER BY uid"  # noqa: S608


def states_of(connection: sqlite3.Connection, folder_id: int, uids: Collection[int]) -> list[State]:
    """Flags and mod-sequences alone, which live in one table: several times quicker than :func:`rows_of`."""
    if len(uids) < _MANY:
        return connection.execute(_CHOSEN_STATES, (folder_id, orjson.dumps(list(uids)).decode())).fetchall()
    chosen_uids = set(uids)
    first, last = min(chosen_uids), max(chosen_uids)
    states = connection.execute(f"{_STATES} uid BETWEEN ? AND ? ORDER BY uid", (folder_id, first, last)).fetchall()
    return states if len(chosen_uids) == last - first + 1 else [row for row in states if row[0] in chosen_uids]


def changed_since(connection: sqlite3.Connection, folder_id: int, modseq: int) -> list[Row]:
    changed = connection.execute(f"{_ROWS} AND s.modseq > ? ORDER BY p.uid", (folder_id, modseq))
    return list(map(Row._make, changed.fetchall()))


def expunged_since(connection: sqlite3.Connection, folder_id: int, modseq: int) -> list[str]:
    """Sequence sets of the UIDs removed after ``modseq``, oldest first."""
    removed = connection.execute(
        "SELECT uids FROM expunged WHERE folder_id = ? AND modseq > ? ORDER BY modseq", (folder_id, modseq)
    )
    return [row[0] for row in removed.fetchall()]


def threads(connection: sqlite3.Connection, registration: str, limit: int = 100) -> list[Thread]:
    """The threads of an account, the one with the latest message first."""
    summaries = connection.execute(
        "SELECT t.thread_id, t.messages, t.unread, t.latest_message_id, m.subject FROM thread_summaries t"
        " JOIN messages m ON m.message_id = t.latest_message_id"
        " WHERE t.registration_id = ? ORDER BY t.latest_message_id DESC LIMIT ?",
        (registration, limit),
    )
    return [Thread(*row) for row in summaries.fetchall()]


#: The partial index on ``header_id`` is used only if the query repeats its condition.
_THREAD_OF = "SELECT thread_id FROM messages WHERE header_id = ? AND header_id <> '' LIMIT 1"


def thread_of(connection: sqlite3.Connection, header_ids: Iterable[str]) -> str | None:
    """The thread of the first of these Message-IDs that is known."""
    for header_id in header_ids:
        row = connection.execute(_THREAD_OF, (header_id,)).fetchone()
        if row:
            return str(row[0])
    return None


def message_digests(connection: sqlite3.Connection, folder: int) -> list[tuple[int, str, int]]:
    """UID, digest of the octets and size of every message of a folder, in ascending order of the UIDs."""
    return connection.execute(
        "SELECT p.uid, m.wire_sha256, m.size FROM mailbox_projections p JOIN messages m USING (message_id)"
        " WHERE p.folder_id = ? ORDER BY p.uid",
        (folder,),
    ).fetchall()
