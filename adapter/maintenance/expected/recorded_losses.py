"""Losses that an earlier repair recorded: a known state, so they are listed and are not findings."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

from adapter.maintenance.expected import tables

_SHOWN = 100
_PARTS = """
SELECT d.message_id, d.part, m.header_from, m.subject FROM damaged_parts d JOIN messages m USING (message_id)
WHERE m.file_sha256 <> '' ORDER BY 1, 2 LIMIT ?
"""
_MESSAGES = """
SELECT message_id, '', header_from, subject FROM messages m
WHERE message_id IN (SELECT message_id FROM lost_places) ORDER BY 1 LIMIT ?
"""


def recorded_losses(path: str) -> dict[str, Any]:
    """Counts of damaged parts and lost messages in the tables at ``path``, and the first of them."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(tables.connect(path)) as connection:
        (parts,) = connection.execute("SELECT count(*) FROM damaged_parts").fetchone()
        (messages,) = connection.execute("SELECT count(DISTINCT message_id) FROM lost_places").fetchone()
        shown = [
            {"what": what, "message": row[0], "part": row[1], "from": row[2], "subject": row[3]}
            for what, sql in (("damaged", _PARTS), ("lost", _MESSAGES))
            for row in connection.execute(sql, (_SHOWN,))
        ]
        return {"parts": parts, "messages": messages, "shown": shown}
    return {"parts": 0, "messages": 0, "shown": []}
