"""The store as a Spark data source: a partition is a piece of work, its rows are what an executor finds there.

Two kinds of rows come out of it: ``files`` (canonical files, blobs, links, folder and mailbox directories) and ``rows``
(tables that journal and snapshots lead to, and where the index differs from them).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from adapter.maintenance import scan

_TEXT = ("part", "place", "name", "id", "sha", "problem", "mailbox", "entry", "target", "registration", "special")
FILES = pa.schema(
    [
        *((name, pa.string()) for name in _TEXT),
        *((name, pa.int64()) for name in ("uid", "folder", "uidvalidity", "links", "size")),
        ("proper", pa.bool_()),
        ("full_name", pa.string()),
        ("blobs", pa.list_(pa.string())),
        ("cache_hash", pa.string()),
        *((name, pa.binary()) for name in ("recipe", "envelope", "structure", "outline")),
        ("preview", pa.string()),
        ("meta", pa.binary()),
    ]
)
_ROWS_TEXT = ("part", "id", "sha", "mailbox", "entry", "name", "registration", "status", "kind", "subject", "detail")
ROWS = pa.schema(
    [*((name, pa.string()) for name in _ROWS_TEXT), *((name, pa.int64()) for name in ("folder", "uid", "size"))]
)
_BATCH = 500


class Piece(InputPartition):
    """One piece file."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class StoreSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "markpost"

    def schema(self) -> str:
        return ddl(FILES if self.options["rows"] == "files" else ROWS)

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(dict(self.options))


class _Reader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        with open(self._options["pieces"]) as listing:
            return [Piece(line.rstrip("\n")) for line in listing]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = FILES if self._options["rows"] == "files" else ROWS
        waiting: list[dict[str, Any]] = []
        for row in scan.work(partition.value, self._options):
            waiting.append(row)
            if len(waiting) >= _BATCH:
                yield _batch(waiting, schema)
                waiting = []
        if waiting:
            yield _batch(waiting, schema)


def _batch(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([row.get(name) for row in rows], kind) for name, kind in zip(schema.names, schema.types)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


_DDL = {pa.string(): "string", pa.int64(): "bigint", pa.bool_(): "boolean", pa.binary(): "binary"}


def ddl(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {_DDL.get(field.type, 'array<string>')}" for field in schema)
