"""What a sender asked of the delivery (RFC 3461: NOTIFY, ORCPT, RET, ENVID), kept with the message.

Rows of the index only, for each recipient here as the sender named it, and only where anything was asked: the usual
delivery has none. Of recipients elsewhere the outbox knows it. They go with the content.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from adapter.store.journal import Effect
from adapter.transport.apply.outbox import notify_parameter
from protocol.smtp.commands import Ret

INSERT = "INSERT INTO dsn_requests VALUES (?, ?, ?, ?, ?, ?)"

Row = tuple[str, str, str | None, str | None, str | None, str | None]


@dataclass(frozen=True, slots=True)
class RecipientRequest:
    address: str  # as the sender named it
    mailboxes: Collection[str]  # the addresses it leads to
    notify: frozenset[str] | None = None  # RFC 3461 4.1; empty for NEVER, None: not given
    orcpt: str | None = None  # RFC 3461 4.2, encoded as it is passed on


@dataclass(frozen=True, slots=True)
class DsnRequests:
    """All of one message."""

    recipients: Collection[RecipientRequest]
    ret: Ret | None = None  # RFC 3461 4.3
    envid: str | None = None  # RFC 3461 4.4, decoded


def effect(message_id: str, requests: DsnRequests, recipients: Iterable[RecipientRequest]) -> Effect:
    """``recipients`` are those who have the message; of one that was named twice the first counts."""
    items: dict[str, tuple[str | None, str | None]] = {}
    for each in recipients:
        items.setdefault(each.address, (notify_parameter(each.notify), each.orcpt))
    return {
        "do": "dsn-request",
        "message": message_id,
        "ret": requests.ret and requests.ret.value,
        "envid": requests.envid,
        "items": [(address, *asked) for address, asked in items.items()],
    }


def rows(effect: Effect) -> list[Row]:
    shared = effect["ret"], effect["envid"]
    return [(effect["message"], address, notify, orcpt, *shared) for address, notify, orcpt in effect["items"]]


def index(effect: Effect, connection: sqlite3.Connection, at: int) -> None:
    connection.executemany(INSERT, rows(effect))
