"""Rows of folders whose message or folder has no row of its own, set aside until the file or the directory is adopted.

Tables must agree with themselves before anything is built on them, so such rows leave them (:mod:`settle`). But they
alone have flags, keywords and dates: where a repair adopts the message from its file, or the folder from its path, they
come back under the same UID.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from adapter.maintenance.expected import tables
from adapter.maintenance.expected.tables import NOTES
from adapter.store.effects import ProjectedRow

_KEEP = """
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


def keep(connection: sqlite3.Connection, scratch: str) -> None:
    """Note the rows that :func:`settle.settle` will remove from these tables."""
    connection.execute("ATTACH ? AS notes", (f"{scratch}/{NOTES}",))
    connection.execute("DROP TABLE IF EXISTS notes.shown")
    connection.execute(_KEEP)
    connection.execute(_INDEX)
    connection.execute("DETACH notes")


class SetAside:
    """Rows that were set aside in one scan; empty where there are none."""

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
        """What the index knew of a message under this UID of a folder."""
        found = self._query(_ITEM, message_id, folder, uid)
        return ProjectedRow(*found[0]) if found else None

    def places(self, message_id: str) -> list[tuple[int, int]]:
        """Folders and UIDs under which the index knew a message."""
        return self._query("SELECT folder_id, uid FROM shown WHERE message_id = ? ORDER BY 1, 2", message_id)

    def _query(self, sql: str, *values: object) -> list[Any]:
        return self._notes.execute(sql, values).fetchall() if self._notes is not None else []
