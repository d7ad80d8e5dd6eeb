"""The SQLite index: mutable state and query indexes, in rollback-journal (DELETE) mode.

Durability: the journal is the commit point, so a transaction of the writer is not synced (``synchronous=OFF``). A
killed process leaves the page cache, and with it the index, intact; after a power loss recovery does not trust an
index that lags a checkpoint and builds it anew. Each transaction stores the sequence number and the checksum of the
journal record applied last: they tell an index of another history from one that lags.

Readers keep no cursor open: every query is fetched whole, at once, and they go in turns, so that writers get theirs.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.resources
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

from adapter.store import disk, index_schema, layout, store_id
from adapter.store.disk import Directories
from adapter.store.read_gate import Turns
from adapter.store.segments import BEGINNING

Params = ParamSpec("Params")
Result = TypeVar("Result")

SCHEMA_VERSION = 1
FOREIGN_SCHEMA = "its schema is not ours: "
_BUSY_SECONDS = 30.0
_APPLIED = "SELECT value FROM meta WHERE key = 'applied_seq'"
_APPLIED_RECORD = "SELECT key, value FROM meta WHERE key IN ('applied_seq', 'applied_checksum')"
_SET_APPLIED = """
UPDATE meta SET value = CASE key WHEN 'applied_seq' THEN ? ELSE ? END WHERE key IN ('applied_seq', 'applied_checksum')
"""
_COMMENT = re.compile(r"--.*")  # in the schema, where none stands in a string


class IndexMissing(Exception):  # noqa: N818 - a state of the store, reported by name
    """There is no index file."""


class IndexUnreadable(Exception):  # noqa: N818
    """The index file is not a database of ours."""


class IndexDiverged(Exception):  # noqa: N818
    """The record that the index applied last is another one in the journal."""


class IndexForeign(IndexUnreadable):
    """The index of another store."""


def create(path: str, store: str) -> sqlite3.Connection:
    """Make a new, empty index of the store with this id at ``path`` and return a writing connection to it."""
    disk.make_private(path)
    connection = connect(path, "rwc")
    connection.executescript("BEGIN;" + _schema())
    connection.executemany(
        "INSERT INTO meta VALUES (?, ?)",
        [
            ("schema_version", SCHEMA_VERSION),
            ("store_id", store),
            ("applied_seq", 0),
            ("applied_checksum", BEGINNING),
            ("last_uidvalidity", 0),
        ],
    )
    connection.execute("COMMIT")
    return connection


def set_applied(connection: sqlite3.Connection, seq: int, checksum: str) -> None:
    """Note the journal record that the rows hold; part of the transaction that applies it."""
    connection.execute(_SET_APPLIED, (seq, checksum))


def applied(connection: sqlite3.Connection) -> tuple[int, str]:
    """Sequence number and checksum of the record applied last."""
    found = dict(connection.execute(_APPLIED_RECORD).fetchall())
    return int(found["applied_seq"]), str(found["applied_checksum"])


def store_of(connection: sqlite3.Connection) -> str:
    """The id of the store whose rows these are; empty if the index names none."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'store_id'").fetchone()
    return str(row[0]) if row else ""


def check_store(directories: Directories, store: str) -> None:
    """Raise :class:`IndexForeign` if the index is another store's. Changes nothing; what cannot be read passes."""
    with contextlib.suppress(sqlite3.Error):
        path = layout.absolute(directories.root, layout.INDEX_FILE)
        connection = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
        with contextlib.closing(connection):
            _compare_stores(store_of(connection), store)


def _compare_stores(found: str, store: str) -> None:
    if found != store:
        raise IndexForeign(f"belongs to store {found}" if found else "names no store")


def complete(connection: sqlite3.Connection) -> None:
    """Add the tables and indexes that an index of an older program lacks; leave out those that do not fit it."""
    for statement in _COMMENT.sub("", _schema()).split(";"):
        if "IF NOT EXISTS" in statement:
            with contextlib.suppress(sqlite3.OperationalError):  # schema_differences() says what is wrong
                connection.execute(statement)


def schema_differences(connection: sqlite3.Connection) -> list[str]:
    """What of an index's schema is not ours; empty if nothing is."""
    differences = index_schema.differences(connection, _schema())
    if not differences and (version := _schema_version(connection)) != SCHEMA_VERSION:
        differences = [f"schema_version is {version!r}, this program knows {SCHEMA_VERSION}"]
    return differences


def _schema_version(connection: sqlite3.Connection) -> object:
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    return row and row[0]


@functools.cache
def _schema() -> str:
    return importlib.resources.files(__package__).joinpath("schema.sql").read_text(encoding="utf-8")


def connect(path: str, mode: str) -> sqlite3.Connection:
    """A connection as this store uses them; ``mode`` is that of SQLite's URIs."""
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode={mode}",
        uri=True,
        timeout=_BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("PRAGMA cache_size=-65536")
    connection.execute("PRAGMA temp_store=MEMORY")
    # No page reaches the file before the commit, which follows the journal's: else a power loss could leave an index
    # that is damaged although the journal ends where the last checkpoint was.
    connection.execute("PRAGMA cache_spill=OFF")
    connection.execute("PRAGMA trusted_schema=OFF")
    return connection


class Index:
    def __init__(self, directories: Directories, store: str | None = None) -> None:
        """``store``: its id; by default the one that the root names. Raises :class:`IndexForeign` for another's."""
        self._directories = directories
        with directories.stable(()) as root:
            if not disk.exists(root, layout.INDEX_FILE):
                raise IndexMissing
        self._path = layout.absolute(directories.root, layout.INDEX_FILE)
        self._readers = threading.local()
        self._turns = Turns(self._is_being_written)
        self._all_readers: list[tuple[threading.Thread, sqlite3.Connection]] = []
        self._mutex = threading.Lock()
        try:
            self.writer = connect(self._path, "rw")
            version = _schema_version(self.writer)
        except sqlite3.DatabaseError as error:
            raise IndexUnreadable(str(error)) from error
        if version != SCHEMA_VERSION:
            self.writer.close()
            raise IndexUnreadable(f"schema_version is {version!r}, this program knows {SCHEMA_VERSION}")
        try:
            _compare_stores(store_of(self.writer), store or store_id.read(directories) or "")
        except IndexForeign:
            self.writer.close()
            raise
        self._refuse_foreign_schema()

    def _refuse_foreign_schema(self) -> None:
        """Raise :class:`IndexUnreadable` before anything that this program did not define, a trigger, can run."""
        try:
            complete(self.writer)
            wrong = schema_differences(self.writer)
        except sqlite3.DatabaseError as error:
            self.writer.close()
            raise IndexUnreadable(str(error)) from error
        if wrong:
            self.writer.close()
            raise IndexUnreadable(f"{FOREIGN_SCHEMA}{'; '.join(wrong[:3])}")

    def close(self) -> None:
        self.writer.close()
        for _, connection in self._all_readers:
            connection.close()

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one read-only query on this thread's connection and fetch all of it."""
        with self._turns.turn():
            return self._reader().execute(sql, parameters).fetchall()

    def ask(
        self,
        question: Callable[Concatenate[sqlite3.Connection, Params], Result],
        *arguments: Params.args,
        **options: Params.kwargs,
    ) -> Result:
        """Run one function of :mod:`adapter.store.queries` on this thread's connection."""
        with self._turns.turn():
            return question(self._reader(), *arguments, **options)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Several short queries that see one state; nothing else may happen inside the block."""
        connection = self._reader()
        with self._turns.turn():
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    def _is_being_written(self) -> bool:
        """By whichever process: the rollback journal is there from a transaction's first change to its end."""
        return disk.exists(self._directories.root_fd, f"{layout.INDEX_FILE}-journal")

    def _reader(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._readers, "connection", None)
        if connection is None:
            connection = connect(self._path, "rw")  # a reader may have to roll back what a dead writer left
            connection.execute("PRAGMA query_only=ON")
            connection.execute("PRAGMA cache_size=-2048")
            self._readers.connection = connection
            self._remember(connection)
        return connection

    def _remember(self, connection: sqlite3.Connection) -> None:
        """Note this thread's connection, and close those of threads that have ended."""
        with self._mutex:
            readers = [(threading.current_thread(), connection)]
            for thread, known in self._all_readers:
                if thread.is_alive():
                    readers.append((thread, known))
                else:
                    known.close()
            self._all_readers = readers

    def applied_seq(self) -> int:
        return int(self.query(_APPLIED)[0][0])

    def applied_for_writer(self) -> tuple[int, str]:
        """Number and checksum of the record applied last. Only for the holder of the index lock.

        What is read here need not be read again by its transaction.
        """
        return applied(self.writer)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction; rolled back on any exception. Only the holder of the index lock may open one."""
        self.writer.execute("BEGIN IMMEDIATE")
        try:
            yield self.writer
            disk.step("index-commit", -1, "")
            self.writer.execute("COMMIT")
        except BaseException:
            if self.writer.in_transaction:  # a full disk makes SQLite roll back by itself
                self.writer.execute("ROLLBACK")
            raise
