"""Compare the index with the expected tables: a join by primary key inside SQLite, one range of keys at a time."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from adapter.maintenance.expected import tables
from adapter.maintenance.findings import Finding

#: table -> kinds of findings for a missing row, an extra row and a differing row
COMPARED = {
    "mailbox_registrations": ("registration-missing", "registration-orphan", "registration-mismatched"),
    "folders": ("folder-path-without-row", "folder-row-orphan", "folder-mismatched"),
    "subscriptions": ("subscription-wrong", "subscription-wrong", "subscription-wrong"),
    "messages": ("message-not-indexed", "message-row-orphan", "message-row-wrong"),
    "message_recipients": ("recipients-wrong", "recipients-wrong", "recipients-wrong"),
    "attachments": ("attachments-wrong", "attachments-wrong", "attachments-wrong"),
    "message_attachments": ("attachments-wrong", "attachments-wrong", "attachments-wrong"),
    "mailbox_projections": ("projection-row-missing", "projection-row-orphan", "projection-row-wrong"),
    "mailbox_state": ("state-missing", "state-orphan", "state-wrong"),
    "expunged": ("expunged-wrong", "expunged-wrong", "expunged-wrong"),
    "thread_summaries": ("threads-stale", "threads-stale", "threads-stale"),
    "outbox": ("outbox-wrong", "outbox-wrong", "outbox-wrong"),
    "bookmarks": ("bookmark-wrong", "bookmark-wrong", "bookmark-wrong"),
    "dsn_requests": ("dsn-request-wrong", "dsn-request-wrong", "dsn-request-wrong"),
    "damaged_parts": ("loss-record-wrong", "loss-record-wrong", "loss-record-wrong"),
    "lost_places": ("loss-record-wrong", "loss-record-wrong", "loss-record-wrong"),
}
_COUNTERS = {"messages", "unseen", "deleted", "size"}


def compare(base: str, copy: str, table: str, low: list[object] | None, high: list[object] | None) -> Iterator[Finding]:
    """Compare a range of a table in ``base`` (expected) with the same range in ``copy`` (the index)."""
    missing, extra, differs = COMPARED[table]
    with contextlib.closing(tables.connect(base)) as connection:
        connection.execute(f"ATTACH 'file:{quote(copy)}?mode=ro' AS found")
        keys = tables.keys(connection, table)
        columns = [row[1] for row in connection.execute(f"PRAGMA main.table_info({table})") if row[1] not in keys]
        same_key = " AND ".join(f"b.{key} = i.{key}" for key in keys)
        where, values = tables.within("b", keys, low, high)
        if _is_same(connection, table, " AND ".join([same_key, *_equal(columns)]), where, values):
            return
        shown = ", ".join(f"b.{key}" for key in keys)
        for row in connection.execute(
            f"SELECT {shown} FROM main.{table} b WHERE {where}"  # noqa: S608 - names of our schema
            f" AND NOT EXISTS (SELECT 1 FROM found.{table} i WHERE {same_key})",
            values,
        ):
            yield _finding(missing, table, keys, row, "the row is missing")
        for row in connection.execute(
            f"SELECT {shown} FROM found.{table} b WHERE {where}"  # noqa: S608
            f" AND NOT EXISTS (SELECT 1 FROM main.{table} i WHERE {same_key})",
            values,
        ):
            yield _finding(extra, table, keys, row, "the row is not expected")
        if columns:
            yield from _differing(connection, table, keys, columns, differs, where, values)


def _equal(columns: list[str]) -> list[str]:
    return [f'b."{column}" IS i."{column}"' for column in columns]


def _is_same(connection: sqlite3.Connection, table: str, equal: str, where: str, values: list[object]) -> bool:
    """True if all rows of the range are equal: as many pairs as rows on either side. One join instead of three.

    CROSS JOIN fixes the join order: otherwise SQLite may scan the whole other table for every range.
    """
    pairs = connection.execute(
        f"SELECT count(*) FROM main.{table} b CROSS JOIN found.{table} i ON {equal} WHERE {where}",  # noqa: S608
        values,
    ).fetchone()
    return all(
        connection.execute(f"SELECT count(*) FROM {side}.{table} b WHERE {where}", values).fetchone() == pairs  # noqa: S608
        for side in ("main", "found")
    )


def _differing(
    connection: sqlite3.Connection,
    table: str,
    keys: list[str],
    columns: list[str],
    kind: str,
    where: str,
    values: list[object],
) -> Iterator[Finding]:
    same_key = " AND ".join(f"b.{key} = i.{key}" for key in keys)
    pairs = [f'b."{column}", i."{column}"' for column in columns]
    other = " OR ".join(f'b."{column}" IS NOT i."{column}"' for column in columns)
    shown = ", ".join([f"b.{key}" for key in keys] + pairs)
    for row in connection.execute(
        f"SELECT {shown} FROM main.{table} b CROSS JOIN found.{table} i ON {same_key} WHERE {where} AND ({other})",  # noqa: S608
        values,
    ):
        values_of_row = row[len(keys) :]
        wrong = {
            column: (values_of_row[2 * at], values_of_row[2 * at + 1])
            for at, column in enumerate(columns)
            if values_of_row[2 * at] != values_of_row[2 * at + 1]
        }
        for kind_of, names in _split(table, kind, wrong):
            detail = "; ".join(f"{name} is {wrong[name][1]!r}, expected {wrong[name][0]!r}" for name in names)
            yield _finding(kind_of, table, keys, row, detail[:300])


def _split(table: str, kind: str, wrong: dict[str, tuple[Any, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Split the differing columns of a row by kind; the row of a folder can be wrong in three ways."""
    if table != "folders":
        yield kind, list(wrong)
        return
    low = [name for name in ("uidnext",) if name in wrong and _is_less(wrong[name])]
    counters = [name for name in _COUNTERS if name in wrong]
    rest = [name for name in wrong if name not in (*low, *counters)]
    for kind_of, names in (("uidnext-too-low", low), ("counters-stale", counters), (kind, rest)):
        if names:
            yield kind_of, names


def _is_less(values: tuple[Any, Any]) -> bool:
    expected, actual = values
    return not isinstance(actual, int) or actual < expected


def _finding(kind: str, table: str, keys: list[str], row: tuple[Any, ...], detail: str) -> Finding:
    named = dict(zip(keys, row))
    subject = "/".join(_show(key, value) for key, value in named.items())
    folder, uid = named.get("folder_id", 0), named.get("uid", 0)
    return Finding(
        kind,
        subject,
        name=table,
        id=str(named.get("message_id", "")),
        folder=folder if isinstance(folder, int) else 0,
        uid=uid if isinstance(uid, int) else 0,
        detail=detail,
    )


def _show(key: str, value: object) -> str:
    return f"mbx-{value:012x}" if key == "folder_id" and isinstance(value, int) else str(value)
