"""What executors write: for every piece of work the rows it gave, as Parquet for the joins and as Arrow for the cache.

The fragment of a piece appears whole, under the name of the piece, or not at all: a task that is run again replaces it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from adapter.maintenance.scan.fingerprint import Sums
from adapter.store import disk, tree

Row = dict[str, Any]

_TEXT = ("place", "name", "id", "sha", "problem", "cause", "mailbox", "entry", "target", "registration", "special")
#: What lies on disk: canonical files, blobs, links, directories of folders and mailboxes.
FILES = pa.schema(
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
    "closed": ("place", "cause"),  # directories that cannot be listed
}  # fmt: skip
_PART = {part: pa.schema([FILES.field(name) for name in columns]) for part, columns in _COLUMNS.items()}
_ROWS_TEXT = ("id", "sha", "mailbox", "entry", "name", "registration", "status")
#: What tables say.
ROWS = pa.schema(
    [*((name, pa.string()) for name in _ROWS_TEXT), *((name, pa.int64()) for name in ("folder", "uid", "size"))]
)
#: Findings, with the columns of :class:`~adapter.maintenance.findings.Finding`.
_FOUND_TEXT = ("kind", "subject", "place", "name", "id", "mailbox", "entry", "detail")
FOUND = pa.schema([*((name, pa.string()) for name in _FOUND_TEXT), ("folder", pa.int64()), ("uid", pa.int64())])
#: Rows of ``cache_messages``, with the digest of the file they were computed from.
CACHE = pa.schema(
    [
        ("id", pa.string()),
        ("sha", pa.string()),
        *((name, pa.binary()) for name in ("recipe", "envelope", "structure", "outline")),
        ("preview", pa.string()),
    ]
)
FILE_PARTS = tuple(_COLUMNS)
ROW_PARTS = ("known", "needed", "projection", "base-folder", "registration", "cache", "damaged")
FOUND_PLACE, CACHE_PLACE, FILES_PLACE, ROWS_PLACE = "found", "cache", "files", "rows"
_CONTENT = ("message", "blob")
_LINK = "link"
#: What changed so short a time ago may change again without its stamp telling.
_SETTLED = 2_000_000_000  # nanoseconds
_NOTE = b"sums"
_BATCH = 1000
_BATCH_BYTES = 4 << 20
_DDL = {pa.string(): "string", pa.int64(): "bigint", pa.bool_(): "boolean", pa.binary(): "binary"}


def ddl(schema: pa.Schema) -> str:
    """The schema as Spark reads it; the directories say which part of it a row is."""
    columns = [f"{field.name} {_DDL.get(field.type, 'array<string>')}" for field in schema]
    return ", ".join([*columns, "part string"])


def part_place(place: str, part: str) -> str:
    return f"{place}/part={part}"


class Fragment:
    """One file, written in bounded batches."""

    def __init__(self, place: str, name: str, schema: pa.Schema) -> None:
        self._schema = schema
        self._name = name
        self._rows: list[Row] = []
        self._bytes = 0
        self._directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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
        if len(self._rows) >= _BATCH or self._bytes >= _BATCH_BYTES:
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

    def note(self, text: bytes) -> None:
        self._writer.add_key_value_metadata({_NOTE: text})

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


class Fragments:
    """The fragments of one piece of work, made as rows come."""

    def __init__(self, scratch: str, piece: str) -> None:
        self._scratch = scratch
        self._piece = piece
        self._open: dict[str, Fragment] = {}

    def __enter__(self) -> Fragments:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for fragment in self._open.values():
            fragment.close(keep=kind is None)

    def file(self, part: str, row: Row, size: int = 0) -> None:
        self._fragment(part_place(FILES_PLACE, part), _PART[part]).add(row, size)

    def files(self, part: str, table: pa.Table) -> None:
        self._fragment(part_place(FILES_PLACE, part), _PART[part]).add_table(table)

    def share_links(self, earlier: str) -> None:
        self.share(_LINK, earlier)

    def share(self, part: str, earlier: str) -> None:
        """The fragment of an earlier look is this one's as well."""
        place = part_place(FILES_PLACE, part)
        name = f"{self._piece}.parquet"
        source, target = (
            os.open(f"{scratch}/{place}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for scratch in (earlier, self._scratch)
        )
        try:
            with contextlib.suppress(FileExistsError):  # a task that is run again
                disk.link(source, name, target, name)
        finally:
            os.close(source)
            os.close(target)

    def note(self, sums: Sums) -> None:
        """What the piece adds up to, for a later look that finds its content unchanged."""
        text = orjson.dumps([[*key, count, f"{value:x}"] for key, (count, value) in sums.items()])
        for part in (*_CONTENT, _LINK):
            if (fragment := self._open.get(part_place(FILES_PLACE, part))) is not None:
                fragment.note(text)

    def row(self, part: str, row: Row) -> None:
        self._fragment(part_place(ROWS_PLACE, part), ROWS).add(row, 0)

    def found(self, row: Row) -> None:
        self._fragment(FOUND_PLACE, FOUND).add(row, 0)

    def cache(self, row: Row, size: int) -> None:
        self._fragment(CACHE_PLACE, CACHE, ".arrow").add(row, size)

    def _fragment(self, place: str, schema: pa.Schema, suffix: str = ".parquet") -> Fragment:
        fragment = self._open.get(place)
        if fragment is None:
            fragment = Fragment(f"{self._scratch}/{place}", f"{self._piece}{suffix}", schema)
            self._open[place] = fragment
        return fragment


class _Sink:
    """A descriptor that ``disk`` opened, as Arrow wants to write to it."""

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
    """The rows of a directory of Parquet files, in bounded batches; none where there is no such directory."""
    for name in _names(directory, ".parquet"):
        with pq.ParquetFile(f"{directory}/{name}") as file:
            for batch in file.iter_batches(2000, columns=columns):
                yield from batch.to_pylist()


def cache_batches(scratch: str) -> Iterator[list[tuple[Any, ...]]]:
    """Rows of the cache as tuples, a bounded number at a time."""
    directory = f"{scratch}/{CACHE_PLACE}"
    for name in _names(directory, ".arrow"):
        with open(f"{directory}/{name}", "rb") as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                yield list(zip(*(column.to_pylist() for column in batch.columns)))


def _names(directory: str, suffix: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(name for name in os.listdir(directory) if name.endswith(suffix) and not name.startswith("."))
    return []


class Earlier:
    """What an earlier look found in the same piece: rows of files that did not change since are taken over."""

    def __init__(self, scratch: str, piece: str) -> None:
        self._scratch = scratch
        self._note = b""
        self._tables: dict[str, pa.Table] = {}
        self._known: dict[tuple[str, str, str], tuple[str, int]] = {}
        self._kept: dict[str, list[int]] = {part: [] for part in _CONTENT}
        for part in _CONTENT:
            path = f"{scratch}/{part_place(FILES_PLACE, part)}/{piece}.parquet"
            if scratch and os.path.exists(path):
                with pq.ParquetFile(path) as file:
                    table = file.read()
                    self._note = file.metadata.metadata[_NOTE]
                columns = (table.column(name).to_pylist() for name in ("place", "name", "stamp"))
                self._tables[part] = table
                for at, (place, name, known) in enumerate(zip(*columns)):
                    self._known[part, place, name] = known, at

    def take(self, part: str, directory: int, place: str, name: str) -> bool:
        """Whether the file is what it was; if so its row is kept."""
        known = self._known.get((part, place, name))
        if known is None or not known[0]:
            return False
        try:
            now = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError:
            return False
        if stamp(now) != known[0]:
            return False
        self._kept[part].append(known[1])
        return True

    def sums(self) -> Sums | None:
        """What the piece added up to, if every row of it is kept."""
        if not self._tables or any(len(self._kept[part]) != table.num_rows for part, table in self._tables.items()):
            return None
        return _sums(self._note)

    def share(self, fragments: Fragments) -> None:
        for part in self._tables:
            fragments.share(part, self._scratch)

    def kept(self) -> Iterator[tuple[str, pa.Table]]:
        for part, at in self._kept.items():
            if at:
                yield part, self._tables[part].replace_schema_metadata().take(pa.array(at, pa.int64()))


def links_note(scratch: str, piece: str) -> Sums | None:
    """What a piece of links added up to in an earlier look."""
    path = f"{scratch}/{part_place(FILES_PLACE, _LINK)}/{piece}.parquet"
    if not os.path.exists(path):
        return None
    with pq.ParquetFile(path) as file:
        return _sums(file.metadata.metadata[_NOTE])


def _sums(note: bytes) -> Sums:
    return {(domain, side): (count, int(value, 16)) for domain, side, count, value in orjson.loads(note)}


def stamp(found: os.stat_result) -> str:
    """What changes when a file is written to or replaced, or anything in a directory is."""
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"


def settled_stamp(found: os.stat_result) -> str:
    """The stamp of what did not change a moment ago, else nothing; nor of what has a finding about mode or owner."""
    is_ours = found.st_uid == os.geteuid() and not found.st_mode & tree.READABLE
    return stamp(found) if is_ours and found.st_ctime_ns < time.time_ns() - _SETTLED else ""
