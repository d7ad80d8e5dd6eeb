"""Read a range of a table on an executor: sum up its rows, write them out, or compare them with the index."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from adapter.maintenance.expected import tables
from adapter.maintenance.scan.fingerprint import BLOB, CACHE, FOLDER, LINK, MAILBOX, MESSAGE, TABLE, SetHash
from adapter.maintenance.scan.index_compare import compare
from adapter.maintenance.scan.items import CompareItem, TableItem
from adapter.maintenance.scan.message_check import cache_hash
from adapter.maintenance.scan.rows import Row, RowWriter
from adapter.store import folder_identity, layout, names

_Values = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """Parameters of all tasks of an inspection."""

    root: str
    scratch: str  # directory of the inspection
    base: str  # path of the expected tables
    copy: str  # path of the copy of the index
    secret: bytes  # key of the set hashes
    store: str  # id of the store
    earlier: str  # scratch directory of the previous inspection, or ""
    describe: bool  # extract index entries from canonical files


def read_range(item: TableItem | CompareItem, options: ScanOptions, writer: RowWriter, set_hash: SetHash) -> None:
    """Process one item of a table partition."""
    if isinstance(item, CompareItem):
        for finding in compare(options.base, options.copy, item.table, item.low, item.high):
            writer.add_finding(finding)
        return
    part, read_rows, add_sums = _READERS[item.table]
    path = options.copy if item.is_copy else options.base
    with contextlib.closing(tables.connect(path)) as connection:
        if item.detail:
            for row in read_rows(connection, item):
                writer.add_table_row(part, row)
        else:
            add_sums(connection, item, set_hash)


def _select(connection: sqlite3.Connection, item: TableItem, sql: str) -> Iterator[_Values]:
    where, values = tables.within("t", item.keys, item.low, item.high)
    return connection.execute(f"{sql} {where}", values)


# --- messages --------------------------------------------------------------------------------------------------------


def _messages(connection: sqlite3.Connection, item: TableItem) -> Iterator[Row]:
    sql = (
        "SELECT t.message_id, t.file_sha256, t.size, d.found, EXISTS (SELECT 1 FROM lost_places l"
        " WHERE l.message_id = t.message_id) FROM messages t"
        " LEFT JOIN damaged_parts d ON d.message_id = t.message_id AND d.part = '' WHERE"
    )
    for row in _select(connection, item, sql):
        status = "lost" if row[4] else ""
        yield {"id": row[0], "sha": row[1], "size": row[2], "name": row[3] or "", "status": status}


def _sum_messages(connection: sqlite3.Connection, item: TableItem, set_hash: SetHash) -> None:
    for row in _messages(connection, item):
        if row["sha"]:
            set_hash.add(MESSAGE, TABLE, row["id"], row["name"] or row["sha"])


def _damaged(connection: sqlite3.Connection, item: TableItem) -> Iterator[Row]:
    for row in _select(connection, item, "SELECT t.message_id, t.part FROM damaged_parts t WHERE"):
        yield {"id": row[0], "sha": row[1]}


def _sum_damaged(connection: sqlite3.Connection, item: TableItem, set_hash: SetHash) -> None:
    """Add nothing: a lost part has no counterpart on disk."""


def _needed(connection: sqlite3.Connection, item: TableItem) -> Iterator[Row]:
    sql = "SELECT DISTINCT t.sha256, t.message_id FROM message_attachments t WHERE"
    for row in _select(connection, item, sql):
        yield {"sha": row[0], "id": row[1]}


def _sum_needed(connection: sqlite3.Connection, item: TableItem, set_hash: SetHash) -> None:
    sql = (
        "SELECT DISTINCT t.sha256 FROM message_attachments t WHERE NOT EXISTS"
        " (SELECT 1 FROM damaged_parts d WHERE d.part = t.sha256 AND d.part <> '') AND"
    )
    for (sha256,) in _select(connection, item, sql):
        set_hash.add(BLOB, TABLE, sha256)


def _caches(connection: sqlite3.Connection, item: TableItem) -> Iterator[Row]:
    """Read the cache; rows that cannot be read count as missing."""
    sql = (
        "SELECT t.message_id, t.recipe, t.envelope, t.structure, t.outline, t.preview FROM cache_messages t"
        " WHERE NOT EXISTS (SELECT 1 FROM damaged_parts d WHERE d.message_id = t.message_id) AND"
    )
    with contextlib.suppress(sqlite3.Error, TypeError):
        for row in _select(connection, item, sql):
            yield {"id": row[0], "sha": cache_hash(row[1:])}


def _sum_caches(connection: sqlite3.Connection, item: TableItem, set_hash: SetHash) -> None:
    for row in _caches(connection, item):
        set_hash.add(CACHE, TABLE, row["id"], row["sha"])


# --- mailboxes -------------------------------------------------------------------------------------------------------

_PROJECTIONS = (
    "SELECT t.folder_id, t.uid, t.message_id, r.directory, f.name FROM mailbox_projections t"
    " JOIN folders f USING (folder_id) JOIN mailbox_registrations r USING (registration_id) WHERE"
)


def _projections(connection: sqlite3.Connection, item: TableItem) -> Iterator[Row]:
    entries: dict[str, str] = {}  # folder name -> directory name, within this range
    for folder, uid, message_id, mailbox, name in _select(connection, item, _PROJECTIONS):
        if name not in entries:
            entries[name] = names.folder_entry(name)
        yield {
            "folder": folder,
            "uid": uid,
            "id": message_id,
            "mailbox": mailbox,
            "entry": entries[name],
            "name": layout.projection_name(uid, message_id),
        }


def _sum_projections(connection: sqlite3.Connection, item: TableItem, set_hash: SetHash) -> None:
    for row in _projections(connection, item):
        set_hash.add(LINK, TABLE, row["mailbox"], row["entry"], row["name"])


def _folders(connection: sqlite3.Connection, item: TableItem) -> Iterator[Row]:
    sql = (
        "SELECT t.folder_id, r.directory, t.name, t.registration_id, t.uidnext FROM folders t"
        " JOIN mailbox_registrations r USING (registration_id) WHERE"
    )
    for folder, mailbox, name, registration, uidnext in _select(connection, item, sql):
        yield {
            "folder": folder,
            "mailbox": mailbox,
            "name": name,
            "entry": names.folder_entry(name),
            "registration": registration,
            "uid": uidnext,
        }


def _sum_folders(connection: sqlite3.Connection, item: TableItem, set_hash: SetHash) -> None:
    for row in _folders(connection, item):
        mark = folder_identity.mark(row["uid"])
        set_hash.add(FOLDER, TABLE, row["mailbox"], row["entry"], str(row["folder"]), str(mark))


def _registrations(connection: sqlite3.Connection, item: TableItem) -> Iterator[Row]:
    sql = "SELECT t.registration_id, t.address, t.directory, t.status FROM mailbox_registrations t WHERE"
    for row in _select(connection, item, sql):
        yield {"registration": row[0], "name": row[1], "mailbox": row[2], "status": row[3]}


def _sum_registrations(connection: sqlite3.Connection, item: TableItem, set_hash: SetHash) -> None:
    for row in _registrations(connection, item):
        if row["status"] != "purged":
            set_hash.add(MAILBOX, TABLE, row["mailbox"])


_ReadRows = Callable[[sqlite3.Connection, TableItem], Iterator[Row]]
_AddSums = Callable[[sqlite3.Connection, TableItem, SetHash], None]
#: table -> the part of its rows in the joins, the function that reads them, the function that adds up their sums
_READERS: dict[str, tuple[str, _ReadRows, _AddSums]] = {
    "mailbox_registrations": ("registration", _registrations, _sum_registrations),
    "folders": ("base-folder", _folders, _sum_folders),
    "mailbox_projections": ("projection", _projections, _sum_projections),
    "message_attachments": ("needed", _needed, _sum_needed),
    "messages": ("known", _messages, _sum_messages),
    "cache_messages": ("cache", _caches, _sum_caches),
    "damaged_parts": ("damaged", _damaged, _sum_damaged),
}
