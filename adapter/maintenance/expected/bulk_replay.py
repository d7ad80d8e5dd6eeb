"""Deliveries of a replay, many at a time: what the effects of each do to the rows, in a few statements for all.

The outcome is that of :mod:`adapter.transport.apply`, one after the other; every check compares the two, since the
index was written by those. Whatever is not a delivery waits until what was taken before is done.

Names of threads and Message-IDs come in no order: each row would touch another page of their trees, and once those do
not fit into SQLite's cache, every message costs several pages read and written. So summaries of threads are put in
order, many at a time, and the other two indexes are made of all rows at the end, or when an effect needs them.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from adapter.store.effects import AddContent, Effect, Project, RequestDsn, Unproject
from adapter.transport.apply import dsn_requests

_WAITING = 2000  # deliveries
_WAITING_THREADS = 100_000
_UNORDERED = ("messages_by_header_id", "messages_by_thread")
_FOLDER = """
UPDATE folders SET uidnext = max(uidnext, ?), highestmodseq = max(highestmodseq, ?), messages = messages + ?,
    unseen = unseen + ?, deleted = deleted + ?, size = size + ? WHERE folder_id = ?
"""
_THREAD = """
INSERT INTO thread_summaries VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    messages = thread_summaries.messages + excluded.messages, unread = thread_summaries.unread + excluded.unread,
    latest_message_id = max(latest_message_id, excluded.latest_message_id)
"""
_Row = tuple[Any, ...]


class Bulk:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._later: list[str] = []  # statements that make indexes
        self._threads: dict[tuple[str, str], list[Any]] = {}
        self._start()

    def postpone_indexes(self) -> None:
        for name in _UNORDERED:
            (statement,) = self._connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()
            self._connection.execute(f"DROP INDEX {name}")
            self._later.append(statement)

    def finish(self) -> None:
        """Everything is in place."""
        self.flush()
        self._make_indexes()

    def _make_indexes(self) -> None:
        for statement in self._later:
            self._connection.execute(statement)
        self._later.clear()

    def _start(self) -> None:
        self._messages: list[_Row] = []
        self._recipients: list[_Row] = []
        self._attachments: list[_Row] = []
        self._projections: list[_Row] = []
        self._states: list[_Row] = []
        self._dsn_requests: list[_Row] = []
        self._about: dict[str, tuple[str, int]] = {}  # message -> its thread and size
        self._folders: dict[int, list[int]] = {}

    def take(self, effect: Effect) -> bool:
        """Whether the effect is part of a delivery; if so it happens now or later, else everything before it has."""
        match effect:
            case AddContent():
                self._content(effect)
            case Project():
                self._project(effect)
            case RequestDsn():
                self._dsn_requests += dsn_requests.rows(effect)
            case _:
                self.flush()
                if isinstance(effect, Unproject):  # the only one that asks for messages by anything but their ids
                    self._make_indexes()
                return False
        if len(self._messages) >= _WAITING or len(self._projections) >= _WAITING:
            self._flush_rows()
        if len(self._threads) >= _WAITING_THREADS:
            self._flush_threads()
        return True

    def _content(self, effect: AddContent) -> None:
        message_id, thread, size = effect.message_id, effect.thread, effect.size
        self._about[message_id] = thread, size
        self._messages.append(
            (
                message_id,
                effect.arrived,
                effect.sender,
                effect.header_from,
                effect.subject,
                effect.header_id,
                thread,
                size,
                effect.wire_sha256,
                effect.file_sha256,
            )
        )
        for each in effect.recipients:
            self._recipients.append((message_id, each.address, each.kind))
        for position, item in enumerate(effect.attachments):
            self._attachments.append((message_id, position, item.sha256, item.kind, item.name, item.type, item.size))

    def _project(self, effect: Project) -> None:
        folder, modseq, rows = effect.folder, effect.modseq, effect.rows
        counts = self._folders.setdefault(folder, [0, 0, 0, 0, 0, 0])
        counts[0] = max(counts[0], rows[-1].uid + 1)
        counts[1] = max(counts[1], modseq)
        for row in rows:
            message_id, flags = row.message_id, row.flags
            self._projections.append((folder, row.uid, message_id, row.internal_date, row.saved_at))
            self._states.append((folder, row.uid, flags, row.keywords, modseq))
            thread, size = self._about.get(message_id) or self._look_up(message_id)
            unseen = 1 - (flags & 1)
            counts[2] += 1
            counts[3] += unseen
            counts[4] += (flags >> 3) & 1
            counts[5] += size
            summary = self._threads.setdefault((effect.registration, thread), [0, 0, ""])
            summary[0] += 1
            summary[1] += unseen
            summary[2] = max(summary[2], message_id)

    def _look_up(self, message_id: str) -> tuple[str, int]:
        row = self._connection.execute(
            "SELECT thread_id, size FROM messages WHERE message_id = ?", (message_id,)
        ).fetchone()
        if row is None:
            raise ValueError(f"{message_id} is not known")
        return row[0], row[1]

    def flush(self) -> None:
        self._flush_rows()
        self._flush_threads()

    def _flush_rows(self) -> None:
        if not (self._messages or self._projections or self._dsn_requests):
            return
        many = self._connection.executemany
        many("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)", self._messages)
        many("INSERT INTO message_recipients VALUES (?, ?, ?)", self._recipients)
        many("INSERT OR IGNORE INTO attachments VALUES (?, ?)", [(row[2], row[6]) for row in self._attachments])
        many("INSERT INTO message_attachments VALUES (?, ?, ?, ?, ?, ?, ?)", self._attachments)
        many("INSERT INTO mailbox_projections VALUES (?, ?, ?, ?, ?)", self._projections)
        many("INSERT INTO mailbox_state (folder_id, uid, flags, keywords, modseq) VALUES (?, ?, ?, ?, ?)", self._states)
        many(dsn_requests.INSERT, self._dsn_requests)
        many(_FOLDER, [(*counts, folder) for folder, counts in self._folders.items()])
        self._start()

    def _flush_threads(self) -> None:
        if self._threads:
            rows = [(*key, *self._threads[key]) for key in sorted(self._threads)]
            self._connection.executemany(_THREAD, rows)
            self._threads.clear()
