"""Partition the work of a scan into tasks of bounded size, whatever the shape of the store.

Directories are listed incrementally; a large one is split over many partitions, many small ones share one. A partition
is a small file in the run's scratch directory, so that neither the driver nor Spark's plan holds the names of a store.

Content is partitioned by ranges of names. The rows are therefore in order, and a later inspection assigns a file to the
same partition again, so that it can reuse the rows of unchanged files.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import structs

from adapter.maintenance.expected import tables
from adapter.maintenance.findings import unreadable_cause
from adapter.maintenance.scan import items
from adapter.maintenance.scan.index_compare import COMPARED
from adapter.maintenance.scan.items import (
    BlobItem,
    CompareItem,
    FolderItem,
    Item,
    LinkItem,
    MailboxItem,
    MessageItem,
    TableItem,
)
from adapter.maintenance.scan.rows import reusable_stamp
from adapter.store import disk, layout, names, snapshots
from adapter.store.disk import Directories

Unlistable = dict[layout.Parts, str]  # directory -> why it cannot be listed

#: Tables that are compared or joined with the files on disk.
JOINED = {"mailbox_registrations", "folders", "mailbox_projections", "message_attachments", "messages", "damaged_parts"}
_MAX_WEIGHT = 8_000  # of one partition of mailboxes: about the number of links
_NAMES_PER_ITEM = 1000
_FOLDER_WEIGHT, _MAILBOX_WEIGHT = 2, 1
_MAX_FILES, _MIN_FILES = 4000, 250  # content files of one partition: at most about a second of work
_MIN_CONTENT_PARTITIONS = 10  # for content, if the store is too small for partitions of the maximum size
_MAX_BUFFERED_NAMES = 20_000
_SAMPLE_NAMES = 4000  # names of a directory that are sampled to choose the range borders
_MAX_RANGE_ROWS, _MIN_RANGE_ROWS = 20_000, 5_000  # of a range of a table
_MIN_TABLE_RANGES = 4  # of a table, if the store is too small for ranges of the maximum size
_OPEN_COST_ROWS = 500  # cost of opening a table, in rows


class Partitions:
    """Writer of partition files, with a count of their entries by kind. An item is one line of JSON."""

    def __init__(self, scratch: str, prefix: str) -> None:
        self._directory = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._scratch = scratch
        self._prefix = prefix
        self._buffered: dict[int, list[bytes]] = {}
        self._written: set[int] = set()
        self._weight = 0
        self._number = 0
        self.counts: dict[str, int] = {}

    @property
    def paths(self) -> list[str]:
        return [f"{self._scratch}/{self._name(number)}" for number in sorted(self._written)]

    def add(self, item: Item, count: int, weight: int, limit: int) -> None:
        """Add an item to the current partition; start the next one when its weight reaches ``limit``."""
        self.add_to(self._number, item, count)
        self._weight += weight
        if self._weight >= limit:
            self.flush()
            self._number, self._weight = self._number + 1, 0

    def reserve(self, count: int) -> int:
        """Close the current partition, reserve ``count`` partition numbers, and return the first."""
        first = self._number + (1 if self._weight else 0)
        self._number, self._weight = first + count, 0
        return first

    def add_to(self, number: int, item: Item, count: int) -> None:
        self._buffered.setdefault(number, []).append(items.encode(item) + b"\n")
        self.counts[item.part] = self.counts.get(item.part, 0) + count

    def flush(self) -> None:
        for number, lines in self._buffered.items():
            fd = disk.open_append(self._directory, self._name(number))
            try:
                disk.write_all(fd, b"".join(lines))
            finally:
                os.close(fd)
            self._written.add(number)
        self._buffered.clear()

    def close(self) -> None:
        self.flush()
        os.close(self._directory)

    def _name(self, number: int) -> str:
        return f"{self._prefix}-{number:06d}.json"


@dataclass(slots=True)
class Assignment:
    """The partitions of each content directory: the number of the first, and the names at which the others start.

    Content directories are days and digest prefixes, so there are few.
    """

    partitions: dict[layout.Parts, tuple[int, list[str]]] = field(default_factory=dict)
    used: int = 0  # number of partitions assigned
    filled: int = 0  # files in the last partition, if directories share it

    def assign(self, where: layout.Parts, count: int, size: int, sample: list[str]) -> None:
        if where in self.partitions:
            return
        if count > size:
            buckets = -(-count // size)
            sample.sort()
            self.partitions[where] = (self.used, [sample[at * len(sample) // buckets] for at in range(1, buckets)])
            self.used, self.filled = self.used + buckets, size
            return
        if not self.used or self.filled + count > size:
            self.used, self.filled = self.used + 1, 0
        self.partitions[where] = (self.used - 1, [])
        self.filled += count


class _Tree(Directories):
    """The directories of a store; collects the directories that cannot be listed, with the cause."""

    def __init__(self, root: str, unlistable: Unlistable | None) -> None:
        super().__init__(root)
        self.unlistable: Unlistable = {} if unlistable is None else unlistable


def partition_content(
    root: str, scratch: str, assignment: Assignment, unlistable: Unlistable | None = None
) -> Partitions:
    """Partition the files below messages/ and attachments/. An existing ``assignment`` is kept.

    Directories that cannot be listed are added to ``unlistable`` with the cause.
    """
    partitions = Partitions(scratch, "content")
    with contextlib.closing(_Tree(root, unlistable)) as directories:
        content_directories = [
            (item_type, where, sum(1 for _ in _files(directories, where)))
            for item_type, top in ((MessageItem, layout.MESSAGES), (BlobItem, layout.ATTACHMENTS))
            for where in (top, *sorted((*top, name) for name, inside in _entries(directories, top) if inside))
        ]
        file_count = sum(count for _, _, count in content_directories)
        size = min(_MAX_FILES, max(_MIN_FILES, file_count // _MIN_CONTENT_PARTITIONS))
        for item_type, where, count in content_directories:
            if count:
                every = -(-count // _SAMPLE_NAMES)
                sample = [*itertools.islice(_files(directories, where), 0, None, every)] if count > size else []
                assignment.assign(where, count, size, sample)
                _add_content(directories, partitions, item_type, where, *assignment.partitions[where])
    partitions.close()
    return partitions


def _add_content(
    directories: _Tree,
    partitions: Partitions,
    item_type: type[MessageItem | BlobItem],
    where: layout.Parts,
    first: int,
    starts: list[str],
) -> None:
    buffered: dict[int, list[str]] = {}

    def flush() -> None:
        for number, file_names in buffered.items():
            partitions.add_to(number, item_type(where, file_names), len(file_names))
        partitions.flush()
        buffered.clear()

    for count, name in enumerate(_files(directories, where), 1):
        buffered.setdefault(first + bisect_right(starts, name), []).append(name)
        if count % _MAX_BUFFERED_NAMES == 0:
            flush()
    flush()


def _files(directories: _Tree, where: layout.Parts) -> Iterator[str]:
    """Names in a content directory. A directory inside a day's directory is a stray, like any other file there."""
    top = len(where) == 1
    return (name for name, inside in _entries(directories, where) if not (top and inside))


def partition_mailboxes(root: str, scratch: str, unlistable: Unlistable | None = None) -> list[Partitions]:
    """Partition the entries below mailboxes/: links, and the folders and mailboxes themselves.

    A link cannot change unless its directory does. Link partitions record the stamp of each directory, and a later
    inspection reuses all rows of a partition that is the same.
    """
    links, folders = Partitions(scratch, "links"), Partitions(scratch, "folders")
    with contextlib.closing(_Tree(root, unlistable)) as directories:
        for mailbox, inside in _entries(directories, layout.MAILBOXES):
            if inside:
                _add_mailbox(directories, links, folders, mailbox)
    links.close()
    folders.close()
    return [links, folders]


def _add_mailbox(directories: _Tree, links: Partitions, folders: Partitions, mailbox: str) -> None:
    where = layout.mailbox_directory(mailbox)
    count = 0
    for entry, inside in _entries(directories, where):
        if inside:
            count += 1
            folder = (*where, entry)
            link_count = _add_links(directories, links, folder)
            folders.add(FolderItem(folder, link_count), 1, _FOLDER_WEIGHT, _MAX_WEIGHT)
    folders.add(MailboxItem(where, count), 1, _MAILBOX_WEIGHT, _MAX_WEIGHT)


def _add_links(directories: _Tree, partitions: Partitions, where: layout.Parts) -> int:
    """Partition the links of a folder, a large one by UID ranges: links created together are close on disk."""
    with _recording_unlistable(directories, where), directories.open(where) as fd:
        stamp = reusable_stamp(os.fstat(fd))
        count, every = 0, 1
        sample: list[str] = []
        for count, name in enumerate(_link_names(directories, where), 1):
            if count % every == 0:
                sample.append(name)
            if len(sample) > _MAX_WEIGHT:
                del sample[::2]
                every *= 2
        if every == 1:
            _put_links(partitions, where, stamp, sample)
            return count
        buckets = -(-count // _MAX_WEIGHT)
        sample.sort(key=_by_uid)
        starts = [_by_uid(sample[at * len(sample) // buckets]) for at in range(1, buckets)]
        first = partitions.reserve(buckets)
        buffered: dict[int, list[str]] = {}
        for number, name in enumerate(_link_names(directories, where), 1):
            buffered.setdefault(first + bisect_right(starts, _by_uid(name)), []).append(name)
            if number % _MAX_BUFFERED_NAMES == 0:
                _put_many_links(partitions, where, stamp, buffered)
        _put_many_links(partitions, where, stamp, buffered)
        return count
    return 0


def _link_names(directories: _Tree, where: layout.Parts) -> Iterator[str]:
    return (name for name, _ in _entries(directories, where) if layout.PROJECTION.match(name))


def uid_of(link: str) -> int:
    return int(link[: link.index("-")])


def _by_uid(link: str) -> tuple[int, str]:
    return uid_of(link), link


def _put_links(partitions: Partitions, where: layout.Parts, stamp: str, link_names: list[str]) -> None:
    for at in range(0, len(link_names), _NAMES_PER_ITEM):
        some = link_names[at : at + _NAMES_PER_ITEM]
        partitions.add(LinkItem(where, stamp, some), len(some), len(some), _MAX_WEIGHT)


def _put_many_links(partitions: Partitions, where: layout.Parts, stamp: str, buffered: dict[int, list[str]]) -> None:
    for number, link_names in buffered.items():
        partitions.add_to(number, LinkItem(where, stamp, link_names), len(link_names))
    partitions.flush()
    buffered.clear()


def _entries(directories: _Tree, where: layout.Parts) -> Iterator[tuple[str, bool]]:
    """(name, is a directory) of each entry with a valid UTF-8 name; nothing if the directory does not exist."""
    with (
        _recording_unlistable(directories, where),
        directories.open(where) as fd,
        os.scandir(fd) as entries,
    ):
        for entry in entries:
            if entry.name.isascii() or names.is_text(entry.name):
                yield entry.name, entry.is_dir(follow_symlinks=False)


@contextlib.contextmanager
def _recording_unlistable(directories: _Tree, where: layout.Parts) -> Iterator[None]:
    """List a directory in the block: a missing one counts as empty, an unreadable one is recorded."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if not (why := unreadable_cause(error)):
            raise
        directories.unlistable[where] = why


# --- tables ----------------------------------------------------------------------------------------------------------


def partition_tables(
    base: str, scratch: str, messages: int, *, detail: bool, has_base_sums: bool, has_index: bool
) -> Partitions:
    """Partition the tables of a store with ``messages`` messages into ranges of keys.

    ``detail``: read rows instead of sums, and do not compare again. ``has_base_sums``: skip the tables at ``base``
    because their sums are available. ``has_index``: the copy of the index can be compared and its cache read.
    """
    partitions = Partitions(scratch, "details" if detail else "tables")
    size = min(_MAX_RANGE_ROWS, max(_MIN_RANGE_ROWS, messages // _MIN_TABLE_RANGES))
    with contextlib.closing(tables.connect(base)) as connection:
        for table in snapshots.TABLES:
            if table not in JOINED or has_base_sums:
                continue
            keys = ["sha256"] if table == "message_attachments" else tables.keys(connection, table)
            _add_ranges(partitions, connection, TableItem(table, keys, detail), size)
        if has_index:  # the ranges come from messages: it has the same key, and smaller rows than the cache
            item = TableItem("cache_messages", ["message_id"], detail, is_copy=True)
            _add_ranges(partitions, connection, item, size, "messages")
        for table in COMPARED if has_index and not detail else ():
            keys = tables.keys(connection, table)
            _add_ranges(partitions, connection, CompareItem(table, keys), size)
    partitions.close()
    return partitions


def _add_ranges(
    partitions: Partitions,
    connection: sqlite3.Connection,
    item: TableItem | CompareItem,
    size: int,
    range_table: str = "",
) -> None:
    """Add the ranges of the item's table, with the borders of ``range_table`` if given."""
    for low, high, count in tables.ranges(connection, range_table or item.table, item.keys, size):
        partitions.add(structs.replace(item, low=low, high=high), 1, max(count, _OPEN_COST_ROWS), 2 * size)
