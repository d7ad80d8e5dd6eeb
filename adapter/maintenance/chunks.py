"""The work of a scan, cut into pieces of bounded size whatever the shape of the store.

Directories are listed incrementally; a long one is split over many pieces, many short ones share one. A piece is a
small file in the run's scratch directory, so that neither the driver nor Spark's plan holds the names of a store.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import orjson

from adapter.maintenance import tables, workspace
from adapter.maintenance.compare import COMPARED
from adapter.store import layout, snapshots
from adapter.store.disk import Directories

Item = dict[str, Any]

#: Tables whose rows are joined with what lies on disk.
JOINED = {"mailbox_registrations", "folders", "mailbox_projections", "message_attachments", "messages"}
_WEIGHT = 4000  # of one piece; about a second of work
_NAMES = 1000  # of one item
_COST = {"message": 4, "blob": 4, "link": 1, "folder": 2, "mailbox": 1}


class Pieces:
    """Collects items into piece files."""

    def __init__(self, scratch: str, prefix: str) -> None:
        self._scratch = scratch
        self._prefix = prefix
        self._items: list[Item] = []
        self._weight = 0
        self.paths: list[str] = []
        self.counts: dict[str, int] = {}

    def add(self, item: Item, count: int, weight: int) -> None:
        self._items.append(item)
        self._weight += weight
        self.counts[item["what"]] = self.counts.get(item["what"], 0) + count
        if self._weight >= _WEIGHT:
            self.flush()

    def flush(self) -> list[str]:
        if self._items:
            path = f"{self._scratch}/{self._prefix}-{len(self.paths):06d}.json"
            workspace.write_file(path, orjson.dumps(self._items))
            self.paths.append(path)
            self._items, self._weight = [], 0
        return self.paths

    def names(self, what: str, where: layout.Parts, names: Iterator[str]) -> int:
        """Items of at most so many names of one directory."""
        total = 0
        batch: list[str] = []
        for name in names:
            batch.append(name)
            total += 1
            if len(batch) >= _NAMES:
                self.add({"what": what, "where": where, "names": batch}, len(batch), _COST[what] * len(batch))
                batch = []
        if batch:
            self.add({"what": what, "where": where, "names": batch}, len(batch), _COST[what] * len(batch))
        return total


def files(root: str, scratch: str, prefix: str) -> Pieces:
    """Everything below messages/, attachments/ and mailboxes/."""
    pieces = Pieces(scratch, prefix)
    with contextlib.closing(Directories(root)) as directories:
        for what, top in (("message", layout.MESSAGES), ("blob", layout.ATTACHMENTS)):
            pieces.names(what, top, (name for name, is_directory in _entries(directories, top) if not is_directory))
            for name, is_directory in _entries(directories, top):
                if is_directory:
                    where = (*top, name)
                    pieces.names(what, where, (name for name, _ in _entries(directories, where)))
        for mailbox, is_directory in _entries(directories, layout.MAILBOXES):
            if is_directory:
                _mailbox(directories, pieces, mailbox)
    pieces.flush()
    return pieces


def _mailbox(directories: Directories, pieces: Pieces, mailbox: str) -> None:
    where = layout.mailbox_directory(mailbox)
    folders = 0
    for entry, is_directory in _entries(directories, where):
        if not is_directory:
            continue
        folders += 1
        inside = (*where, entry)
        links = pieces.names(
            "link", inside, (name for name, _ in _entries(directories, inside) if layout.PROJECTION.match(name))
        )
        pieces.add({"what": "folder", "where": inside, "links": links}, 1, _COST["folder"])
    pieces.add({"what": "mailbox", "where": where, "links": folders}, 1, _COST["mailbox"])


def _entries(directories: Directories, where: layout.Parts) -> Iterator[tuple[str, bool]]:
    """Names that are text, and whether each is a directory; nothing where there is none."""
    with (
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        directories.open(where) as fd,
        os.scandir(fd) as found,
    ):
        for entry in found:
            with contextlib.suppress(UnicodeEncodeError):
                entry.name.encode()
                yield entry.name, entry.is_dir(follow_symlinks=False)


def rows(base: str, copy: str, scratch: str, *, compare: bool, cached: bool) -> Pieces:
    """Ranges of the tables: those to be joined with the files, and those to be compared with the index."""
    pieces = Pieces(scratch, "rows")
    with contextlib.closing(tables.connect(base)) as connection:
        for table in snapshots.TABLES:
            if table not in JOINED:
                continue
            for low, high in tables.ranges(connection, table):
                pieces.add({"what": "base", "table": table, "low": low, "high": high}, 1, _WEIGHT // 2)
        if compare:
            for table in COMPARED:
                for low, high in tables.ranges(connection, table):
                    pieces.add({"what": "compare", "table": table, "low": low, "high": high}, 1, _WEIGHT // 8)
    if cached:
        with contextlib.closing(tables.connect(copy)) as connection:
            for low, high in tables.ranges(connection, "cache_messages", tables.RANGE_ROWS // 4):
                pieces.add({"what": "cache", "low": low, "high": high}, 1, _WEIGHT // 2)
    pieces.flush()
    return pieces
