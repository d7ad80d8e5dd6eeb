"""Bulk replay: apply the effects of many deliveries with a few SQL statements.

The result equals that of :mod:`adapter.transport.apply`, one effect at a time; every check compares the two, because
the index was written by the latter. Before any other effect is applied, the buffered deliveries are flushed.

Thread names and Message-IDs arrive in random order: each row would touch a different page of their B-trees, and once
these exceed SQLite's cache, every message costs several page reads and writes. Thread summaries are therefore sorted
and written in large batches, and the other two indexes are created at the end, or when an effect needs them.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from adapter.store.effects import AddContent, Effect, Project, RequestDsn, Unproject
from adapter.store.flags import Flag
from adapter.store.queries import outbox

_MAX_BUFFERED_ROWS = 2000
_MAX_BUFFERED_THREADS = 100_000
_UNORDERED_INDEXES = ("messages_by_header_id", "messages_by_thread")
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
_READ, _DELETED = int(Flag.READ), int(Flag.DELETED)


class BulkReplay:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._postponed: list[str] = []  # statements that create indexes
        self._threads: dict[tuple[str, str], list[Any]] = {}
        self._start()

    def postpone_indexes(self) -> None:
        for name in _UNORDERED_INDEXES:
            (statement,) = self._connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()
            self._connection.execute(f"DROP INDEX {name}")
            self._postponed.append(statement)

    def finish(self) -> None:
        """Flush all buffers and create the indexes."""
        self.flush()
        self._make_indexes()

    def _make_indexes(self) -> None:
        for statement in self._postponed:
            self._connection.execute(statement)
        self._postponed.clear()

    def _start(self) -> None:
        self._messages: list[_Row] = []
        self._recipients: list[_Row] = []
        self._attachments: list[_Row] = []
        self._projections: list[_Row] = []
        self._states: list[_Row] = []
        self._dsn_requests: list[RequestDsn] = []
        self._threads_and_sizes: dict[str, tuple[str, int]] = {}  # message -> thread, size
        self._folders: dict[int, list[int]] = {}

    def take(self, effect: Effect) -> bool:
        """Buffer an effect of a delivery and return True; for any other effect, flush the buffers and return False."""
        match effect:
            case AddContent():
                self._content(effect)
            case Project():
                self._project(effect)
            case RequestDsn():
                self._dsn_requests.append(effect)
            case _:
                self.flush()
                if isinstance(effect, Unproject):  # the only one that asks for messages by anything but their ids
                    self._make_indexes()
                return False
        if len(self._messages) >= _MAX_BUFFERED_ROWS or len(self._projections) >= _MAX_BUFFERED_ROWS:
            self._flush_rows()
        if len(self._threads) >= _MAX_BUFFERED_THREADS:
            self._flush_threads()
        return True

    def _content(self, effect: AddContent) -> None:
        message_id, thread, size = effect.message_id, effect.thread, effect.size
        self._threads_and_sizes[message_id] = thread, size
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
            thread, size = self._threads_and_sizes.get(message_id) or self._look_up(message_id)
            unseen = 0 if flags & _READ else 1
            counts[2] += 1
            counts[3] += unseen
            counts[4] += 1 if flags & _DELETED else 0
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
            raise ValueError(f"{message_id} is not in the tables")
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
        outbox.request_dsn(self._connection, self._dsn_requests)
        many(_FOLDER, [(*counts, folder) for folder, counts in self._folders.items()])
        self._start()

    def _flush_threads(self) -> None:
        if self._threads:
            rows = [(*key, *self._threads[key]) for key in sorted(self._threads)]
            self._connection.executemany(_THREAD, rows)
            self._threads.clear()
