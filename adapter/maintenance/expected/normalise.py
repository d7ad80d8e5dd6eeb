"""Making tables agree with themselves where the journal cannot tell: used on a private copy, never on the index."""

from __future__ import annotations

import sqlite3

_STATEMENTS = (
    # folders and messages that other rows hang on
    "DELETE FROM folders WHERE registration_id NOT IN (SELECT registration_id FROM mailbox_registrations)",
    "DELETE FROM mailbox_projections WHERE folder_id NOT IN (SELECT folder_id FROM folders)"
    " OR message_id NOT IN (SELECT message_id FROM messages WHERE file_sha256 <> '')",
    "DELETE FROM mailbox_state WHERE NOT EXISTS (SELECT 1 FROM mailbox_projections p"
    " WHERE p.folder_id = mailbox_state.folder_id AND p.uid = mailbox_state.uid)",
    "INSERT INTO mailbox_state (folder_id, uid, flags, keywords, modseq)"
    " SELECT p.folder_id, p.uid, iif(f.special_use = '\\Archive', 32, 0), '', f.highestmodseq"
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
    # numbers
    "UPDATE folders SET"
    " uidnext = max(uidnext, 1 + coalesce((SELECT max(uid) FROM mailbox_projections p"
    "   WHERE p.folder_id = folders.folder_id), 0)),"
    " highestmodseq = max(highestmodseq, coalesce((SELECT max(modseq) FROM mailbox_state s"
    "   WHERE s.folder_id = folders.folder_id), 1))",
    "UPDATE meta SET value = max(value, coalesce((SELECT max(uidvalidity) FROM folders), 0))"
    " WHERE key = 'last_uidvalidity'",
)
_COUNTS = (
    "CREATE TEMP TABLE counted AS SELECT p.folder_id, count(*) AS messages, sum(1 - (s.flags & 1)) AS unseen,"
    " sum((s.flags >> 3) & 1) AS deleted, sum(m.size) AS size FROM mailbox_projections p"
    " JOIN mailbox_state s USING (folder_id, uid) JOIN messages m USING (message_id) GROUP BY p.folder_id",
    "UPDATE folders SET messages = 0, unseen = 0, deleted = 0, size = 0"
    " WHERE folder_id NOT IN (SELECT folder_id FROM counted)",
    "UPDATE folders SET messages = c.messages, unseen = c.unseen, deleted = c.deleted, size = c.size"
    " FROM counted c WHERE c.folder_id = folders.folder_id",
    "DROP TABLE counted",
    "DELETE FROM thread_summaries",
    "INSERT INTO thread_summaries SELECT f.registration_id, m.thread_id, count(*), sum(1 - (s.flags & 1)),"
    " max(m.message_id) FROM mailbox_projections p JOIN mailbox_state s USING (folder_id, uid)"
    " JOIN messages m USING (message_id) JOIN folders f USING (folder_id) GROUP BY 1, 2",
)


def settle(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    for statement in (*_STATEMENTS, *_COUNTS):
        connection.execute(statement)
    connection.execute("COMMIT")
