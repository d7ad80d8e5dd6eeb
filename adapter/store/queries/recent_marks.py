r"""Marks of messages that were announced as ``\Recent`` (RFC 3501 2.3.2): one row per folder, in a separate database.

A row has the first UID that was not announced as recent to any session; a folder without a row has announced nothing
yet. The database is a cache: it is not part of the journal and may be removed at any time. When it is made, everything
that the folders hold counts as announced, so that after a loss nothing is recent rather than everything.

It is in WAL mode with ``synchronous=OFF``: a write costs some 50 microseconds and never waits for the disk, a killed
process leaves it intact, and a database that a power loss has damaged is dropped.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable
from urllib.parse import quote

from adapter.store import disk, layout
from adapter.store.disk import Directories

VERSION = 1
_SUFFIXES = ("", "-wal", "-shm")
#: A session waits at most this long for another process, on the event loop; then nothing is recent.
_BUSY_SECONDS = 0.05
_SCHEMA = """
CREATE TABLE recent_marks (
    folder_id       INTEGER PRIMARY KEY,
    uidvalidity     INTEGER NOT NULL,
    uid             INTEGER NOT NULL          -- the first that was not announced
)
"""

#: folder id, UIDVALIDITY, UIDNEXT
Mark = tuple[int, int, int]


def open_marks(root: str, folders: Callable[[], Iterable[Mark]]) -> sqlite3.Connection:
    """A connection to the marks, which are made of ``folders`` if there are none or they are damaged."""
    try:
        return _connect(root, folders)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        drop(root)
        return _connect(root, folders)


def _connect(root: str, folders: Callable[[], Iterable[Mark]]) -> sqlite3.Connection:
    path = layout.absolute(root, layout.RECENT_MARKS_FILE)
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):  # SQLite would follow a link out of the store
            raise sqlite3.DatabaseError(f"{path} is not a regular file")
    disk.make_private(path)
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode=rwc", uri=True, timeout=10.0, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA cache_size=-256")
        connection.execute("PRAGMA wal_autocheckpoint=100")
        connection.execute("PRAGMA trusted_schema=OFF")
        _prepare(connection, folders)
        connection.execute(f"PRAGMA busy_timeout={int(_BUSY_SECONDS * 1000)}")
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, folders: Callable[[], Iterable[Mark]]) -> None:
    connection.execute("BEGIN IMMEDIATE")  # one process makes it, the others wait
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        connection.execute(_SCHEMA)
        connection.executemany("INSERT INTO recent_marks VALUES (?, ?, ?)", folders())
        connection.execute(f"PRAGMA user_version={VERSION}")
    connection.execute("COMMIT")
    if version not in (0, VERSION):
        raise sqlite3.DatabaseError(f"marks of version {version}")


def drop(root: str) -> None:
    """Remove the marks."""
    with contextlib.closing(Directories(root)) as directories:
        for suffix in _SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(directories.root_fd, layout.RECENT_MARKS_FILE + suffix)


_READ = "SELECT uidvalidity, uid FROM recent_marks WHERE folder_id = ?"
_WRITE = "INSERT OR REPLACE INTO recent_marks VALUES (?, ?, ?)"


def peek(connection: sqlite3.Connection, folder_id: int, uidvalidity: int, upto: int) -> int:
    """The first UID below ``upto`` that was not announced; ``upto`` if there is none."""
    row = connection.execute(_READ, (folder_id,)).fetchone()
    if row is None:
        return 1
    # UIDs of another UIDVALIDITY say nothing of these.
    return min(row[1], upto) if row[0] == uidvalidity else upto


def claim(connection: sqlite3.Connection, folder_id: int, uidvalidity: int, upto: int) -> int:
    """The same, and from now on all UIDs below ``upto`` count as announced: one session of all processes gets them."""
    row = connection.execute(_READ, (folder_id,)).fetchone()
    if row is not None and row[0] == uidvalidity and row[1] >= upto:
        return upto  # nearly always; nothing is written
    connection.execute("BEGIN IMMEDIATE")
    try:
        first = peek(connection, folder_id, uidvalidity, upto)
        row = connection.execute(_READ, (folder_id,)).fetchone()
        if row is None or row[0] != uidvalidity or row[1] < upto:
            connection.execute(_WRITE, (folder_id, uidvalidity, upto))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return first


def prune(connection: sqlite3.Connection, folders: Iterable[Mark]) -> None:
    """Forget folders that no longer exist."""
    present = {folder_id for folder_id, _, _ in folders}
    marked = connection.execute("SELECT folder_id FROM recent_marks").fetchall()
    gone = [row for row in marked if row[0] not in present]
    if gone:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("DELETE FROM recent_marks WHERE folder_id = ?", gone)
        connection.execute("COMMIT")
