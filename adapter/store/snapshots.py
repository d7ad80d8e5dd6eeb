"""Snapshots: Parquet copies of the mutable tables as they were after one journal record.

``snapshots/<seq>/<table>.parquet`` and a manifest with their checksums, the id of the store and the checksum of that
record. The journal up to a snapshot may go: journal
segments are kept back to the older of the two snapshots kept, so that one damaged snapshot loses nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sqlite3
from collections.abc import Iterator
from typing import Any

import orjson

from adapter.store import disk, index, layout, locks, store_id
from adapter.store.disk import Directories
from adapter.store.queries import folders, schema
from protocol.errors import MailError, Reason

TABLES = (
    "mailbox_registrations",
    "folders",
    "subscriptions",
    "messages",
    "message_recipients",
    "attachments",
    "message_attachments",
    "mailbox_projections",
    "mailbox_state",
    "expunged",
    "thread_summaries",
    "outbox",
    "bookmarks",
    "dsn_requests",
    "damaged_parts",
    "lost_places",
)
LATER = {"bookmarks", "dsn_requests", "damaged_parts", "lost_places"}  # tables that snapshots of older programs lack
_ROWS = 50_000
_KEEP = 2
_SNAPSHOT = re.compile(r"[0-9]{16}\Z")
_UNFINISHED = ".new"
_PATIENCE = 2.0  # seconds: a process that opens the store briefly holds the lock to check for a writer
_MANIFEST = {"seq", "store", "checksum", "last_uidvalidity", "sha256"}


def available(directories: Directories, store: str | None = None) -> list[int]:
    """Complete snapshots, oldest first; those of other stores left out.

    ``store``: the id of this one; by default the one that the root names.
    """
    store = store or store_id.read(directories)
    return [seq for seq in everything(directories) if store is None or store_of(directories, seq) in ("", store)]


def everything(directories: Directories) -> list[int]:
    """Complete snapshots, oldest first, whichever store they belong to."""
    with contextlib.suppress(FileNotFoundError), directories.stable(layout.SNAPSHOTS) as parent:
        return sorted(int(name) for name in os.listdir(parent) if _SNAPSHOT.match(name))
    return []


def store_of(directories: Directories, seq: int) -> str:
    """The id of the store that wrote a snapshot; empty if its manifest is damaged."""
    try:
        return str(_manifest(directories, seq)["store"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""


def checksum_of(directories: Directories, seq: int) -> str:
    """The checksum of the record that a snapshot ends with; its manifest must verify."""
    return str(_manifest(directories, seq)["checksum"])


def write(directories: Directories, source: sqlite3.Connection, seq: int) -> None:
    """Write the snapshot of ``seq`` from a private copy of the index; it appears whole or not at all."""
    with writing_alone(directories, _PATIENCE) as alone:
        if not alone:
            raise MailError(Reason.LOCK_TIMEOUT, "another process is taking a snapshot or a backup")
        _remove_unfinished(directories)
        try:
            _write(directories, source, seq)
        except BaseException:
            with contextlib.suppress(OSError):
                _remove_unfinished(directories)
            raise


@contextlib.contextmanager
def writing_alone(directories: Directories, patience: float = 0.0) -> Iterator[bool]:
    """True if this process gets the lock of snapshots within ``patience`` seconds; it holds it for the block."""
    with directories.open(layout.SNAPSHOTS) as parent, locks.claim_directory(parent, patience) as claimed:
        yield claimed


def remove_unfinished(directories: Directories) -> None:
    """Remove what a process that died while writing a snapshot left behind."""
    with writing_alone(directories) as alone:
        if alone:
            _remove_unfinished(directories)


def _remove_unfinished(directories: Directories) -> None:
    with directories.stable(layout.SNAPSHOTS) as parent:
        unfinished = [name for name in os.listdir(parent) if name.endswith(_UNFINISHED)]
    for name in unfinished:
        _discard(directories, (*layout.SNAPSHOTS, name))


def _write(directories: Directories, source: sqlite3.Connection, seq: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    final = layout.snapshot_directory(seq)
    working = (*final[:-1], f".{final[-1]}{_UNFINISHED}")
    checksums = {}
    with directories.open(working, create=True) as directory:
        for table in TABLES:
            columns = schema.columns(source, table)
            fields = pa.schema([(name, pa.int64() if kind == "INTEGER" else pa.string()) for name, kind in columns])
            cursor = schema.rows(source, table, fields.names)
            name = f"{table}.parquet"
            with open(disk.open_new(directory, name), "wb") as file:
                with pq.ParquetWriter(file, fields, compression="zstd") as parquet:
                    while rows := cursor.fetchmany(_ROWS):
                        arrays = [pa.array(column, field.type) for column, field in zip(zip(*rows), fields)]
                        parquet.write_table(pa.Table.from_arrays(arrays, schema=fields))
                file.flush()
                disk.sync_data(file.fileno())
            checksums[name] = _sha256(directory, name)
        manifest: dict[str, Any] = {
            "seq": seq,
            "store": index.store_of(source),
            "checksum": index.applied(source)[1],
            "last_uidvalidity": folders.last_uidvalidity(source),
            "sha256": checksums,
        }
        manifest["digest"] = _digest(manifest)
        disk.write_new(directory, layout.MANIFEST_FILE, orjson.dumps(manifest) + b"\n", sync=True)
        disk.sync_directory(directory)
    with directories.stable(layout.SNAPSHOTS) as parent:
        if disk.exists(parent, final[-1]):
            _discard(directories, working)
            return
        disk.rename(parent, working[-1], parent, final[-1])
        disk.sync_directory(parent)


def prune(directories: Directories) -> int:
    """Remove all but the newest snapshots; returns the seq up to which the journal is no longer needed."""
    complete = available(directories)
    with writing_alone(directories) as alone, directories.stable(layout.SNAPSHOTS) as parent:
        for seq in complete[:-_KEEP] if alone else ():
            name = layout.snapshot_directory(seq)[-1]
            disk.rename(parent, name, parent, f".{name}{_UNFINISHED}")  # not to be taken for whole while it goes
        if alone:
            disk.sync_directory(parent)
            _remove_unfinished(directories)
    return complete[-_KEEP] if len(complete) >= _KEEP else 0


def load_latest(directories: Directories, connection: sqlite3.Connection) -> int:
    """Fill an empty index from the newest snapshot of its store that verifies; returns its seq, 0 without any."""
    for seq in reversed(available(directories, index.store_of(connection))):
        if verify(directories, seq):
            _load(directories, connection, seq)
            return seq
    return 0


def verify(directories: Directories, seq: int) -> bool:
    """True if every file of a snapshot is as it was written, and can be read."""
    try:
        return verify_readable(directories, seq)
    except OSError:
        return False


def verify_readable(directories: Directories, seq: int) -> bool:
    """True if every file of a snapshot is as it was written. Raises ``OSError`` if one is missing or unreadable."""
    try:
        manifest = _manifest(directories, seq)
        with directories.open(layout.snapshot_directory(seq)) as directory:
            return all(_sha256(directory, name) == sha256 for name, sha256 in manifest["sha256"].items()) and {
                f"{table}.parquet" for table in TABLES if table not in LATER
            } <= manifest["sha256"].keys() <= {f"{table}.parquet" for table in TABLES}
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _load(directories: Directories, connection: sqlite3.Connection, seq: int) -> None:
    import pyarrow.parquet as pq

    manifest = _manifest(directories, seq)
    with index.bulk_transaction(connection), directories.open(layout.snapshot_directory(seq)) as directory:
        for table in TABLES:
            if f"{table}.parquet" not in manifest["sha256"]:
                continue
            columns = [name for name, _ in schema.columns(connection, table)]
            with open(disk.open_read(directory, f"{table}.parquet"), "rb") as file:
                for batch in pq.ParquetFile(file).iter_batches(_ROWS):
                    values = [batch.column(name).to_pylist() for name in columns]
                    schema.insert_rows(connection, table, columns, zip(*values))
        schema.set_last_uidvalidity(connection, manifest["last_uidvalidity"])
        index.set_applied(connection, seq, manifest["checksum"])


def _manifest(directories: Directories, seq: int) -> dict[str, Any]:
    """Raises ``ValueError`` if it is not as it was written. Older programs gave it no digest."""
    with directories.open(layout.snapshot_directory(seq)) as directory:
        manifest: dict[str, Any] = orjson.loads(disk.read_file(directory, layout.MANIFEST_FILE))
    digest = manifest.pop("digest", None)
    if manifest["seq"] != seq or manifest.keys() != _MANIFEST or digest not in (None, _digest(manifest)):
        raise ValueError("the manifest is damaged")
    return manifest


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(manifest)).hexdigest()


def _sha256(directory: int, name: str) -> str:
    with open(disk.open_read(directory, name), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _discard(directories: Directories, parts: layout.Parts) -> None:
    with contextlib.suppress(FileNotFoundError):
        with directories.open(parts) as directory:
            for name in os.listdir(directory):
                disk.unlink(directory, name)
        with directories.open(parts[:-1]) as parent:
            disk.remove_directory(parent, parts[-1])
