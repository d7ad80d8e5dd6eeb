"""The outbox: mail for other hosts, one row for each recipient; and what senders asked of deliveries here (RFC 3461).

Rows of the index only: the octets are those of the message, which is kept while it has rows here. When its last row
goes and no folder shows it, it may be collected. Requests for reports on a delivery go with the content.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

import orjson

from adapter.store.effects import Dequeue, Enqueue, RequestDsn, Requeue


class QueueRow(NamedTuple):
    """One recipient who still has to get one message. Times are seconds since the epoch."""

    queue_id: str
    message_id: str
    sender: str  # envelope sender; "" is the null sender
    return_to: str  # the local address that gets reports; "": the sender's
    recipient: str
    notify: str | None  # RFC 3461 4.1 as it is passed on; None: not given
    orcpt: str | None
    ret: str | None
    envid: str | None
    body: str  # 7BIT, 8BITMIME or BINARYMIME, as declared
    smtputf8: int
    requiretls: int
    created_at: int
    next_attempt_at: int
    attempts: int
    delay_warned: int
    last_status: str
    expires_at: int


_ROW = f"SELECT {', '.join(QueueRow._fields)} FROM outbox"  # noqa: S608 - names from our own schema
_CHOSEN = f"""
{_ROW} WHERE queue_id IN (SELECT value FROM json_each(:ids)) OR message_id IN (SELECT value FROM json_each(:ids))
ORDER BY created_at, queue_id
"""  # noqa: S608


def due(connection: sqlite3.Connection, now: int, limit: int) -> list[QueueRow]:
    """Rows that are due, the longest waiting first."""
    rows = connection.execute(
        f"{_ROW} WHERE next_attempt_at <= ? ORDER BY next_attempt_at, queue_id LIMIT ?", (now, limit)
    )
    return [QueueRow(*row) for row in rows.fetchall()]


def due_of(connection: sqlite3.Connection, message_id: str, now: int) -> list[QueueRow]:
    """The recipients of one message that may be tried now."""
    rows = connection.execute(
        f"{_ROW} WHERE message_id = ? AND next_attempt_at <= ? ORDER BY queue_id", (message_id, now)
    )
    return [QueueRow(*row) for row in rows.fetchall()]


def next_due(connection: sqlite3.Connection, after: int) -> int | None:
    """When the next attempt later than ``after`` is due."""
    row = connection.execute("SELECT min(next_attempt_at) FROM outbox WHERE next_attempt_at > ?", (after,)).fetchone()
    return None if row[0] is None else int(row[0])


def queued(connection: sqlite3.Connection) -> list[QueueRow]:
    """The whole outbox, oldest first."""
    return [QueueRow(*row) for row in connection.execute(f"{_ROW} ORDER BY created_at, queue_id").fetchall()]


def rows_of(connection: sqlite3.Connection, ids: Iterable[str]) -> list[QueueRow]:
    """The rows with these queue ids, or of the messages with these ids; those that are not there are passed over."""
    rows = connection.execute(_CHOSEN, {"ids": orjson.dumps(list(ids)).decode()})
    return [QueueRow(*row) for row in rows.fetchall()]


def sizes(connection: sqlite3.Connection) -> dict[str, int]:
    """The octets of each message that is queued."""
    rows = connection.execute(
        "SELECT message_id, size FROM messages WHERE message_id IN (SELECT message_id FROM outbox)"
    )
    return dict(rows.fetchall())


class QueueLength(NamedTuple):
    due: int
    waiting: int
    oldest: int | None  # seconds since the epoch; None: nothing is queued


def length(connection: sqlite3.Connection, now: int) -> QueueLength:
    row = connection.execute(
        "SELECT count(*) FILTER (WHERE next_attempt_at <= :now), count(*) FILTER (WHERE next_attempt_at > :now),"
        " min(created_at) FROM outbox",
        {"now": now},
    ).fetchone()
    return QueueLength(*row)


# --- changes ---------------------------------------------------------------------------------------------------------


def enqueue(connection: sqlite3.Connection, effect: Enqueue) -> None:
    shared = (
        effect.ret,
        effect.envid,
        effect.body,
        int(effect.smtputf8),
        int(effect.requiretls),
        effect.created_at,
        effect.created_at,
        effect.expires_at,
    )
    sender = (effect.message_id, effect.sender, effect.return_to)
    connection.executemany(
        "INSERT INTO outbox (queue_id, message_id, sender, return_to, recipient, notify, orcpt,"
        " ret, envid, body, smtputf8, requiretls, created_at, next_attempt_at, expires_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(row.queue_id, *sender, row.recipient, row.notify, row.orcpt, *shared) for row in effect.rows],
    )


def requeue(connection: sqlite3.Connection, effect: Requeue) -> None:
    connection.executemany(
        "UPDATE outbox SET attempts = ?, next_attempt_at = ?, last_status = ?, delay_warned = ? WHERE queue_id = ?",
        [
            (row.attempts, row.next_attempt_at, row.last_status, int(row.delay_warned), row.queue_id)
            for row in effect.rows
        ],
    )


_NOTE_UNLINKED = """
UPDATE messages SET unlinked_at = :now WHERE message_id IN (SELECT value FROM json_each(:ids))
AND unlinked_at IS NULL AND file_sha256 <> ''
AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.message_id = messages.message_id)
AND NOT EXISTS (SELECT 1 FROM mailbox_projections p WHERE p.message_id = messages.message_id)
"""


def dequeue(connection: sqlite3.Connection, effect: Dequeue, now: int) -> None:
    """``now`` is in seconds."""
    connection.executemany("DELETE FROM outbox WHERE queue_id = ?", [(row.queue_id,) for row in effect.rows])
    ids = orjson.dumps(sorted({row.message_id for row in effect.rows})).decode()
    connection.execute(_NOTE_UNLINKED, {"ids": ids, "now": now})


def request_dsn(connection: sqlite3.Connection, effects: Iterable[RequestDsn]) -> None:
    """Keep the requests, one row for each recipient here as the sender named it."""
    connection.executemany(
        "INSERT INTO dsn_requests VALUES (?, ?, ?, ?, ?, ?)",
        [
            (effect.message_id, each.address, each.notify, each.orcpt, effect.ret, effect.envid)
            for effect in effects
            for each in effect.recipients
        ],
    )
