"""Taking a backup of a store that is in use: as it was after one journal record, whole and coherent.

Content never changes and is taken over without a lock. Then the store is held still for as long as it takes to copy the
index and to open the journal; what those name and was not there before is taken over afterwards. What was removed in
between, which is rare, means another round. Links and identities are made from the copied index.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from adapter.backup import manifest, writer
from adapter.backup.content_tree import count, walk
from adapter.backup.manifest import Manifest
from adapter.backup.writer import Output
from adapter.store import disk, layout, snapshots, store_id
from adapter.store.disk import Directories
from adapter.transport.recovery import checkpoint, reconcile
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason

_PAGE = 5000
_ROUNDS = 5
_WAIT_FOR_SNAPSHOT = 60.0
_MESSAGES = "SELECT message_id FROM messages WHERE file_sha256 <> '' AND message_id > ? ORDER BY 1 LIMIT ?"
_BLOBS = "SELECT sha256 FROM attachments WHERE sha256 > ? ORDER BY 1 LIMIT ?"

Place = tuple[layout.Parts, str]
#: Runs a query and fetches all of it.
Query = Callable[[str, tuple[object, ...]], list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Taken:
    path: str
    manifest: Manifest
    copied: int  # octets that were not there before
    linked: int
    missing: list[str]  # content the store should have and has not


def take(root: str, destination: str, *, credentials: bool) -> Taken:
    """Raises MailError."""
    real = os.path.realpath(root)
    if os.path.commonpath((real, os.path.realpath(destination))) == real:
        raise MailError(Reason.NOT_ALLOWED, f"{destination} is inside of the store: put backups elsewhere")
    before = manifest.complete(destination)
    previous = f"{destination}/{before[-1]}" if before else None
    with (
        Transport.open(root) as transport,
        contextlib.closing(Directories(root)) as source,
        writer.unfinished(destination) as path,
        contextlib.closing(Output(path, previous)) as target,
    ):
        taker = _Taker(transport, source, target)
        seq, missing = taker.take(credentials=credentials)
        found = _describe(target.directories, seq, credentials=credentials)
        target.write((), manifest.FILE, found.encode(), 0o444)
        return Taken(writer.finish(path, seq), found, target.copied, target.linked, missing)


class _Taker:
    def __init__(self, transport: Transport, source: Directories, target: Output) -> None:
        self._transport = transport
        self._source = source
        self._target = target

    def take(self, *, credentials: bool) -> tuple[int, list[str]]:
        """The record it holds, and what was missing."""
        self._content(self._transport.index.query)
        store_id.write(self._target.directories, self._transport.store)
        for last_round in (number == _ROUNDS for number in range(1, _ROUNDS + 1)):
            seq = self._state()
            path = layout.absolute(self._target.directories.root, layout.INDEX_FILE)
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as index:
                missing = self._content(partial(_fetch, index))
                if last_round or not any(self._was_removed(place) for place in missing):
                    self._remove_others(index)
                    reconcile.lay_out(self._target.directories, index)
                    break
            self._forget_state()
        if credentials:
            self._credentials()
        self._tree(layout.QUARANTINE)
        checkpoint.write(self._target.directories, seq)
        lost = {row[0] for row in self._transport.index.query("SELECT part FROM damaged_parts WHERE part <> ''", ())}
        return seq, [layout.absolute(self._source.root, *parts, name) for parts, name in missing if name not in lost]

    # --- content: files that never change ----------------------------------------------------------------------------

    def _content(self, query: Query) -> list[Place]:
        """Take over what a table of contents names; returns what is not there."""
        return [place for place in _places(query) if not self._take(*place)]

    def _take(self, parts: layout.Parts, name: str) -> bool:
        try:
            with self._source.stable(parts) as directory:
                return self._target.take(parts, name, directory)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _was_removed(self, place: Place) -> bool:
        """Whether the store dropped it since; else it is lost, and another round would not find it."""
        return not self._transport.index.query(_known(place[0]), (_key(place[1]),))

    def _remove_others(self, index: sqlite3.Connection) -> None:
        """What was taken over before the state was, and is not named by it."""
        for top in (layout.MESSAGES, layout.ATTACHMENTS):
            with self._target.directories.stable(top, create=True):
                pass
            for entry in walk(self._target.directories, top):
                if entry.kind == "file" and not index.execute(_known(top), (_key(entry.name),)).fetchone():
                    self._target.remove(entry.parts, entry.name)

    # --- state: what changes --------------------------------------------------------------------------------------

    def _state(self) -> int:
        path = layout.absolute(self._target.directories.root, layout.INDEX_FILE)
        disk.make_private(path)
        with self._target.directories.stable(layout.JOURNAL, create=True):
            pass  # a store in which nothing has happened yet has no segments
        with self._without_snapshots_going(), contextlib.ExitStack() as opened:
            with contextlib.closing(sqlite3.connect(path)) as copy:
                copy.execute("PRAGMA synchronous=OFF")  # all of it is made durable at the end
                with self._transport.still() as journal:
                    seq = journal.last_seq
                    self._transport.index.writer.backup(copy)
                    newest, octets = journal.extent
                    segments = {first: self._open_segment(first, opened) for first in journal.segments()}
            self._target.copied += os.path.getsize(path)
            for seq_of_snapshot in snapshots.available(self._source):
                self._tree(layout.snapshot_directory(seq_of_snapshot))
            for first, fd in segments.items():
                name = layout.journal_segment(first)
                if first == newest:
                    self._target.copy(layout.JOURNAL, name, fd, octets)
                elif not self._take(layout.JOURNAL, name):  # compacted away by now
                    self._target.copy(layout.JOURNAL, name, fd)
        return seq

    def _open_segment(self, first: int, opened: contextlib.ExitStack) -> int:
        with self._source.stable(layout.JOURNAL) as directory:
            fd = disk.open_read(directory, layout.journal_segment(first))
        opened.callback(os.close, fd)
        return fd

    def _forget_state(self) -> None:
        """For another round. Content stays."""
        for top in (layout.JOURNAL, layout.SNAPSHOTS):
            for entry in [entry for entry in walk(self._target.directories, top) if entry.kind == "file"]:
                self._target.remove(entry.parts, entry.name)
        self._target.remove((), layout.INDEX_FILE)

    @contextlib.contextmanager
    def _without_snapshots_going(self) -> Iterator[None]:
        """Nobody writes or removes a snapshot for the length of the block."""
        with snapshots.writing_alone(self._source, _WAIT_FOR_SNAPSHOT) as alone:
            if not alone:
                raise MailError(Reason.LOCK_TIMEOUT, "a snapshot is being taken")
            yield

    def _tree(self, top: layout.Parts) -> None:
        """All files below a directory, none of which changes."""
        with contextlib.suppress(FileNotFoundError):
            for entry in walk(self._source, top):
                if entry.kind == "file":
                    self._take(entry.parts, entry.name)

    def _credentials(self) -> None:
        for name in layout.CREDENTIAL_FILES:
            with contextlib.suppress(FileNotFoundError), self._source.open(layout.CREDENTIALS) as directory:
                fd = disk.open_read(directory, name)
                try:
                    self._target.copy(layout.CREDENTIALS, name, fd)
                finally:
                    os.close(fd)


def _fetch(connection: sqlite3.Connection, sql: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
    return connection.execute(sql, values).fetchall()


def _places(query: Query) -> Iterator[Place]:
    """Where the content lies that the tables name."""
    for sql, place in ((_MESSAGES, _message), (_BLOBS, _blob)):
        last = ""
        while rows := query(sql, (last, _PAGE)):
            for (key,) in rows:
                yield place(key)
            last = rows[-1][0]


def _known(parts: layout.Parts) -> str:
    """Whether content that lies there is known, as a query for its key."""
    if parts[:1] == layout.ATTACHMENTS:
        return "SELECT 1 FROM attachments WHERE sha256 = ?"
    return "SELECT 1 FROM messages WHERE message_id = ? AND file_sha256 <> ''"


def _key(name: str) -> str:
    return name.removesuffix(".md")


def _message(message_id: str) -> Place:
    return layout.message_directory(message_id), layout.message_name(message_id)


def _blob(sha256: str) -> Place:
    return layout.blob_directory(sha256), sha256


def _describe(directories: Directories, seq: int, *, credentials: bool) -> Manifest:
    counted = count(walk(directories))
    return Manifest(
        version=layout.VERSION,
        seq=seq,
        taken=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        credentials=credentials,
        files=counted.files,
        octets=counted.octets,
        links=counted.links,
    )
