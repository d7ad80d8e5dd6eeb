"""The SQLite index: mutable state and query indexes, in rollback-journal (DELETE) mode.

Durability: the journal is the commit point, so a transaction of the writer is not synced (``synchronous=OFF``). A
killed process leaves the page cache, and with it the index, intact; after a power loss recovery does not trust an
index that lags a checkpoint and rebuilds it. Each transaction stores the sequence number and the checksum of the
journal record applied last: they distinguish an index of another history from one that lags.

Readers keep no cursor open: every query is fetched whole, at once, and they go in turns, so that writers get theirs.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

from adapter.store import disk, layout, store_id
from adapter.store.disk import Directories
from adapter.store.queries import schema
from adapter.store.queries.schema import (
    FOREIGN_SCHEMA,
    SCHEMA_VERSION,
    applied,
    complete,
    schema_differences,
    schema_version,
    set_applied,
    store_of,
)

__all__ = [
    "FOREIGN_SCHEMA",
    "SCHEMA_VERSION",
    "Index",
    "IndexDiverged",
    "IndexForeign",
    "IndexMissing",
    "IndexUnreadable",
    "applied",
    "bulk_transaction",
    "check_store",
    "complete",
    "connect",
    "create",
    "schema_differences",
    "set_applied",
    "store_of",
    "unsynced_copy",
]

Values = ParamSpec("Values")
Result = TypeVar("Result")

_BUSY_SECONDS = 30.0
_MAX_OVERLAP_SECONDS = 0.005  # of readers, before they check whether a writer is pending


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
    connection.execute("BEGIN")
    schema.create_tables(connection, store)
    connection.execute("COMMIT")
    return connection


def check_store(directories: Directories, store: str) -> None:
    """Raise :class:`IndexForeign` if the index is another store's. Changes nothing; what cannot be read passes."""
    with contextlib.suppress(sqlite3.Error):
        path = layout.absolute(directories.root, layout.INDEX_FILE)
        connection = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
        with contextlib.closing(connection):
            _compare_stores(store_of(connection), store)


def _compare_stores(named: str, store: str) -> None:
    if named != store:
        raise IndexForeign(f"belongs to store {named}" if named else "names no store")


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


@contextlib.contextmanager
def unsynced_copy(path: str) -> Iterator[sqlite3.Connection]:
    """A private database at ``path`` for a copy of the index, which is needed for the length of the block only."""
    copy = sqlite3.connect(path, check_same_thread=False)
    try:
        copy.execute("PRAGMA synchronous=OFF")
        yield copy
    finally:
        copy.close()


@contextlib.contextmanager
def bulk_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction on a new index, which is thrown away if the block fails."""
    connection.execute("BEGIN")
    yield
    connection.execute("COMMIT")


class ReadGate:
    """Makes the readers of a process wait for each other while a writer is pending, to prevent writer starvation.

    SQLite lets no new reader in while a writer waits, but it asks the kernel for its lock only when the first reader of
    a process comes, and gives it back when the last one goes. Readers of one process that overlap without end would
    keep the writers of all other processes out.
    """

    def __init__(self, is_writer_pending: Callable[[], bool]) -> None:
        """``is_writer_pending``: whether any process is about to write."""
        self._is_writer_pending = is_writer_pending
        self._changed = threading.Condition()
        self._inside = 0
        self._began = 0.0
        self._mine = threading.local()

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Read inside the block; a block within a block of the same thread is part of it."""
        if getattr(self._mine, "inside", False):
            yield
            return
        self._acquire()
        self._mine.inside = True
        try:
            yield
        finally:
            self._mine.inside = False
            self._release()

    def _acquire(self) -> None:
        with self._changed:
            while self._inside and time.monotonic() - self._began > _MAX_OVERLAP_SECONDS and self._is_writer_pending():
                self._changed.wait()
            if not self._inside:
                self._began = time.monotonic()
            self._inside += 1

    def _release(self) -> None:
        with self._changed:
            self._inside -= 1
            if not self._inside:
                self._changed.notify_all()


class Index:
    def __init__(self, directories: Directories, store: str | None = None) -> None:
        """``store``: its id; by default the one that the root names. Raises :class:`IndexForeign` for another's."""
        self._directories = directories
        with directories.stable(()) as root:
            if not disk.exists(root, layout.INDEX_FILE):
                raise IndexMissing
        self._path = layout.absolute(directories.root, layout.INDEX_FILE)
        self._readers = threading.local()
        self._gate = ReadGate(self._is_being_written)
        self._all_readers: list[tuple[threading.Thread, sqlite3.Connection]] = []
        self._mutex = threading.Lock()
        try:
            self.writer = connect(self._path, "rw")
            version = schema_version(self.writer)
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
        with self._gate.enter():
            return self._reader().execute(sql, parameters).fetchall()

    def ask(
        self,
        query: Callable[Concatenate[sqlite3.Connection, Values], Result],
        *values: Values.args,
        **options: Values.kwargs,
    ) -> Result:
        """Run one function of :mod:`adapter.store.queries` on this thread's connection."""
        with self._gate.enter():
            return query(self._reader(), *values, **options)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Several short queries that see one state; nothing else may happen inside the block."""
        connection = self._reader()
        with self._gate.enter():
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
            for thread, other in self._all_readers:
                if thread.is_alive():
                    readers.append((thread, other))
                else:
                    other.close()
            self._all_readers = readers

    def applied_seq(self) -> int:
        return self.ask(schema.applied_seq)

    def applied_for_writer(self) -> tuple[int, str]:
        """Number and checksum of the record applied last. Only for the holder of the index lock.

        The transaction that follows need not read it again.
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

    @contextlib.contextmanager
    def durable_transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction that is synced: for rows that no journal record holds."""
        self.writer.execute("PRAGMA synchronous=FULL")
        try:
            with self.transaction() as connection:
                yield connection
        finally:
            self.writer.execute("PRAGMA synchronous=OFF")
