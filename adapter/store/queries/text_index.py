"""The text index: what messages say, folded, in a database of its own. A cache: it may be removed at any time.

It is in WAL mode with ``synchronous=NORMAL``: readers and the one writer do not wait for each other, and a power loss
may cost the last transactions but not the database. A damaged one is dropped and filled again.

Two trigram indexes, of the header and of the body, say in which rows all trigrams of a needle occur; whether they
occur as the needle, ``instr`` then says. That costs a third of an index with positions, in time and in space.

The rows of one account lie together (``row >> 32`` is its number): a search of it need not pass those of others.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from urllib.parse import quote

from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.store.queries import schema

#: Of the tables, and of how text is extracted and folded: an index of another version is rebuilt.
VERSION = 2
_SUFFIXES = ("", "-wal", "-shm")
_BUSY_SECONDS = 10.0

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE accounts (number INTEGER PRIMARY KEY, registration_id TEXT NOT NULL UNIQUE);
CREATE TABLE texts (
    row             INTEGER PRIMARY KEY,
    message_id      TEXT NOT NULL UNIQUE,
    indexed         INTEGER NOT NULL,         -- 0: too long, header and body are empty here and have to be read
    refs            TEXT NOT NULL,            -- References, as it came
    header          TEXT NOT NULL,
    body            TEXT NOT NULL
);
CREATE INDEX texts_too_long ON texts (indexed) WHERE indexed = 0;
CREATE VIRTUAL TABLE headers USING fts5 (
    header, content = 'texts', content_rowid = 'row',
    tokenize = 'trigram case_sensitive 1', detail = none, columnsize = 0
);
CREATE VIRTUAL TABLE bodies USING fts5 (
    body, content = 'texts', content_rowid = 'row',
    tokenize = 'trigram case_sensitive 1', detail = none, columnsize = 0
);
"""


#: A row of an account that is not known, or of something that is not a message.
_STRANGE = """
SELECT row FROM texts
WHERE (row >> 32) NOT IN (SELECT number FROM accounts) OR message_id NOT GLOB 'msg-[0-9]*' LIMIT 1
"""


def connect(root: str) -> sqlite3.Connection:
    """A connection to the text index, which is made if there is none. Raises ``sqlite3.DatabaseError`` on damage."""
    path = layout.absolute(root, layout.TEXT_INDEX_FILE)
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):  # SQLite would follow a link out of the store
            raise sqlite3.DatabaseError(f"{path} is not a regular file")
    disk.make_private(path)
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode=rwc", uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA cache_size=-4096")
        connection.execute("PRAGMA temp_store=MEMORY")
        connection.execute("PRAGMA trusted_schema=OFF")
        _prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
        connection.execute("BEGIN IMMEDIATE")
        # Another process may have been faster.
        if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
            for statement in _SCHEMA.split(";\n"):
                if statement.strip():
                    connection.execute(statement)
            made = [("version", VERSION), ("generation", os.urandom(8).hex())]
            connection.executemany("INSERT INTO meta VALUES (?, ?)", made)
        connection.execute("COMMIT")
    version = connection.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()
    if version is None or version[0] != VERSION:
        raise sqlite3.DatabaseError(f"text index of version {version and version[0]!r}")


def find_defect(root: str) -> str:
    """Describe a defect of the text index; empty if there is none, or no index. Changes nothing.

    Pages, schema and the keys of rows are checked. The texts are not: checking takes as long as indexing again.
    """
    path = layout.absolute(root, layout.TEXT_INDEX_FILE)
    try:
        about = os.lstat(path)
        if not stat.S_ISREG(about.st_mode):
            return "is not a file"
        if not about.st_size:
            return ""  # made, and not filled yet
        mode = "mode=ro" if _has_log(path) else "mode=ro&immutable=1"  # without one, SQLite need not make files
        uri = f"file:{quote(path)}?{mode}"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS)) as connection:
            connection.execute("PRAGMA trusted_schema=OFF")
            return _examine(connection)
    except FileNotFoundError:
        return ""
    except sqlite3.OperationalError as error:
        return "" if "locked" in str(error) or "unable to open" in str(error) else str(error)
    except sqlite3.DatabaseError as error:
        return str(error)
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _has_log(path: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.lstat(f"{path}-wal").st_size > 0
    return False


def _examine(connection: sqlite3.Connection) -> str:
    if wrong := schema.differences(connection, _SCHEMA, numbers=()):
        return "; ".join(wrong[:3])
    version = connection.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()
    if version != (VERSION,):
        return f"version {version and version[0]!r}"
    (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if result != "ok":
        return str(result)[:200]
    strange = connection.execute(_STRANGE).fetchone()
    return f"row {strange[0]} is not ours" if strange else ""


def drop(root: str) -> None:
    """Remove the text index. Processes that have it open use the unlinked file until they check again."""
    with contextlib.closing(Directories(root)) as directories:
        for suffix in _SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(directories.root_fd, layout.TEXT_INDEX_FILE + suffix)
