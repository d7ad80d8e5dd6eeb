"""Normalise tables from incomplete sources: remove orphaned rows and recompute counters, on a private copy only.

Rows of folders without a message or folder row of their own are removed, but only they have flags, keywords and dates.
They are set aside first: where repair adopts the message from its file, or the folder from its path, they return under
the same UID.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from adapter.maintenance.expected import tables
from adapter.maintenance.expected.tables import NOTES
from adapter.store.effects import ProjectedRow
from adapter.store.flags import Flag

_READ, _DELETED, _ARCHIVED = int(Flag.READ), int(Flag.DELETED), int(Flag.ARCHIVED)

_STATEMENTS = (
    # rows without their folder, message or registration
    "DELETE FROM folders WHERE registration_id NOT IN (SELECT registration_id FROM mailbox_registrations)",
    "DELETE FROM mailbox_projections WHERE folder_id NOT IN (SELECT folder_id FROM folders)"
    " OR message_id NOT IN (SELECT message_id FROM messages WHERE file_sha256 <> '')",
    "DELETE FROM mailbox_state WHERE NOT EXISTS (SELECT 1 FROM mailbox_projections p"
    " WHERE p.folder_id = mailbox_state.folder_id AND p.uid = mailbox_state.uid)",
    "INSERT INTO mailbox_state (folder_id, uid, flags, keywords, modseq)"  # noqa: S608
    f" SELECT p.folder_id, p.uid, iif(f.special_use = '\\Archive', {_ARCHIVED}, 0), '', f.highestmodseq"
    " FROM mailbox_projections p JOIN folders f USING (folder_id)"
    " WHERE NOT EXISTS (SELECT 1 FROM mailbox_state s WHERE s.folder_id = p.folder_id AND s.uid = p.uid)",
    "DELETE FROM expunged WHERE folder_id NOT IN (SELECT folder_id FROM folders)",
    "DELETE FROM subscriptions WHERE registration_id NOT IN (SELECT registration_id FROM mailbox_registrations)",
    "DELETE FROM message_recipients WHERE message_id NOT IN (SELECT message_id FROM messages)",
    "DELETE FROM message_attachments WHERE message_id NOT IN (SELECT message_id FROM messages)",
    "INSERT OR IGNORE INTO attachments SELECT sha256, max(size) FROM message_attachments GROUP BY sha256",
    "DELETE FROM attachments WHERE sha256 NOT IN (SELECT sha256 FROM message_attachments)",
    "DELETE FROM outbox WHERE message_id NOT IN (SELECT message_id FROM messages)",
    "DELETE FROM dsn_requests WHERE message_id NOT IN (SELECT message_id FROM messages WHERE file_sha256 <> '')",
    "DELETE FROM damaged_parts WHERE message_id NOT IN (SELECT message_id FROM messages)",
    "DELETE FROM lost_places WHERE message_id NOT IN (SELECT message_id FROM messages WHERE file_sha256 = '')",
    # counters
    "UPDATE folders SET"
    " uidnext = max(uidnext, 1 + coalesce((SELECT max(uid) FROM mailbox_projections p"
    "   WHERE p.folder_id = folders.folder_id), 0)),"
    " highestmodseq = max(highestmodseq, coalesce((SELECT max(modseq) FROM mailbox_state s"
    "   WHERE s.folder_id = folders.folder_id), 1))",
    "UPDATE meta SET value = max(value, coalesce((SELECT max(uidvalidity) FROM folders), 0))"
    " WHERE key = 'last_uidvalidity'",
)
_COUNTS = (
    f"CREATE TEMP TABLE counted AS SELECT p.folder_id, count(*) AS messages, sum(s.flags & {_READ} = 0) AS unseen,"  # noqa: S608
    f" sum(s.flags & {_DELETED} <> 0) AS deleted, sum(m.size) AS size FROM mailbox_projections p"
    " JOIN mailbox_state s USING (folder_id, uid) JOIN messages m USING (message_id) GROUP BY p.folder_id",
    "UPDATE folders SET messages = 0, unseen = 0, deleted = 0, size = 0"
    " WHERE folder_id NOT IN (SELECT folder_id FROM counted)",
    "UPDATE folders SET messages = c.messages, unseen = c.unseen, deleted = c.deleted, size = c.size"
    " FROM counted c WHERE c.folder_id = folders.folder_id",
    "DROP TABLE counted",
    "DELETE FROM thread_summaries",
    f"INSERT INTO thread_summaries SELECT f.registration_id, m.thread_id, count(*), sum(s.flags & {_READ} = 0),"  # noqa: S608
    " max(m.message_id) FROM mailbox_projections p JOIN mailbox_state s USING (folder_id, uid)"
    " JOIN messages m USING (message_id) JOIN folders f USING (folder_id) GROUP BY 1, 2",
)


def normalise(connection: sqlite3.Connection) -> None:
    """Make the tables consistent with themselves."""
    connection.execute("BEGIN")
    for statement in (*_STATEMENTS, *_COUNTS):
        connection.execute(statement)
    connection.execute("COMMIT")


# --- rows set aside ------------------------------------------------------------------------------------------------

_SET_ASIDE = """
CREATE TABLE notes.shown AS
SELECT p.message_id, p.folder_id, p.uid, p.internal_date, p.saved_at, s.flags, s.keywords
FROM mailbox_projections p JOIN mailbox_state s USING (folder_id, uid)
WHERE p.message_id NOT IN (SELECT message_id FROM messages)
  OR p.folder_id NOT IN (
    SELECT folder_id FROM folders WHERE registration_id IN (SELECT registration_id FROM mailbox_registrations))
"""
_INDEX = "CREATE UNIQUE INDEX notes.shown_by_message ON shown (message_id, folder_id, uid)"
_ITEM = """
SELECT uid, message_id, internal_date, saved_at, flags, keywords FROM shown
WHERE message_id = ? AND folder_id = ? AND uid = ?
"""


def set_aside_orphans(connection: sqlite3.Connection, scratch: str) -> None:
    """Copy the rows that :func:`normalise` will remove to the notes database."""
    connection.execute("ATTACH ? AS notes", (f"{scratch}/{NOTES}",))
    connection.execute("DROP TABLE IF EXISTS notes.shown")
    connection.execute(_SET_ASIDE)
    connection.execute(_INDEX)
    connection.execute("DETACH notes")


class SetAsideRows:
    """The rows set aside by the replay of an inspection; empty if there are none."""

    def __init__(self, scratch: str) -> None:
        path = f"{scratch}/{NOTES}"
        self._notes = tables.connect(path) if os.path.exists(path) else None
        if (
            self._notes is not None
            and not self._notes.execute("SELECT 1 FROM sqlite_schema WHERE name = 'shown'").fetchone()
        ):
            self.close()

    def close(self) -> None:
        if self._notes is not None:
            self._notes.close()
            self._notes = None

    def item(self, folder: int, uid: int, message_id: str) -> ProjectedRow | None:
        """The set-aside row of a message under this UID of a folder."""
        rows = self._query(_ITEM, message_id, folder, uid)
        return ProjectedRow(*rows[0]) if rows else None

    def places(self, message_id: str) -> list[tuple[int, int]]:
        """The folders and UIDs of a message in the set-aside rows."""
        return self._query("SELECT folder_id, uid FROM shown WHERE message_id = ? ORDER BY 1, 2", message_id)

    def _query(self, sql: str, *values: object) -> list[Any]:
        return self._notes.execute(sql, values).fetchall() if self._notes is not None else []
