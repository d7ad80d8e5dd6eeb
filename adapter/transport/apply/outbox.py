"""The outbox: mail for other hosts, as rows of the index only. The octets are those of the canonical file.

A message with rows here is kept like one that a folder shows; when its last row goes and no folder shows it, it may be
collected.
"""

from __future__ import annotations

import sqlite3

import orjson

from adapter.store.effects import Dequeue, Enqueue, Requeue


def index(effect: Enqueue, connection: sqlite3.Connection) -> None:
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
    connection.executemany(
        "INSERT INTO outbox (queue_id, message_id, sender, return_to, recipient, notify, orcpt,"
        " ret, envid, body, smtputf8, requiretls, created_at, next_attempt_at, expires_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                row.queue_id,
                effect.message_id,
                effect.sender,
                effect.return_to,
                row.recipient,
                row.notify,
                row.orcpt,
                *shared,
            )
            for row in effect.rows
        ],
    )


def index_update(effect: Requeue, connection: sqlite3.Connection) -> None:
    connection.executemany(
        "UPDATE outbox SET attempts = ?, next_attempt_at = ?, last_status = ?, delay_warned = ? WHERE queue_id = ?",
        [
            (row.attempts, row.next_attempt_at, row.last_status, int(row.delay_warned), row.queue_id)
            for row in effect.rows
        ],
    )


_UNLINKED = """
UPDATE messages SET unlinked_at = :now WHERE message_id IN (SELECT value FROM json_each(:ids))
AND unlinked_at IS NULL AND file_sha256 <> ''
AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.message_id = messages.message_id)
AND NOT EXISTS (SELECT 1 FROM mailbox_projections p WHERE p.message_id = messages.message_id)
"""


def index_removal(effect: Dequeue, connection: sqlite3.Connection, at: int) -> None:
    connection.executemany("DELETE FROM outbox WHERE queue_id = ?", [(row.queue_id,) for row in effect.rows])
    ids = orjson.dumps(sorted({row.message_id for row in effect.rows})).decode()
    connection.execute(_UNLINKED, {"ids": ids, "now": at // 1_000_000})
