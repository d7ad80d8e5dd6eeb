"""Rows that executors write: schemas and writers. Parquet for the joins, Arrow for the cache.

Each partition writes files under its own name. A file appears complete or not at all, and a repeated task replaces it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from adapter.maintenance.findings import Finding
from adapter.maintenance.scan import tree_rules
from adapter.maintenance.scan.fingerprint import Sums
from adapter.store import disk

Row = dict[str, Any]

_TEXT = ("place", "name", "id", "sha", "problem", "cause", "mailbox", "entry", "target", "registration", "special")
#: Rows of entries on disk: canonical files, blobs, links, directories of folders and mailboxes.
FILE_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in _TEXT),
        *((name, pa.int64()) for name in ("uid", "folder", "uidvalidity", "links", "size")),
        ("proper", pa.bool_()),
        ("full_name", pa.string()),
        ("blobs", pa.list_(pa.string())),
        ("cache_hash", pa.string()),
        ("stamp", pa.string()),
        ("meta", pa.binary()),
    ]
)
_COLUMNS = {
    "message": (
        "place", "name", "id", "sha", "problem", "cause", "proper", "blobs", "size", "cache_hash", "stamp", "meta",
    ),
    "blob": ("place", "name", "id", "sha", "problem", "cause", "proper", "cache_hash", "stamp"),
    "link": ("mailbox", "entry", "name", "uid", "id", "cause", "proper", "target"),
    "folder": (
        "mailbox", "entry", "links", "problem", "cause", "full_name", "folder", "registration", "uidvalidity",
        "special", "uid",
    ),
    "mailbox": ("mailbox", "links"),
    "unlistable": ("place", "cause"),  # directories that cannot be listed
}  # fmt: skip
_PART_SCHEMAS = {part: pa.schema([FILE_SCHEMA.field(name) for name in columns]) for part, columns in _COLUMNS.items()}
_TABLE_TEXT = ("id", "sha", "mailbox", "entry", "name", "registration", "status")
#: Rows of the index's tables.
TABLE_SCHEMA = pa.schema(
    [*((name, pa.string()) for name in _TABLE_TEXT), *((name, pa.int64()) for name in ("folder", "uid", "size"))]
)
#: Findings, with the columns of :class:`~adapter.maintenance.findings.Finding`.
_FINDING_TEXT = ("kind", "subject", "place", "name", "id", "mailbox", "entry", "detail")
FINDING_SCHEMA = pa.schema(
    [*((name, pa.string()) for name in _FINDING_TEXT), ("folder", pa.int64()), ("uid", pa.int64())]
)
#: Rows of ``cache_messages``, with the digest of the file they were computed from.
CACHE_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("sha", pa.string()),
        *((name, pa.binary()) for name in ("recipe", "envelope", "structure", "outline")),
        ("preview", pa.string()),
    ]
)
FILE_PARTS = tuple(_COLUMNS)
TABLE_PARTS = ("known", "needed", "projection", "base-folder", "registration", "cache", "damaged")
#: Directories of the scratch directory.
FINDINGS_DIRECTORY, CACHE_DIRECTORY, FILES_DIRECTORY, TABLES_DIRECTORY = "findings", "cache", "files", "rows"
_CONTENT = ("message", "blob")
_LINK = "link"
#: A file changed more recently could change again with the same stamp (coarse timestamps).
_MIN_STAMP_AGE_NS = 2_000_000_000
_SUMS_KEY = b"sums"
_BATCH_ROWS = 1000
_BATCH_BYTES = 4 << 20
_DDL = {pa.string(): "string", pa.int64(): "bigint", pa.bool_(): "boolean", pa.binary(): "binary"}


def ddl(schema: pa.Schema) -> str:
    """The schema in Spark's DDL; the ``part`` column comes from the directory names."""
    columns = [f"{field.name} {_DDL.get(field.type, 'array<string>')}" for field in schema]
    return ", ".join([*columns, "part string"])


def part_directory(directory: str, part: str) -> str:
    return f"{directory}/part={part}"


class _RowFile:
    """One file, written in bounded batches."""

    def __init__(self, path: str, name: str, schema: pa.Schema) -> None:
        self._schema = schema
        self._name = name
        self._rows: list[Row] = []
        self._bytes = 0
        self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._temporary = f".{name}.{os.urandom(6).hex()}"
        try:
            self._sink = _Sink(disk.open_new(self._directory, self._temporary, mode=0o600))
        except BaseException:
            os.close(self._directory)
            raise
        self._writer: Any = (
            pa.ipc.new_stream(self._sink, schema)
            if name.endswith(".arrow")
            else pq.ParquetWriter(self._sink, schema, compression="none", use_dictionary=False, write_statistics=False)
        )

    def add(self, row: Row, size: int) -> None:
        self._rows.append(row)
        self._bytes += size
        if len(self._rows) >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES:
            self._flush()

    def add_table(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def _flush(self) -> None:
        if self._rows:
            columns = [
                pa.array([row.get(name) for row in self._rows], kind)
                for name, kind in zip(self._schema.names, self._schema.types)
            ]
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
            self._rows, self._bytes = [], 0

    def set_sums(self, text: bytes) -> None:
        self._writer.add_key_value_metadata({_SUMS_KEY: text})

    def close(self, *, keep: bool) -> None:
        try:
            if keep:
                self._flush()
                self._writer.close()
                disk.rename(self._directory, self._temporary, self._directory, self._name)
            else:
                disk.unlink(self._directory, self._temporary)
        finally:
            self._sink.close()
            os.close(self._directory)


class RowWriter:
    """Writer of all rows of one partition; a file is created when its first row is added."""

    def __init__(self, scratch: str, partition: str) -> None:
        self._scratch = scratch
        self._partition = partition
        self._open: dict[str, _RowFile] = {}

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for row_file in self._open.values():
            row_file.close(keep=kind is None)

    def add_file(self, part: str, row: Row, size: int = 0) -> None:
        self._row_file(part_directory(FILES_DIRECTORY, part), _PART_SCHEMAS[part]).add(row, size)

    def add_files(self, part: str, table: pa.Table) -> None:
        self._row_file(part_directory(FILES_DIRECTORY, part), _PART_SCHEMAS[part]).add_table(table)

    def share_links(self, earlier_scratch: str) -> None:
        self.share(_LINK, earlier_scratch)

    def share(self, part: str, earlier_scratch: str) -> None:
        """Reuse the file that an earlier inspection wrote for the same partition (hard link)."""
        directory = part_directory(FILES_DIRECTORY, part)
        name = f"{self._partition}.parquet"
        source, target = (
            os.open(f"{scratch}/{directory}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for scratch in (earlier_scratch, self._scratch)
        )
        try:
            with contextlib.suppress(FileExistsError):  # repeated task
                disk.link(source, name, target, name)
        finally:
            os.close(source)
            os.close(target)

    def save_sums(self, sums: Sums) -> None:
        """Store the sums of the partition, for a later inspection that finds its content unchanged."""
        text = orjson.dumps([[*key, count, f"{value:x}"] for key, (count, value) in sums.items()])
        for part in (*_CONTENT, _LINK):
            if (row_file := self._open.get(part_directory(FILES_DIRECTORY, part))) is not None:
                row_file.set_sums(text)

    def add_table_row(self, part: str, row: Row) -> None:
        self._row_file(part_directory(TABLES_DIRECTORY, part), TABLE_SCHEMA).add(row, 0)

    def add_finding(self, finding: Finding) -> None:
        self._row_file(FINDINGS_DIRECTORY, FINDING_SCHEMA).add(asdict(finding), 0)

    def add_cache_row(self, row: Row, size: int) -> None:
        self._row_file(CACHE_DIRECTORY, CACHE_SCHEMA, ".arrow").add(row, size)

    def _row_file(self, directory: str, schema: pa.Schema, suffix: str = ".parquet") -> _RowFile:
        row_file = self._open.get(directory)
        if row_file is None:
            row_file = _RowFile(f"{self._scratch}/{directory}", f"{self._partition}{suffix}", schema)
            self._open[directory] = row_file
        return row_file


class _Sink:
    """File object for Arrow over a descriptor that ``disk`` opened."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        disk.write_all(self._fd, view)
        return view.nbytes

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self._fd)


# --- reading ---------------------------------------------------------------------------------------------------------


def parquet_rows(directory: str, columns: list[str]) -> Iterator[Row]:
    """Read the rows of a directory of Parquet files in bounded batches; nothing if the directory does not exist."""
    for name in _names(directory, ".parquet"):
        with pq.ParquetFile(f"{directory}/{name}") as file:
            for batch in file.iter_batches(2000, columns=columns):
                yield from batch.to_pylist()


def cache_batches(scratch: str) -> Iterator[list[tuple[Any, ...]]]:
    """Read the cache rows as tuples, in bounded batches."""
    directory = f"{scratch}/{CACHE_DIRECTORY}"
    for name in _names(directory, ".arrow"):
        with open(f"{directory}/{name}", "rb") as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                yield list(zip(*(column.to_pylist() for column in batch.columns)))


def _names(directory: str, suffix: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(name for name in os.listdir(directory) if name.endswith(suffix) and not name.startswith("."))
    return []


class EarlierRows:
    """The rows that an earlier inspection wrote for the same partition; rows of unchanged files are reused."""

    def __init__(self, scratch: str, partition: str) -> None:
        self._scratch = scratch
        self._encoded_sums = b""
        self._tables: dict[str, pa.Table] = {}
        self._stamps: dict[tuple[str, str, str], tuple[str, int]] = {}
        self._reused: dict[str, list[int]] = {part: [] for part in _CONTENT}
        for part in _CONTENT:
            path = f"{scratch}/{part_directory(FILES_DIRECTORY, part)}/{partition}.parquet"
            if scratch and os.path.exists(path):
                with pq.ParquetFile(path) as file:
                    table = file.read()
                    self._encoded_sums = file.metadata.metadata[_SUMS_KEY]
                columns = (table.column(name).to_pylist() for name in ("place", "name", "stamp"))
                self._tables[part] = table
                for at, (place, name, earlier_stamp) in enumerate(zip(*columns)):
                    self._stamps[part, place, name] = earlier_stamp, at

    def reuse(self, part: str, directory: int, place: str, name: str) -> bool:
        """Reuse the row of a file if the file has not changed; return whether it is reused."""
        earlier_stamp, at = self._stamps.get((part, place, name), ("", 0))
        if not earlier_stamp:
            return False
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError:
            return False
        if stamp(status) != earlier_stamp:
            return False
        self._reused[part].append(at)
        return True

    def sums(self) -> Sums | None:
        """The sums of the partition if all its rows are reused, else None."""
        if not self._tables or any(len(self._reused[part]) != table.num_rows for part, table in self._tables.items()):
            return None
        return _decode_sums(self._encoded_sums)

    def share(self, writer: RowWriter) -> None:
        for part in self._tables:
            writer.share(part, self._scratch)

    def reused_rows(self) -> Iterator[tuple[str, pa.Table]]:
        for part, at in self._reused.items():
            if at:
                yield part, self._tables[part].replace_schema_metadata().take(pa.array(at, pa.int64()))


def earlier_link_sums(scratch: str, partition: str) -> Sums | None:
    """The sums of a link partition in an earlier inspection."""
    path = f"{scratch}/{part_directory(FILES_DIRECTORY, _LINK)}/{partition}.parquet"
    if not os.path.exists(path):
        return None
    with pq.ParquetFile(path) as file:
        return _decode_sums(file.metadata.metadata[_SUMS_KEY])


def _decode_sums(text: bytes) -> Sums:
    return {(domain, side): (count, int(value, 16)) for domain, side, count, value in orjson.loads(text)}


def stamp(status: os.stat_result) -> str:
    """A value that changes whenever a file is written or replaced, or a directory gains or loses an entry."""
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def reusable_stamp(status: os.stat_result) -> str:
    """The stamp of an entry, or "" if its row must not be reused: changed too recently, or wrong mode or owner."""
    is_ours = status.st_uid == os.geteuid() and not status.st_mode & tree_rules.READABLE
    return stamp(status) if is_ours and status.st_ctime_ns < time.time_ns() - _MIN_STAMP_AGE_NS else ""
