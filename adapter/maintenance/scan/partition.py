"""The work of a scan, cut into pieces of bounded size whatever the shape of the store.

Directories are listed incrementally; a long one is split over many pieces, many short ones share one. A piece is a
small file in the run's scratch directory, so that neither the driver nor Spark's plan holds the names of a store.

Content is cut by ranges of names, so that what is made of it comes in order, and so that a later look puts a file into
the same piece again: that look takes over what did not change.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from adapter.maintenance.diff.index import COMPARED
from adapter.maintenance.expected import tables
from adapter.maintenance.scan import unreadable
from adapter.maintenance.scan.rows import settled_stamp
from adapter.store import disk, layout, names, snapshots
from adapter.store.disk import Directories

Item = dict[str, Any]
Closed = dict[layout.Parts, str]  # directory -> why it cannot be listed

#: Tables whose rows are compared or joined with what lies on disk.
JOINED = {"mailbox_registrations", "folders", "mailbox_projections", "message_attachments", "messages", "damaged_parts"}
_WEIGHT = 8_000  # of one piece of mailboxes: about as many links
_NAMES = 1000  # of one item
_COST = {"folder": 2, "mailbox": 1}
_LARGEST, _SMALLEST = 4000, 250  # content files of one piece: about a second of work at most
_WANTED_PIECES = 10  # of content, in a store too small for the largest
_HELD_NAMES = 20_000
_SAMPLE = 4000  # names of a directory that tell how to cut it
_MOST_ROWS, _FEWEST_ROWS = 20_000, 5_000  # of a range of a table
_WANTED_RANGES = 4  # of a table, in a store too small for the largest
_LEAST_ROWS = 500  # what opening a table costs, in rows


class Pieces:
    """Piece files, and how much of what is in them. An item is one line of JSON."""

    def __init__(self, scratch: str, prefix: str) -> None:
        self._directory = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._scratch = scratch
        self._prefix = prefix
        self._waiting: dict[int, list[bytes]] = {}
        self._written: set[int] = set()
        self._weight = 0
        self._number = 0
        self.counts: dict[str, int] = {}

    @property
    def paths(self) -> list[str]:
        return [f"{self._scratch}/{self._name(number)}" for number in sorted(self._written)]

    def add(self, item: Item, count: int, weight: int, limit: int) -> None:
        """To the current piece, until that weighs ``limit``."""
        self.add_to(self._number, item, count)
        self._weight += weight
        if self._weight >= limit:
            self.flush()
            self._number, self._weight = self._number + 1, 0

    def reserve(self, count: int) -> int:
        """Numbers of pieces that :meth:`add` does not use; returns the first. What it was at is done."""
        first = self._number + (1 if self._weight else 0)
        self._number, self._weight = first + count, 0
        return first

    def add_to(self, number: int, item: Item, count: int) -> None:
        self._waiting.setdefault(number, []).append(orjson.dumps(item) + b"\n")
        self.counts[item["what"]] = self.counts.get(item["what"], 0) + count

    def flush(self) -> None:
        for number, lines in self._waiting.items():
            fd = disk.open_append(self._directory, self._name(number))
            try:
                disk.write_all(fd, b"".join(lines))
            finally:
                os.close(fd)
            self._written.add(number)
        self._waiting.clear()

    def close(self) -> None:
        self.flush()
        os.close(self._directory)

    def _name(self, number: int) -> str:
        return f"{self._prefix}-{number:06d}.json"


@dataclass(slots=True)
class Places:
    """Which pieces the content of a directory went to: the first, and the names at which the others start.

    Directories of content are days and prefixes of digests: few.
    """

    pieces: dict[layout.Parts, tuple[int, list[str]]] = field(default_factory=dict)
    used: int = 0  # pieces given out
    filled: int = 0  # files in the last one, if directories share it

    def assign(self, where: layout.Parts, count: int, size: int, sample: list[str]) -> None:
        if where in self.pieces:
            return
        if count > size:
            buckets = -(-count // size)
            sample.sort()
            self.pieces[where] = (self.used, [sample[at * len(sample) // buckets] for at in range(1, buckets)])
            self.used, self.filled = self.used + buckets, size
            return
        if not self.used or self.filled + count > size:
            self.used, self.filled = self.used + 1, 0
        self.pieces[where] = (self.used - 1, [])
        self.filled += count


class _Tree(Directories):
    """The directories of a store, with those that cannot be listed and why."""

    def __init__(self, root: str, closed: Closed | None) -> None:
        super().__init__(root)
        self.closed: Closed = {} if closed is None else closed


def content(root: str, scratch: str, places: Places, closed: Closed | None = None) -> Pieces:
    """Everything below messages/ and attachments/; ``places`` of an earlier look are kept to.

    ``closed`` gets the directories that cannot be listed, and why.
    """
    pieces = Pieces(scratch, "content")
    with contextlib.closing(_Tree(root, closed)) as directories:
        found = [
            (what, where, sum(1 for _ in _files(directories, where)))
            for what, top in (("message", layout.MESSAGES), ("blob", layout.ATTACHMENTS))
            for where in (top, *sorted((*top, name) for name, inside in _entries(directories, top) if inside))
        ]
        size = min(_LARGEST, max(_SMALLEST, sum(count for _, _, count in found) // _WANTED_PIECES))
        for what, where, count in found:
            if count:
                every = -(-count // _SAMPLE)
                sample = [*itertools.islice(_files(directories, where), 0, None, every)] if count > size else []
                places.assign(where, count, size, sample)
                _cut(directories, pieces, what, where, *places.pieces[where])
    pieces.close()
    return pieces


def _cut(directories: _Tree, pieces: Pieces, what: str, where: layout.Parts, first: int, starts: list[str]) -> None:
    waiting: dict[int, list[str]] = {}

    def put() -> None:
        for number, found in waiting.items():
            pieces.add_to(number, {"what": what, "where": where, "names": found}, len(found))
        pieces.flush()
        waiting.clear()

    for held, name in enumerate(_files(directories, where), 1):
        waiting.setdefault(first + bisect_right(starts, name), []).append(name)
        if held % _HELD_NAMES == 0:
            put()
    put()


def _files(directories: _Tree, where: layout.Parts) -> Iterator[str]:
    """Names in a directory of content; a directory inside a day's is a stray like any other file there."""
    top = len(where) == 1
    return (name for name, inside in _entries(directories, where) if not (top and inside))


def mailboxes(root: str, scratch: str, closed: Closed | None = None) -> list[Pieces]:
    """Everything below mailboxes/: links, and the folders and mailboxes themselves.

    A link cannot change unless the directory it is in does: pieces of links say of each directory what it was like, and
    a later look takes over all of a piece that is the same.
    """
    links, folders = Pieces(scratch, "links"), Pieces(scratch, "folders")
    with contextlib.closing(_Tree(root, closed)) as directories:
        for mailbox, inside in _entries(directories, layout.MAILBOXES):
            if inside:
                _mailbox(directories, links, folders, mailbox)
    links.close()
    folders.close()
    return [links, folders]


def _mailbox(directories: _Tree, links: Pieces, folders: Pieces, mailbox: str) -> None:
    where = layout.mailbox_directory(mailbox)
    count = 0
    for entry, inside in _entries(directories, where):
        if inside:
            count += 1
            folder = (*where, entry)
            shown = _links(directories, links, folder)
            folders.add({"what": "folder", "where": folder, "links": shown}, 1, _COST["folder"], _WEIGHT)
    folders.add({"what": "mailbox", "where": where, "links": count}, 1, _COST["mailbox"], _WEIGHT)


def _links(directories: _Tree, pieces: Pieces, where: layout.Parts) -> int:
    """The links of a folder; of a large one, by ranges of their UIDs: what was made together lies together on disk."""
    with _noting_closed(directories, where), directories.open(where) as fd:
        stamp = settled_stamp(os.fstat(fd))
        count, every = 0, 1
        sample: list[str] = []
        for count, name in enumerate(_link_names(directories, where), 1):
            if count % every == 0:
                sample.append(name)
            if len(sample) > _WEIGHT:
                del sample[::2]
                every *= 2
        if every == 1:
            _put_links(pieces, where, stamp, sample)
            return count
        buckets = -(-count // _WEIGHT)
        sample.sort(key=_by_uid)
        starts = [_by_uid(sample[at * len(sample) // buckets]) for at in range(1, buckets)]
        first = pieces.reserve(buckets)
        waiting: dict[int, list[str]] = {}
        for held, name in enumerate(_link_names(directories, where), 1):
            waiting.setdefault(first + bisect_right(starts, _by_uid(name)), []).append(name)
            if held % _HELD_NAMES == 0:
                _put_many_links(pieces, where, stamp, waiting)
        _put_many_links(pieces, where, stamp, waiting)
        return count
    return 0


def _link_names(directories: _Tree, where: layout.Parts) -> Iterator[str]:
    return (name for name, _ in _entries(directories, where) if layout.PROJECTION.match(name))


def uid_of(link: str) -> int:
    return int(link[: link.index("-")])


def _by_uid(link: str) -> tuple[int, str]:
    return uid_of(link), link


def _put_links(pieces: Pieces, where: layout.Parts, stamp: str, names: list[str]) -> None:
    for at in range(0, len(names), _NAMES):
        some = names[at : at + _NAMES]
        pieces.add({"what": "link", "where": where, "stamp": stamp, "names": some}, len(some), len(some), _WEIGHT)


def _put_many_links(pieces: Pieces, where: layout.Parts, stamp: str, waiting: dict[int, list[str]]) -> None:
    for number, found in waiting.items():
        pieces.add_to(number, {"what": "link", "where": where, "stamp": stamp, "names": found}, len(found))
    pieces.flush()
    waiting.clear()


def _entries(directories: _Tree, where: layout.Parts) -> Iterator[tuple[str, bool]]:
    """Names that are text, and whether each is a directory; nothing where there is none."""
    with (
        _noting_closed(directories, where),
        directories.open(where) as fd,
        os.scandir(fd) as found,
    ):
        for entry in found:
            if entry.name.isascii() or names.is_text(entry.name):
                yield entry.name, entry.is_dir(follow_symlinks=False)


@contextlib.contextmanager
def _noting_closed(directories: _Tree, where: layout.Parts) -> Iterator[None]:
    """Listing a directory: one that is gone is empty, one that cannot be read is noted."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if not (why := unreadable.cause(error)):
            raise
        directories.closed[where] = why


# --- tables ----------------------------------------------------------------------------------------------------------


def rows(base: str, scratch: str, messages: int, *, detail: bool, known: bool, index: bool) -> Pieces:
    """Ranges of the tables of a store with so many messages.

    ``detail``: their rows are wanted, not just their sums, and nothing is compared again. ``known``: the sums of those
    at ``base`` are. ``index``: there is one that can be compared, and whose cache can be read.
    """
    pieces = Pieces(scratch, "details" if detail else "tables")
    size = min(_MOST_ROWS, max(_FEWEST_ROWS, messages // _WANTED_RANGES))
    with contextlib.closing(tables.connect(base)) as connection:
        for table in snapshots.TABLES:
            if table not in JOINED or known:
                continue
            keys = ["sha256"] if table == "message_attachments" else tables.keys(connection, table)
            _ranges(pieces, connection, {"what": "base", "table": table, "keys": keys, "detail": detail}, size)
        if index:  # the rows of the cache are larger than those of the table with the same key
            item = {"what": "cache", "table": "cache_messages", "keys": ["message_id"], "detail": detail}
            _ranges(pieces, connection, item, size, "messages")
        for table in COMPARED if index and not detail else ():
            keys = tables.keys(connection, table)
            _ranges(pieces, connection, {"what": "compare", "table": table, "keys": keys}, size)
    pieces.close()
    return pieces


def _ranges(pieces: Pieces, connection: sqlite3.Connection, item: Item, size: int, like: str = "") -> None:
    """Ranges of the item's table; or those of another one with the same key."""
    for low, high, count in tables.ranges(connection, like or item["table"], item["keys"], size):
        pieces.add({**item, "low": low, "high": high}, 1, max(count, _LEAST_ROWS), 2 * size)
