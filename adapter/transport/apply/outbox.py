"""The outbox: mail for other hosts, as rows of the index only. The octets are those of the canonical file.

A message with rows here is kept like one that a folder shows; when its last row goes and no folder shows it, it may be
collected.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import orjson

from adapter.store.journal import Effect
from protocol.smtp.commands import Body, Ret

#: queue id, attempts, next attempt (seconds), last status, whether a delay was reported
Update = tuple[str, int, int, str, bool]
#: What became of a row that leaves the outbox. The journal remembers it.
Ending = Literal["relayed", "failed", "dropped"]

LIFETIME = 5 * 86400  # seconds; RFC 5321 4.5.4.1 wants at least 4 to 5 days


@dataclass(frozen=True, slots=True)
class RelayRecipient:
    """Somebody at another host."""

    address: str
    notify: frozenset[str] | None = None  # RFC 3461 4.1; empty for NEVER, None: not given
    orcpt: str | None = None  # RFC 3461 4.2, encoded as it is passed on


@dataclass(frozen=True, slots=True)
class RelayEnvelope:
    """What holds for all of them."""

    ret: Ret | None = None  # RFC 3461 4.3
    envid: str | None = None  # RFC 3461 4.4, decoded
    body: Body = Body.SEVEN_BIT
    smtputf8: bool = False
    requiretls: bool = False
    return_to: str = ""  # the local address whose inbox gets reports; empty: the sender's
    lifetime: float = LIFETIME  # seconds


def effect(
    message_id: str,
    sender: str,
    envelope: RelayEnvelope,
    recipients: Iterable[tuple[str, RelayRecipient]],
    now: int,
) -> Effect:
    """``recipients`` come with fresh queue ids; ``now`` is in seconds."""
    return {
        "do": "enqueue",
        "message": message_id,
        "sender": sender,
        "return_to": envelope.return_to,
        "ret": envelope.ret and envelope.ret.value,
        "envid": envelope.envid,
        "body": envelope.body.value,
        "smtputf8": envelope.smtputf8,
        "requiretls": envelope.requiretls,
        "created": now,
        "expires": now + int(envelope.lifetime),
        "items": [(queue_id, each.address, notify_parameter(each.notify), each.orcpt) for queue_id, each in recipients],
    }


def notify_parameter(wanted: frozenset[str] | None) -> str | None:
    """The value of NOTIFY=, for passing it on."""
    return None if wanted is None else ",".join(sorted(wanted)) or "NEVER"


def update(items: Sequence[Update]) -> Effect:
    return {"do": "queue-update", "items": items}


def removal(items: Sequence[tuple[str, str, str, Ending, str]]) -> Effect:
    """``items`` are (queue id, message id, recipient, ending, last status)."""
    return {"do": "dequeue", "items": items}


# --- index -----------------------------------------------------------------------------------------------------------


def index(effect: Effect, connection: sqlite3.Connection, at: int) -> None:
    shared = (
        effect["ret"],
        effect["envid"],
        effect["body"],
        int(effect["smtputf8"]),
        int(effect["requiretls"]),
        effect["created"],
        effect["created"],
        effect["expires"],
    )
    connection.executemany(
        "INSERT INTO outbox (queue_id, message_id, sender, return_to, recipient, notify, orcpt,"
        " ret, envid, body, smtputf8, requiretls, created_at, next_attempt_at, expires_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (queue_id, effect["message"], effect["sender"], effect["return_to"], recipient, notify, orcpt, *shared)
            for queue_id, recipient, notify, orcpt in effect["items"]
        ],
    )


def index_update(effect: Effect, connection: sqlite3.Connection, at: int) -> None:
    connection.executemany(
        "UPDATE outbox SET attempts = ?, next_attempt_at = ?, last_status = ?, delay_warned = ? WHERE queue_id = ?",
        [
            (attempts, next_attempt, status, int(warned), queue_id)
            for queue_id, attempts, next_attempt, status, warned in effect["items"]
        ],
    )


_UNLINKED = """
UPDATE messages SET unlinked_at = :now WHERE message_id IN (SELECT value FROM json_each(:ids))
AND unlinked_at IS NULL AND file_sha256 <> ''
AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.message_id = messages.message_id)
AND NOT EXISTS (SELECT 1 FROM mailbox_projections p WHERE p.message_id = messages.message_id)
"""


def index_removal(effect: Effect, connection: sqlite3.Connection, at: int) -> None:
    connection.executemany("DELETE FROM outbox WHERE queue_id = ?", [(item[0],) for item in effect["items"]])
    ids = orjson.dumps(sorted({item[1] for item in effect["items"]})).decode()
    connection.execute(_UNLINKED, {"ids": ids, "now": at // 1_000_000})
