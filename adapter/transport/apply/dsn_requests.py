"""What a sender asked of the delivery (RFC 3461: NOTIFY, ORCPT, RET, ENVID), kept with the message.

Rows of the index only, for each recipient here as the sender named it, and only where anything was asked: the usual
delivery has none. Of recipients elsewhere the outbox knows it. They go with the content.
"""

from __future__ import annotations

import sqlite3

from adapter.store.effects import RequestDsn

INSERT = "INSERT INTO dsn_requests VALUES (?, ?, ?, ?, ?, ?)"

Row = tuple[str, str, str | None, str | None, str | None, str | None]


def rows(effect: RequestDsn) -> list[Row]:
    return [
        (effect.message_id, each.address, each.notify, each.orcpt, effect.ret, effect.envid)
        for each in effect.recipients
    ]


def index(effect: RequestDsn, connection: sqlite3.Connection) -> None:
    connection.executemany(INSERT, rows(effect))
