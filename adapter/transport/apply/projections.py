"""Projections: a message shown in a folder under a UID, as a relative symbolic link and as rows."""

from __future__ import annotations

import contextlib
import sqlite3
from functools import partial

import orjson

from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.store.effects import Project, Unproject
from adapter.store.flags import format_uids
from adapter.transport.apply import folders
from adapter.transport.apply.undo import Undo

# --- files -----------------------------------------------------------------------------------------------------------


def link(effect: Project, directories: Directories, undo: Undo) -> None:
    parts = layout.folder_directory(effect.directory, effect.name)
    if effect.uids_below is not None:
        folders.raise_mark(directories, parts, effect.folder, effect.uids_below)
    with directories.open(parts) as directory:
        for row in effect.rows:
            name = layout.projection_name(row.uid, row.message_id)
            disk.symlink(directory, name, layout.projection_target(row.message_id))
            undo.add(partial(_unlink_in, directories, parts, name))


def unlink(effect: Unproject, directories: Directories, undo: Undo) -> None:
    parts = layout.folder_directory(effect.directory, effect.name)
    # Links that somebody removed by hand, or the directory with all of them, need not go.
    with contextlib.suppress(FileNotFoundError), directories.open(parts) as directory:
        for row in effect.rows:
            name = layout.projection_name(row.uid, row.message_id)
            try:
                disk.unlink(directory, name)
            except FileNotFoundError:
                continue
            undo.add(partial(_link_in, directories, parts, name, row.message_id))


def _unlink_in(directories: Directories, parts: layout.Parts, name: str) -> None:
    with directories.open(parts) as directory:
        disk.unlink(directory, name)


def _link_in(directories: Directories, parts: layout.Parts, name: str, message_id: str) -> None:
    with directories.open(parts) as directory:
        disk.symlink(directory, name, layout.projection_target(message_id))


# --- index -----------------------------------------------------------------------------------------------------------

_COUNT = """
UPDATE folders SET
    uidnext = max(uidnext, :last + 1), highestmodseq = max(highestmodseq, :modseq),
    messages = messages + :count, unseen = unseen + :unseen, deleted = deleted + :deleted,
    size = size + (SELECT total(m.size) FROM mailbox_projections p JOIN messages m USING (message_id)
                   WHERE p.folder_id = :folder AND p.uid BETWEEN :first AND :last)
WHERE folder_id = :folder
"""
_THREADS = """
INSERT INTO thread_summaries
SELECT :registration, m.thread_id, count(*), sum(1 - (s.flags & 1)), max(m.message_id)
FROM mailbox_projections p JOIN mailbox_state s USING (folder_id, uid) JOIN messages m USING (message_id)
WHERE p.folder_id = :folder AND p.uid BETWEEN :first AND :last GROUP BY m.thread_id
ON CONFLICT DO UPDATE SET
    messages = thread_summaries.messages + excluded.messages, unread = thread_summaries.unread + excluded.unread,
    latest_message_id = max(latest_message_id, excluded.latest_message_id)
"""


# A delivery projects one message: the same without the joins over a range.
_COUNT_ONE = """
UPDATE folders SET
    uidnext = max(uidnext, :last + 1), highestmodseq = max(highestmodseq, :modseq),
    messages = messages + 1, unseen = unseen + :unseen, deleted = deleted + :deleted,
    size = size + (SELECT m.size FROM messages m WHERE m.message_id = :id)
WHERE folder_id = :folder
"""
_THREAD_OF_ONE = """
INSERT INTO thread_summaries
SELECT :registration, m.thread_id, 1, :unseen, m.message_id FROM messages m WHERE m.message_id = :id
ON CONFLICT DO UPDATE SET
    messages = thread_summaries.messages + 1, unread = thread_summaries.unread + excluded.unread,
    latest_message_id = max(latest_message_id, excluded.latest_message_id)
"""


def index(effect: Project, connection: sqlite3.Connection) -> None:
    folder, modseq, rows = effect.folder, effect.modseq, effect.rows
    connection.executemany(
        "INSERT INTO mailbox_projections VALUES (?, ?, ?, ?, ?)",
        [(folder, row.uid, row.message_id, row.internal_date, row.saved_at) for row in rows],
    )
    connection.executemany(
        "INSERT INTO mailbox_state (folder_id, uid, flags, keywords, modseq) VALUES (?, ?, ?, ?, ?)",
        [(folder, row.uid, row.flags, row.keywords, modseq) for row in rows],
    )
    values = {
        "folder": folder,
        "registration": effect.registration,
        "modseq": modseq,
        "id": rows[0].message_id,
        "first": rows[0].uid,
        "last": rows[-1].uid,
        "count": len(rows),
        "unseen": sum(not row.flags & 1 for row in rows),
        "deleted": sum(bool(row.flags & 8) for row in rows),
    }
    single = len(rows) == 1
    connection.execute(_COUNT_ONE if single else _COUNT, values)
    connection.execute(_THREAD_OF_ONE if single else _THREADS, values)


# CROSS JOIN keeps the order of the tables: left to itself, SQLite may go through the list once for every message.
_GONE = """
SELECT count(*), total(1 - (s.flags & 1)), total((s.flags >> 3) & 1), total(m.size)
FROM json_each(:uids) j CROSS JOIN mailbox_projections p ON p.folder_id = :folder AND p.uid = j.value
CROSS JOIN mailbox_state s USING (folder_id, uid) CROSS JOIN messages m USING (message_id)
"""
_LOWER_THREADS = """
UPDATE thread_summaries SET
    messages = thread_summaries.messages - gone.number, unread = thread_summaries.unread - gone.unseen
FROM (SELECT m.thread_id, count(*) AS number, sum(1 - (s.flags & 1)) AS unseen
      FROM json_each(:uids) j CROSS JOIN mailbox_projections p ON p.folder_id = :folder AND p.uid = j.value
      CROSS JOIN mailbox_state s USING (folder_id, uid) CROSS JOIN messages m USING (message_id)
      GROUP BY m.thread_id) AS gone
WHERE registration_id = :registration AND thread_summaries.thread_id = gone.thread_id
"""
_DROP_THREADS = """
DELETE FROM thread_summaries WHERE registration_id = :registration AND messages <= 0
AND thread_id IN (SELECT m.thread_id FROM json_each(:ids) j JOIN messages m ON m.message_id = j.value)
"""
_LATEST = """
UPDATE thread_summaries SET latest_message_id = (
    SELECT max(p.message_id) FROM messages m JOIN mailbox_projections p USING (message_id)
    JOIN folders f USING (folder_id)
    WHERE m.thread_id = thread_summaries.thread_id AND f.registration_id = :registration)
WHERE registration_id = :registration
AND thread_id IN (SELECT m.thread_id FROM json_each(:ids) j JOIN messages m ON m.message_id = j.value)
AND latest_message_id IN (SELECT value FROM json_each(:ids))
"""
_UNLINKED = """
UPDATE messages SET unlinked_at = :now WHERE message_id IN (SELECT value FROM json_each(:ids))
AND NOT EXISTS (SELECT 1 FROM mailbox_projections p WHERE p.message_id = messages.message_id)
AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.message_id = messages.message_id)
"""


def index_removal(effect: Unproject, connection: sqlite3.Connection, at: int) -> None:
    uids = [row.uid for row in effect.rows]
    values = {
        "folder": effect.folder,
        "registration": effect.registration,
        "uids": orjson.dumps(uids).decode(),
        "ids": orjson.dumps([row.message_id for row in effect.rows]).decode(),
        "now": at // 1_000_000,
        "modseq": effect.modseq,
    }
    count, unseen, deleted, size = connection.execute(_GONE, values).fetchone()
    connection.execute(_LOWER_THREADS, values)
    for table in ("mailbox_state", "mailbox_projections"):
        connection.execute(
            f"DELETE FROM {table} WHERE folder_id = :folder AND uid IN (SELECT value FROM json_each(:uids))",  # noqa: S608
            values,
        )
    connection.execute(_DROP_THREADS, values)
    connection.execute(_LATEST, values)
    connection.execute(_UNLINKED, values)
    connection.execute("INSERT INTO expunged VALUES (?, ?, ?)", (effect.folder, effect.modseq, format_uids(uids)))
    connection.execute(
        "UPDATE folders SET messages = messages - ?, unseen = unseen - ?, deleted = deleted - ?, size = size - ?,"
        " highestmodseq = max(highestmodseq, ?) WHERE folder_id = ?",
        (count, int(unseen), int(deleted), int(size), effect.modseq, effect.folder),
    )
