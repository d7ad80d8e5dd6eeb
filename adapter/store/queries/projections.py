"""Messages in folders: showing them, removing them, changing their flags; with the counters of folders and threads.

A change keeps every counter exact: those of the folder and those of the threads it touches.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict

import orjson

from adapter.store.effects import Project, SetFlags, Unproject
from adapter.store.flags import Flag, change_keywords, flag_masks, format_uids, parse_uids

_READ, _DELETED = int(Flag.READ), int(Flag.DELETED)

_COUNT = """
UPDATE folders SET
    uidnext = max(uidnext, :last + 1), highestmodseq = max(highestmodseq, :modseq),
    messages = messages + :count, unseen = unseen + :unseen, deleted = deleted + :deleted,
    size = size + (SELECT total(m.size) FROM mailbox_projections p JOIN messages m USING (message_id)
                   WHERE p.folder_id = :folder AND p.uid BETWEEN :first AND :last)
WHERE folder_id = :folder
"""
_COUNT_THREADS = f"""
INSERT INTO thread_summaries
SELECT :registration, m.thread_id, count(*), sum(s.flags & {_READ} = 0), max(m.message_id)
FROM mailbox_projections p JOIN mailbox_state s USING (folder_id, uid) JOIN messages m USING (message_id)
WHERE p.folder_id = :folder AND p.uid BETWEEN :first AND :last GROUP BY m.thread_id
ON CONFLICT DO UPDATE SET
    messages = thread_summaries.messages + excluded.messages, unread = thread_summaries.unread + excluded.unread,
    latest_message_id = max(latest_message_id, excluded.latest_message_id)
"""  # noqa: S608 - a number of ours
# A delivery projects one message: the same without the joins over a range.
_COUNT_ONE = """
UPDATE folders SET
    uidnext = max(uidnext, :last + 1), highestmodseq = max(highestmodseq, :modseq),
    messages = messages + 1, unseen = unseen + :unseen, deleted = deleted + :deleted,
    size = size + (SELECT m.size FROM messages m WHERE m.message_id = :id)
WHERE folder_id = :folder
"""
_COUNT_THREAD_OF_ONE = """
INSERT INTO thread_summaries
SELECT :registration, m.thread_id, 1, :unseen, m.message_id FROM messages m WHERE m.message_id = :id
ON CONFLICT DO UPDATE SET
    messages = thread_summaries.messages + 1, unread = thread_summaries.unread + excluded.unread,
    latest_message_id = max(latest_message_id, excluded.latest_message_id)
"""


def project(connection: sqlite3.Connection, effect: Project) -> None:
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
        "unseen": sum(not row.flags & _READ for row in rows),
        "deleted": sum(bool(row.flags & _DELETED) for row in rows),
    }
    single = len(rows) == 1
    connection.execute(_COUNT_ONE if single else _COUNT, values)
    connection.execute(_COUNT_THREAD_OF_ONE if single else _COUNT_THREADS, values)


# CROSS JOIN keeps the order of the tables: left to itself, SQLite may go through the list once for every message.
_COUNT_LEAVING = f"""
SELECT count(*), total(s.flags & {_READ} = 0), total(s.flags & {_DELETED} <> 0), total(m.size)
FROM json_each(:uids) j CROSS JOIN mailbox_projections p ON p.folder_id = :folder AND p.uid = j.value
CROSS JOIN mailbox_state s USING (folder_id, uid) CROSS JOIN messages m USING (message_id)
"""  # noqa: S608 - numbers of ours
_LOWER_THREADS = f"""
UPDATE thread_summaries SET
    messages = thread_summaries.messages - gone.number, unread = thread_summaries.unread - gone.unseen
FROM (SELECT m.thread_id, count(*) AS number, sum(s.flags & {_READ} = 0) AS unseen
      FROM json_each(:uids) j CROSS JOIN mailbox_projections p ON p.folder_id = :folder AND p.uid = j.value
      CROSS JOIN mailbox_state s USING (folder_id, uid) CROSS JOIN messages m USING (message_id)
      GROUP BY m.thread_id) AS gone
WHERE registration_id = :registration AND thread_summaries.thread_id = gone.thread_id
"""  # noqa: S608 - a number of ours
_DROP_THREADS = """
DELETE FROM thread_summaries WHERE registration_id = :registration AND messages <= 0
AND thread_id IN (SELECT m.thread_id FROM json_each(:ids) j JOIN messages m ON m.message_id = j.value)
"""
_FIND_LATEST = """
UPDATE thread_summaries SET latest_message_id = (
    SELECT max(p.message_id) FROM messages m JOIN mailbox_projections p USING (message_id)
    JOIN folders f USING (folder_id)
    WHERE m.thread_id = thread_summaries.thread_id AND f.registration_id = :registration)
WHERE registration_id = :registration
AND thread_id IN (SELECT m.thread_id FROM json_each(:ids) j JOIN messages m ON m.message_id = j.value)
AND latest_message_id IN (SELECT value FROM json_each(:ids))
"""
_NOTE_UNLINKED = """
UPDATE messages SET unlinked_at = :now WHERE message_id IN (SELECT value FROM json_each(:ids))
AND NOT EXISTS (SELECT 1 FROM mailbox_projections p WHERE p.message_id = messages.message_id)
AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.message_id = messages.message_id)
"""


def unproject(connection: sqlite3.Connection, effect: Unproject, now: int) -> None:
    """``now`` is in seconds."""
    uids = [row.uid for row in effect.rows]
    values = {
        "folder": effect.folder,
        "registration": effect.registration,
        "uids": orjson.dumps(uids).decode(),
        "ids": orjson.dumps([row.message_id for row in effect.rows]).decode(),
        "now": now,
        "modseq": effect.modseq,
    }
    count, unseen, deleted, size = connection.execute(_COUNT_LEAVING, values).fetchone()
    connection.execute(_LOWER_THREADS, values)
    for table in ("mailbox_state", "mailbox_projections"):
        connection.execute(
            f"DELETE FROM {table} WHERE folder_id = :folder AND uid IN (SELECT value FROM json_each(:uids))",  # noqa: S608
            values,
        )
    connection.execute(_DROP_THREADS, values)
    connection.execute(_FIND_LATEST, values)
    connection.execute(_NOTE_UNLINKED, values)
    connection.execute("INSERT INTO expunged VALUES (?, ?, ?)", (effect.folder, effect.modseq, format_uids(uids)))
    connection.execute(
        "UPDATE folders SET messages = messages - ?, unseen = unseen - ?, deleted = deleted - ?, size = size - ?,"
        " highestmodseq = max(highestmodseq, ?) WHERE folder_id = ?",
        (count, int(unseen), int(deleted), int(size), effect.modseq, effect.folder),
    )


# --- flags -----------------------------------------------------------------------------------------------------------

_COUNT_CHANGED = """
UPDATE folders SET
    unseen = folders.unseen + change.more_unseen, deleted = folders.deleted + change.more_deleted
FROM (SELECT total((s.flags & {read} <> 0) - (((s.flags & :keep) | :give) & {read} <> 0)) AS more_unseen,
             total((((s.flags & :keep) | :give) & {deleted} <> 0) - (s.flags & {deleted} <> 0)) AS more_deleted
      FROM mailbox_state s WHERE s.folder_id = :folder AND {which}) AS change
WHERE folder_id = :folder
"""
_THREADS_OF_CHANGED = """
SELECT json_group_array(m.thread_id)
FROM mailbox_state s JOIN mailbox_projections p USING (folder_id, uid) JOIN messages m USING (message_id)
WHERE s.folder_id = :folder AND {which} AND (s.flags & {read}) <> (((s.flags & :keep) | :give) & {read})
"""
_CHANGE_UNREAD = """
UPDATE thread_summaries SET unread = unread + :more
WHERE registration_id = :registration AND thread_id IN (SELECT value FROM json_each(:threads))
"""
_CHANGE_FLAGS = """
UPDATE mailbox_state AS s SET flags = (s.flags & :keep) | :give, modseq = :modseq
WHERE s.folder_id = :folder AND {which}
"""
_DISTINCT_KEYWORDS = """
SELECT DISTINCT s.keywords FROM mailbox_state s WHERE s.folder_id = :folder AND {which}
"""
_CHANGE_KEYWORDS = """
UPDATE mailbox_state AS s SET keywords = :new WHERE s.folder_id = :folder AND {which} AND s.keywords = :old
"""


def _statements(which: str) -> tuple[str, ...]:
    templates = (_COUNT_CHANGED, _THREADS_OF_CHANGED, _CHANGE_FLAGS, _DISTINCT_KEYWORDS, _CHANGE_KEYWORDS)
    return tuple(template.format(which=which, read=_READ, deleted=_DELETED) for template in templates)


ON_RANGE = _statements("s.uid BETWEEN :first AND :last")
ON_LIST = _statements("s.uid IN (SELECT value FROM json_each(:uids))")
_FEW_RANGES = 8


def set_flags(connection: sqlite3.Connection, effect: SetFlags) -> None:
    how, keywords = effect.how, effect.keywords
    keep, give = flag_masks(how, effect.flags)
    values: dict[str, int | str] = {
        "folder": effect.folder,
        "registration": effect.registration,
        "modseq": effect.modseq,
        "keep": keep,
        "give": give,
    }
    ranges = parse_uids(effect.uids)
    if len(ranges) <= _FEW_RANGES:
        statements = ON_RANGE
        spans = [{**values, "first": first, "last": last} for first, last in ranges]
    else:
        statements = ON_LIST
        uids = [uid for first, last in ranges for uid in range(first, last + 1)]
        spans = [{**values, "uids": orjson.dumps(uids).decode()}]
    count, threads, change, distinct_keywords, change_words = statements
    for span in spans:
        connection.execute(count, span)
        if not keep & _READ or give & _READ:
            (changed,) = connection.execute(threads, span).fetchone()
            _count_unread(connection, effect.registration, orjson.loads(changed), -1 if give & _READ else 1)
        connection.execute(change, span)
        if keywords or how == "set":
            for (old,) in connection.execute(distinct_keywords, span).fetchall():
                new = change_keywords(old, how, keywords)
                if new != old:
                    connection.execute(change_words, {**span, "old": old, "new": new})
    connection.execute(
        "UPDATE folders SET highestmodseq = max(highestmodseq, ?) WHERE folder_id = ?",
        (effect.modseq, effect.folder),
    )


def _count_unread(connection: sqlite3.Connection, registration: str, threads: list[str], each: int) -> None:
    """Change the unread messages of a thread by ``each`` for every time it is listed.

    One statement for all threads that are listed equally often, sorted: a third quicker than a join that groups them.
    """
    by_count: dict[int, list[str]] = defaultdict(list)
    for thread, count in Counter(sorted(threads)).items():
        by_count[count].append(thread)
    for count, those in by_count.items():
        values = {"registration": registration, "more": each * count, "threads": orjson.dumps(those).decode()}
        connection.execute(_CHANGE_UNREAD, values)
