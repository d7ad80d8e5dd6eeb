"""Salvage a damaged index: copy the rows that are readable and plausible; the others are rebuilt.

SQLite stops at the first unreadable page. Each table is therefore read from both ends, and then from keys inside the
unread gaps: keys that occur anywhere in the file, or halfway between two numbers. The first page, which locates the
tables, is the same in every index; a damaged one is replaced with that of a new index. A row with a value that Markpost
cannot have written is skipped.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Callable, Generator, Iterator
from typing import Any

from adapter.maintenance.expected import tables
from adapter.store import disk, index, layout, snapshots, store_id
from adapter.transport.operations.base import MAX_UID

_BATCH_ROWS = 500
_MAX_PROBES = 2000  # per table
_MAX_SEEDS = 2000
_PAGE_BYTES = 4096

#: Errors of an unreadable page; SQLite's own message may be invalid UTF-8.
_UNREADABLE = (sqlite3.Error, UnicodeDecodeError, OverflowError)

Key = tuple[Any, ...]
Row = tuple[Any, ...]

_REGISTRATION = re.compile(r"reg-[0-9a-f]{16}\Z")
_QUEUE = re.compile(r"q-[0-9a-f]{20}\Z")
_UIDS = re.compile(r"[1-9][0-9]*(?::[1-9][0-9]*)?(?:,[1-9][0-9]*(?::[1-9][0-9]*)?)*\Z")
_HASH_OR_NOTHING = re.compile(r"(?:[0-9a-f]{64})?\Z")
_MAX_FOLDER = (1 << 48) - 1
#: The form of the values of a column; for other columns only the type is checked.
_FORM: dict[str, re.Pattern[str]] = {
    "registration_id": _REGISTRATION,
    "message_id": layout.MESSAGE_ID,
    "latest_message_id": layout.MESSAGE_ID,
    "sha256": layout.SHA256,
    "wire_sha256": _HASH_OR_NOTHING,
    "file_sha256": _HASH_OR_NOTHING,
    "queue_id": _QUEUE,
    "uids": _UIDS,
    "part": _HASH_OR_NOTHING,
    "found": _HASH_OR_NOTHING,
}
_RANGE: dict[str, tuple[int, int]] = {
    "folder_id": (1, _MAX_FOLDER),
    "uid": (1, MAX_UID),
    "uidnext": (1, MAX_UID + 1),
    "uidvalidity": (1, MAX_UID),
    "flags": (0, 63),
}
_SEED = {
    "registration_id": re.compile(rb"reg-[0-9a-f]{16}"),
    "message_id": re.compile(rb"msg-[0-9]{8}T[0-9]{6}Z-[0-9a-f]{20}"),
    "sha256": re.compile(rb"[0-9a-f]{64}"),
    "queue_id": re.compile(rb"q-[0-9a-f]{20}"),
}


def salvage_rows(source: str, scratch: str, connection: sqlite3.Connection) -> int:
    """Add the readable rows of the index at ``source`` that are missing; return their number."""
    if not tables.is_file(source):
        return 0
    try:
        damaged, path = _open(source, scratch)
    except (OSError, *_UNREADABLE):
        return 0
    damaged.text_factory = _text
    with contextlib.closing(damaged):
        if not _may_be_ours(damaged, connection):
            return 0
        return sum(_salvage_table(damaged, path, connection, table) for table in snapshots.TABLES)


def salvage_tables(copy: str, connection: sqlite3.Connection) -> int:
    """Replace the rows of each table with those of an index with a foreign schema, if it has all our columns.

    SQLite can read all of that index, and its rows are newer than the tables from a journal with a gap. Only rows are
    copied, never the schema. Tables missing in that index are left unchanged.
    """
    copied = 0
    with contextlib.closing(tables.connect(copy)) as foreign:
        foreign.text_factory = _text
        present = {row[0] for row in foreign.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        for table in (table for table in snapshots.TABLES if table in present):
            if _columns(foreign, table) >= _columns(connection, table):
                connection.execute(f"DELETE FROM {table}")  # noqa: S608 - a name of our schema
                copied += _salvage_table(foreign, copy, connection, table)
    last = tables.meta(copy).get("last_uidvalidity")
    if isinstance(last, int) and last <= MAX_UID:
        connection.execute("UPDATE meta SET value = max(value, ?) WHERE key = 'last_uidvalidity'", (last,))
    return copied


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


def _salvage_table(source: sqlite3.Connection, path: str, connection: sqlite3.Connection, table: str) -> int:
    reader = _Reader(source, connection, table, path)
    connection.execute("BEGIN")
    inserted = sum(_insert(connection, table, reader.columns, rows) for rows in reader.batches())
    connection.execute("COMMIT")
    return inserted


def _may_be_ours(damaged: sqlite3.Connection, connection: sqlite3.Connection) -> bool:
    """False if the damaged index carries the id of another store."""
    with contextlib.suppress(*_UNREADABLE):
        damaged_id = index.store_of(damaged)
        return not store_id.FORM.match(damaged_id) or damaged_id == index.store_of(connection)
    return True


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _open(source: str, scratch: str) -> tuple[sqlite3.Connection, str]:
    """Copy the file, unchanged if SQLite can read its schema; else with the first page of a new index."""
    path = f"{scratch}/salvage.sqlite"
    _copy(source, path, b"")
    with contextlib.suppress(*_UNREADABLE), contextlib.closing(tables.connect(path)) as unchanged:
        present = {row[0] for row in unchanged.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if present >= set(snapshots.TABLES) - snapshots.LATER:
            return tables.connect(path, write=True), path
    fresh, path = f"{scratch}/fresh.sqlite", f"{scratch}/salvage-again.sqlite"
    index.create(fresh, "").close()
    with open(fresh, "rb") as file:
        first = bytearray(file.read(_PAGE_BYTES))
    first[28:32] = (os.stat(source, follow_symlinks=False).st_size // _PAGE_BYTES).to_bytes(4, "big")  # page count
    first[32:40] = bytes(8)  # empty free list: SQLite must not reuse pages
    _copy(source, path, bytes(first))
    return tables.connect(path, write=True), path


def _copy(source: str, target: str, first: bytes) -> None:
    parent = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        to = disk.open_new(parent, os.path.basename(target), mode=0o600)
    finally:
        os.close(parent)
    try:
        with open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            file.seek(len(first))
            disk.write_all(to, first)
            while chunk := file.read(1 << 20):
                disk.write_all(to, chunk)
    finally:
        os.close(to)


def _insert(connection: sqlite3.Connection, table: str, columns: list[str], rows: list[Row]) -> int:
    names = ", ".join(f'"{name}"' for name in columns)
    # A folder from the journal up to its damage: the greater UIDNEXT wins.
    later = " ON CONFLICT (folder_id) DO UPDATE SET uidnext = max(uidnext, excluded.uidnext)"
    clash = later if table == "folders" else " ON CONFLICT DO NOTHING"
    sql = f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))}){clash}"  # noqa: S608
    before = connection.total_changes
    for row in rows:
        with contextlib.suppress(sqlite3.Error):  # a damaged value violates a constraint
            connection.execute(sql, row)
    return connection.total_changes - before


class _Reader:
    """Reader of the readable rows of one table."""

    def __init__(self, damaged: sqlite3.Connection, intact: sqlite3.Connection, table: str, path: str) -> None:
        self._damaged = damaged
        self._table = table
        self._path = path
        columns = intact.execute(f"PRAGMA table_info({table})").fetchall()
        self.columns = [row[1] for row in columns]
        self._checks = [_check(row[1], row[2], optional=not row[3]) for row in columns]
        self._keys = tables.keys(intact, table)
        self._positions = [self.columns.index(key) for key in self._keys]
        kinds = {row[1]: row[2] for row in columns}
        self._least = tuple(0 if kinds[key] == "INTEGER" else "" for key in self._keys[1:])
        self._folders = [row[0] for row in intact.execute("SELECT folder_id FROM folders ORDER BY 1")]
        self._probes = 0

    def batches(self) -> Iterator[list[Row]]:
        rows: list[Row] = []
        for row in self._rows():
            rows.append(row)
            if len(rows) >= _BATCH_ROWS:
                yield rows
                rows = []
        yield rows

    def _rows(self) -> Iterator[Row]:
        low, is_complete = yield from self._walk("ASC", None, None)
        if is_complete:
            return
        high, _ = yield from self._walk("DESC", None, low)
        seeds = self._seeds()
        gaps = [(low, high)]  # the widest first
        while gaps and self._probes < _MAX_PROBES:
            after, before = gaps.pop(0)
            middle = self._between(after, before, seeds)
            if middle is None:
                continue
            last, is_complete = yield from self._walk("ASC", middle, before, sign=">=")
            if not is_complete:
                gaps.append((last or middle, before))
            first, is_complete = yield from self._walk("DESC", middle, after)
            if not is_complete:
                gaps.append((after, first or middle))

    def _walk(
        self, direction: str, start: Key | None, end: Key | None, *, sign: str = ""
    ) -> Generator[Row, None, tuple[Key | None, bool]]:
        """Yield rows from ``start`` towards ``end``; return the last key read, and True if the end was reached."""
        self._probes += 1
        sign = sign or (">" if direction == "ASC" else "<")
        last: Key | None = None
        is_complete = True
        try:
            for row in self._select(direction, sign, start, end):
                if self._is_plausible(row):
                    last = self._key(row)
                    yield row
        except _UNREADABLE:
            is_complete = False
            # SQLite fetches one row ahead, so the row before the failure was not returned.
            with contextlib.suppress(*_UNREADABLE):
                if last is not None:
                    start, sign = last, sign[0]
                for row in self._select(direction, sign, start, end, limit=1):
                    if self._is_plausible(row):
                        last = self._key(row)
                        yield row
        return last, is_complete

    def _is_plausible(self, row: Row) -> bool:
        return all(check(value) for check, value in zip(self._checks, row))

    def _key(self, row: Row) -> Key:
        return tuple(row[position] for position in self._positions)

    def _select(
        self, direction: str, sign: str, start: Key | None, end: Key | None, *, limit: int = -1
    ) -> Iterator[Row]:
        names = ", ".join(f'"{name}"' for name in self.columns)
        keys, places = ", ".join(self._keys), ", ".join("?" * len(self._keys))
        bounds = [(sign, start), ("<" if direction == "ASC" else ">", end)]
        where = " AND ".join(f"({keys}) {which} ({places})" for which, key in bounds if key is not None) or "1"
        order = ", ".join(f"{key} {direction}" for key in self._keys)
        sql = f"SELECT {names} FROM {self._table} NOT INDEXED WHERE {where} ORDER BY {order} LIMIT {limit}"  # noqa: S608
        return self._damaged.execute(sql, [value for _, key in bounds if key is not None for value in key])

    def _seeds(self) -> list[Key]:
        """Keys that may be in the table, sorted: first columns from anywhere in the file, and minimal other columns."""
        first = self._keys[0]
        values: list[Any] = self._folders if first == "folder_id" else []
        if first in _SEED:
            values = sorted({match.decode() for page in self._pages() for match in _SEED[first].findall(page)})
        step = max(1, len(values) // _MAX_SEEDS)
        return [(value, *self._least) for value in values[::step]]

    def _pages(self) -> Iterator[bytes]:
        """Yield evenly spaced pages of the file."""
        step = max(1, os.stat(self._path).st_size // _PAGE_BYTES // _MAX_SEEDS)
        with open(self._path, "rb") as file:
            while page := file.read(_PAGE_BYTES):
                yield page
                file.seek((step - 1) * _PAGE_BYTES, os.SEEK_CUR)

    def _between(self, after: Key | None, before: Key | None, seeds: list[Key]) -> Key | None:
        """A key between two others: a seed, or halfway between two numbers of one folder."""
        inside = [seed for seed in seeds if (after is None or seed > after) and (before is None or seed < before)]
        if inside:
            return inside[len(inside) // 2]
        if after is None or len(after) < 2 or not isinstance(after[-1], int):
            return None
        same = before is not None and before[:-1] == after[:-1]
        high = before[-1] if before is not None and same else after[-1] + 2 * _BATCH_ROWS
        middle = (after[-1] + high) // 2
        return (*after[:-1], middle) if after[-1] < middle < high else None


def _check(name: str, kind: str, *, optional: bool) -> Callable[[object], bool]:
    form, limits = _FORM.get(name), _RANGE.get(name)

    def check(value: object) -> bool:
        if value is None:
            return optional
        if kind == "INTEGER":
            return isinstance(value, int) and (limits is None or limits[0] <= value <= limits[1])
        return isinstance(value, str) and (form is None or form.match(value) is not None)

    return check
