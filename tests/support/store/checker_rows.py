"""The rows of the index against each other, in plain SQL that shares nothing with the store's own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

#: Each of these must find nothing.
_NOTHING = {
    "projection without state": """
        SELECT * FROM mailbox_projections p LEFT JOIN mailbox_state s USING (folder_id, uid) WHERE s.uid IS NULL""",
    "state without projection": """
        SELECT * FROM mailbox_state s LEFT JOIN mailbox_projections p USING (folder_id, uid) WHERE p.uid IS NULL""",
    "projection without folder": """
        SELECT * FROM mailbox_projections WHERE folder_id NOT IN (SELECT folder_id FROM folders)""",
    "projection without content": """
        SELECT * FROM mailbox_projections
        WHERE message_id NOT IN (SELECT message_id FROM messages WHERE file_sha256 <> '')""",
    "folder without registration": """
        SELECT * FROM folders WHERE registration_id NOT IN
            (SELECT registration_id FROM mailbox_registrations WHERE status <> 'purged')""",
    "UID beyond UIDNEXT": """
        SELECT * FROM mailbox_projections p JOIN folders f USING (folder_id) WHERE p.uid >= f.uidnext""",
    "modseq beyond HIGHESTMODSEQ": """
        SELECT * FROM mailbox_state s JOIN folders f USING (folder_id) WHERE s.modseq > f.highestmodseq""",
    "expunged beyond HIGHESTMODSEQ": """
        SELECT * FROM expunged e JOIN folders f USING (folder_id) WHERE e.modseq > f.highestmodseq""",
    "UIDVALIDITY given twice": """
        SELECT uidvalidity FROM folders GROUP BY uidvalidity HAVING count(*) > 1""",
    "UIDVALIDITY beyond the last": """
        SELECT uidvalidity FROM folders WHERE uidvalidity > (SELECT value FROM meta WHERE key = 'last_uidvalidity')""",
    "unlinked, yet shown": """
        SELECT * FROM messages
        WHERE unlinked_at IS NOT NULL AND message_id IN (SELECT message_id FROM mailbox_projections)""",
    "unlinked, yet queued": """
        SELECT * FROM messages WHERE unlinked_at IS NOT NULL AND message_id IN (SELECT message_id FROM outbox)""",
    "queued without content": """
        SELECT * FROM outbox WHERE message_id NOT IN (SELECT message_id FROM messages WHERE file_sha256 <> '')""",
    "shown nowhere, yet not unlinked": """
        SELECT * FROM messages WHERE unlinked_at IS NULL AND file_sha256 <> ''
        AND message_id NOT IN (SELECT message_id FROM mailbox_projections UNION SELECT message_id FROM outbox)""",
    "recipients of no message": """
        SELECT * FROM message_recipients WHERE message_id NOT IN (SELECT message_id FROM messages)""",
    "attachments of no message": """
        SELECT * FROM message_attachments
        WHERE message_id NOT IN (SELECT message_id FROM messages WHERE file_sha256 <> '')""",
    "cache of no message": """
        SELECT message_id FROM cache_messages
        WHERE message_id NOT IN (SELECT message_id FROM messages WHERE file_sha256 <> '')""",
}

_COUNTERS = """
SELECT f.folder_id, count(p.uid), coalesce(sum(NOT s.flags & 1), 0), coalesce(sum((s.flags & 8) > 0), 0),
       coalesce(sum(m.size), 0)
FROM folders f LEFT JOIN mailbox_projections p USING (folder_id) LEFT JOIN mailbox_state s USING (folder_id, uid)
LEFT JOIN messages m USING (message_id)
GROUP BY 1 ORDER BY 1
"""
_THREADS = """
SELECT f.registration_id, m.thread_id, count(*), sum(NOT s.flags & 1), max(m.message_id)
FROM mailbox_projections p JOIN folders f USING (folder_id) JOIN mailbox_state s USING (folder_id, uid)
JOIN messages m USING (message_id)
GROUP BY 1, 2 ORDER BY 1, 2
"""


def check_rows(index: sqlite3.Connection, equal: Callable[[str, object, object], None]) -> None:
    """Report through ``equal(what, found, wanted)``."""
    for what, sql in _NOTHING.items():
        equal(what, index.execute(sql).fetchall(), [])
    stored = index.execute("SELECT folder_id, messages, unseen, deleted, size FROM folders ORDER BY 1").fetchall()
    equal("folder counters", stored, index.execute(_COUNTERS).fetchall())
    summaries = index.execute("SELECT * FROM thread_summaries ORDER BY 1, 2").fetchall()
    equal("thread summaries", summaries, index.execute(_THREADS).fetchall())
