"""The view of a store's user, without the values that differ from run to run (times, random ids).

Registrations, folders and messages that the prepared store already had keep their ids in the view, so that a change
of identity shows; those made since are named by what they are.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from tests.support.store.tables import connect

View = dict[str, Any]


@dataclass(frozen=True)
class BaseIds:
    """The ids of the prepared store."""

    registrations: frozenset[str]
    folders: frozenset[int]
    messages: frozenset[str]


NO_BASE_IDS = BaseIds(frozenset(), frozenset(), frozenset())


def base_ids(root: str) -> BaseIds:
    index = connect(root)
    try:
        return BaseIds(
            frozenset(row[0] for row in index.execute("SELECT registration_id FROM mailbox_registrations")),
            frozenset(row[0] for row in index.execute("SELECT folder_id FROM folders")),
            frozenset(row[0] for row in index.execute("SELECT message_id FROM messages")),
        )
    finally:
        index.close()


def take(root: str, base: BaseIds) -> View:
    index = connect(root)
    try:
        return _take(index, base)
    finally:
        index.close()


def _take(index: sqlite3.Connection, base: BaseIds) -> View:
    names = {}
    messages = []
    recipients: dict[str, list[Any]] = defaultdict(list)
    for message, *row in index.execute("SELECT message_id, address, kind FROM message_recipients"):
        recipients[message].append(tuple(row))
    attached: dict[str, list[Any]] = defaultdict(list)
    for message, *row in index.execute(
        "SELECT message_id, sha256, role, name, size FROM message_attachments ORDER BY message_id, position"
    ):
        attached[message].append(tuple(row))
    for message, wire, sender, header_id, size, has_file, unlinked in index.execute(
        "SELECT message_id, wire_sha256, sender, header_id, size, file_sha256 <> '', unlinked_at IS NOT NULL"
        " FROM messages"
    ):
        names[message] = message if message in base.messages else wire
        messages.append(
            (
                names[message],
                sender,
                header_id,
                size,
                has_file,
                unlinked,
                sorted(recipients[message]),
                attached[message],
            )
        )
    registrations = {}
    accounts = {}
    for registration, address, status in index.execute(
        "SELECT registration_id, address, status FROM mailbox_registrations"
    ):
        label = registration if registration in base.registrations else f"new {address}"
        accounts[registration] = label
        registrations[label] = (address, status)
    rows: dict[int, list[Any]] = defaultdict(list)
    for folder, uid, message, flags, keywords, modseq in index.execute(
        "SELECT p.folder_id, p.uid, p.message_id, s.flags, s.keywords, s.modseq FROM mailbox_projections p"
        " JOIN mailbox_state s USING (folder_id, uid) ORDER BY p.folder_id, p.uid"
    ):
        rows[folder].append((uid, names.get(message), flags, keywords, modseq))
    expunged: dict[int, list[Any]] = defaultdict(list)
    for folder, *row in index.execute("SELECT folder_id, modseq, uids FROM expunged ORDER BY folder_id, modseq"):
        expunged[folder].append(tuple(row))
    folders = {}
    for folder, registration, name, special, uidvalidity, *numbers in index.execute(
        "SELECT folder_id, registration_id, name, special_use, uidvalidity, uidnext, highestmodseq FROM folders"
    ):
        identity = (folder, uidvalidity) if folder in base.folders else "new"
        folders[accounts[registration], name] = (identity, special, *numbers, rows[folder], expunged[folder])
    subscriptions = sorted(
        (accounts[registration], name)
        for registration, name in index.execute("SELECT registration_id, name FROM subscriptions")
    )
    outbox = sorted(
        (names.get(message), *row)
        for message, *row in index.execute(
            "SELECT message_id, sender, return_to, recipient, attempts, delay_warned, last_status FROM outbox"
        )
    )
    return {
        "bookmarks": sorted(index.execute("SELECT owner, item, value FROM bookmarks").fetchall()),
        "outbox": outbox,
        "dsn requests": sorted(
            (names.get(message), *row) for message, *row in index.execute("SELECT * FROM dsn_requests")
        ),
        "registrations": registrations,
        "folders": folders,
        "messages": sorted(messages),
        "subscriptions": subscriptions,
    }


def difference(one: View, other: View) -> str:
    """Return the differences of two views, in a few lines."""
    lines = []
    for part in one:
        first, second = one[part], other[part]
        if first == second:
            continue
        if isinstance(first, dict):
            for key in sorted({*first, *second}, key=str):
                if first.get(key) != second.get(key):
                    lines.append(f"{part} {key}: {first.get(key)} / {second.get(key)}")
        else:
            lines += [f"{part}: only in the first {item}" for item in first if item not in second]
            lines += [f"{part}: only in the second {item}" for item in second if item not in first]
    return "\n".join(line[:400] for line in lines[:12])
