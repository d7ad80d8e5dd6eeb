"""Reading a damaged index: what can be read and makes sense is taken, the rest is left to be built anew.

SQLite stops at the first page it cannot read. So each table is read from both ends, and then from places between what
was read: keys that stand somewhere in the file, or halfway between two numbers. The first page, which says where the
tables begin, is the same in every index: where it is damaged, that of a new index takes its place. A value that no
program of ours can have written is not believed, and neither is the row it stands in.
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

_BATCH = 500
_PROBES = 2000  # of one table
_SEEDS = 2000
_PAGE = 4096

#: A page that cannot be read; and what SQLite says of it may not be text either.
_UNREADABLE = (sqlite3.Error, UnicodeDecodeError, OverflowError)

Key = tuple[Any, ...]
Row = tuple[Any, ...]

_REGISTRATION = re.compile(r"reg-[0-9a-f]{16}\Z")
_QUEUE = re.compile(r"q-[0-9a-f]{20}\Z")
_UIDS = re.compile(r"[1-9][0-9]*(?::[1-9][0-9]*)?(?:,[1-9][0-9]*(?::[1-9][0-9]*)?)*\Z")
_HASH_OR_NOTHING = re.compile(r"(?:[0-9a-f]{64})?\Z")
_MAX_FOLDER = (1 << 48) - 1
#: What a value of a column must look like; of other columns the type is looked at.
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


def take_over(source: str, scratch: str, connection: sqlite3.Connection) -> int:
    """Add every row of the index at ``source`` that can be read and is not there yet; returns how many."""
    if not tables.is_file(source):
        return 0
    try:
        damaged, path = _open(source, scratch)
    except (OSError, *_UNREADABLE):
        return 0
    damaged.text_factory = _text
    with contextlib.closing(damaged):
        if not _is_ours(damaged, connection):
            return 0
        return sum(_take_table(damaged, path, connection, table) for table in snapshots.TABLES)


def take_tables(copy: str, connection: sqlite3.Connection) -> int:
    """Take every table that an index with a foreign schema has with our columns, in place of its rows here.

    SQLite can read all of it, and it is newer than what a journal with a gap leads to; but only rows are taken, never
    its schema. A table that it lacks stays as it is here.
    """
    taken = 0
    with contextlib.closing(tables.connect(copy)) as foreign:
        foreign.text_factory = _text
        found = {row[0] for row in foreign.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        for table in (table for table in snapshots.TABLES if table in found):
            if _columns(foreign, table) >= _columns(connection, table):
                connection.execute(f"DELETE FROM {table}")  # noqa: S608 - a name of our schema
                taken += _take_table(foreign, copy, connection, table)
    last = tables.meta(copy).get("last_uidvalidity")
    if isinstance(last, int) and last <= MAX_UID:
        connection.execute("UPDATE meta SET value = max(value, ?) WHERE key = 'last_uidvalidity'", (last,))
    return taken


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


def _take_table(source: sqlite3.Connection, path: str, connection: sqlite3.Connection, table: str) -> int:
    reader = _Reader(source, connection, table, path)
    connection.execute("BEGIN")
    taken = sum(_insert(connection, table, reader.columns, rows) for rows in reader.batches())
    connection.execute("COMMIT")
    return taken


def _is_ours(damaged: sqlite3.Connection, connection: sqlite3.Connection) -> bool:
    """Whether nothing says that the damaged index belongs to another store."""
    with contextlib.suppress(*_UNREADABLE):
        found = index.store_of(damaged)
        return not store_id.FORM.match(found) or found == index.store_of(connection)
    return True


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _open(source: str, scratch: str) -> tuple[sqlite3.Connection, str]:
    """A copy of the file as it is, if SQLite can tell what tables it has; else with the first page of a new index."""
    path = f"{scratch}/salvage.sqlite"
    _copy(source, path, b"")
    with contextlib.suppress(*_UNREADABLE), contextlib.closing(tables.connect(path)) as as_it_is:
        found = {row[0] for row in as_it_is.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if found >= set(snapshots.TABLES) - snapshots.LATER:
            return tables.connect(path, write=True), path
    fresh, path = f"{scratch}/fresh.sqlite", f"{scratch}/salvage-again.sqlite"
    index.create(fresh, "").close()
    with open(fresh, "rb") as file:
        first = bytearray(file.read(_PAGE))
    first[28:32] = (os.stat(source, follow_symlinks=False).st_size // _PAGE).to_bytes(4, "big")  # pages of the file
    first[32:40] = bytes(8)  # no free pages: none are to be given out
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
            while piece := file.read(1 << 20):
                disk.write_all(to, piece)
    finally:
        os.close(to)


def _insert(connection: sqlite3.Connection, table: str, columns: list[str], rows: list[Row]) -> int:
    names = ", ".join(f'"{name}"' for name in columns)
    # A folder that the journal knows as well, up to where it is damaged: the later of the two UIDNEXT counts.
    later = " ON CONFLICT (folder_id) DO UPDATE SET uidnext = max(uidnext, excluded.uidnext)"
    clash = later if table == "folders" else " ON CONFLICT DO NOTHING"
    sql = f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))}){clash}"  # noqa: S608
    before = connection.total_changes
    for row in rows:
        with contextlib.suppress(sqlite3.Error):  # a constraint that a damaged value breaks
            connection.execute(sql, row)
    return connection.total_changes - before


class _Reader:
    """The rows of one table that can be read."""

    def __init__(self, damaged: sqlite3.Connection, sound: sqlite3.Connection, table: str, path: str) -> None:
        self._damaged = damaged
        self._table = table
        self._path = path
        described = sound.execute(f"PRAGMA table_info({table})").fetchall()
        self.columns = [row[1] for row in described]
        self._checks = [_check(row[1], row[2], optional=not row[3]) for row in described]
        self._keys = tables.keys(sound, table)
        self._positions = [self.columns.index(key) for key in self._keys]
        kinds = {row[1]: row[2] for row in described}
        self._least = tuple(0 if kinds[key] == "INTEGER" else "" for key in self._keys[1:])
        self._folders = [row[0] for row in sound.execute("SELECT folder_id FROM folders ORDER BY 1")]
        self._probes = 0

    def batches(self) -> Iterator[list[Row]]:
        rows: list[Row] = []
        for row in self._rows():
            rows.append(row)
            if len(rows) >= _BATCH:
                yield rows
                rows = []
        yield rows

    def _rows(self) -> Iterator[Row]:
        low, whole = yield from self._walk("ASC", None, None)
        if whole:
            return
        high, _ = yield from self._walk("DESC", None, low)
        seeds = self._seeds()
        gaps = [(low, high)]  # the widest first
        while gaps and self._probes < _PROBES:
            after, before = gaps.pop(0)
            middle = self._between(after, before, seeds)
            if middle is None:
                continue
            last, whole = yield from self._walk("ASC", middle, before, sign=">=")
            if not whole:
                gaps.append((last or middle, before))
            first, whole = yield from self._walk("DESC", middle, after)
            if not whole:
                gaps.append((after, first or middle))

    def _walk(
        self, direction: str, start: Key | None, end: Key | None, *, sign: str = ""
    ) -> Generator[Row, None, tuple[Key | None, bool]]:
        """Rows from ``start`` towards ``end``; the last key read if any, and whether the end was reached."""
        self._probes += 1
        sign = sign or (">" if direction == "ASC" else "<")
        last: Key | None = None
        whole = True
        try:
            for row in self._select(direction, sign, start, end):
                if self._makes_sense(row):
                    last = self._key(row)
                    yield row
        except _UNREADABLE:
            whole = False
            # The row before the failure was not handed out, since the next one was asked for with it.
            with contextlib.suppress(*_UNREADABLE):
                if last is not None:
                    start, sign = last, sign[0]
                for row in self._select(direction, sign, start, end, limit=1):
                    if self._makes_sense(row):
                        last = self._key(row)
                        yield row
        return last, whole

    def _makes_sense(self, row: Row) -> bool:
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
        """Keys that may be in the table: those that stand in the file, in order; the rest of each is the least."""
        first = self._keys[0]
        found: list[Any] = self._folders if first == "folder_id" else []
        if first in _SEED:
            found = sorted({match.decode() for page in self._pages() for match in _SEED[first].findall(page)})
        step = max(1, len(found) // _SEEDS)
        return [(value, *self._least) for value in found[::step]]

    def _pages(self) -> Iterator[bytes]:
        """Pages from all over the file."""
        step = max(1, os.stat(self._path).st_size // _PAGE // _SEEDS)
        with open(self._path, "rb") as file:
            while page := file.read(_PAGE):
                yield page
                file.seek((step - 1) * _PAGE, os.SEEK_CUR)

    def _between(self, after: Key | None, before: Key | None, seeds: list[Key]) -> Key | None:
        """A key between two others: a seed, or half the way between two numbers of one folder."""
        inside = [seed for seed in seeds if (after is None or seed > after) and (before is None or seed < before)]
        if inside:
            return inside[len(inside) // 2]
        if after is None or len(after) < 2 or not isinstance(after[-1], int):
            return None
        same = before is not None and before[:-1] == after[:-1]
        high = before[-1] if before is not None and same else after[-1] + 2 * _BATCH
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
