"""Text indexer: fills the text index in the background, one thread for each process.

New messages, and those that a search needed, come first; then all older ones, the newest first. The thread has low
priority: it waits while mail comes in and pauses between two messages. Searches read what is not indexed yet.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from adapter.search.text_index import MAX_INDEXED_CHARACTERS, NewText, TextIndex
from adapter.search.text_source import TextReader
from adapter.store.queries import messages
from adapter.transport.transport import Transport
from protocol.errors import MailError

_log = logging.getLogger(__name__)

_BATCH_MESSAGES = 128  # of one transaction
# It starts after this time without new mail, or when so many messages are queued that a search would take long.
_CALM_SECONDS = 1.0
_LONG_QUEUE = 2000
_BATCH_PAUSE_SECONDS = 0.05
_MESSAGE_PAUSE_SECONDS = 0.0002
_PAGE_MESSAGES = 1000  # looked up at once when going through older messages
_MAX_QUEUE = 20_000  # messages beyond it are found when going through older ones
_NICENESS = 10


class TextIndexer:
    def __init__(self, transport: Transport, index: TextIndex, reader: TextReader) -> None:
        self._transport = transport
        self._index = index
        self._reader = reader
        self._mutex = threading.Lock()
        self._queue: dict[str, None] = {}  # message ids in order of arrival
        self._removed: list[str] = []
        self._last_added = 0.0
        self._before: str | None = messages.AFTER_ALL_MESSAGES  # all newer ones were checked; None: all were
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="markpost-text-index", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def add(self, message_ids: Collection[str]) -> None:
        """Queue messages that the index may lack."""
        with self._mutex:
            if len(self._queue) < _MAX_QUEUE:
                self._queue.update(dict.fromkeys(message_ids))
        if message_ids:
            self._last_added = time.monotonic()
            self._wake.set()

    def remove(self, message_ids: Collection[str]) -> None:
        """Queue messages for removal: their content is gone."""
        with self._mutex:
            self._removed += message_ids
        if message_ids:
            self._wake.set()

    # --- on its thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while not self._stopping.is_set():
            self._wait_for_calm()
            try:
                if self._index_queued() or self._queue_older():
                    continue
            except (MailError, OSError, sqlite3.Error):
                _log.exception("text index: filling failed; retrying with the next message")
            self._index.shrink()
            self._wake.wait()
            self._wake.clear()

    def _wait_for_calm(self) -> None:
        while len(self._queue) < _LONG_QUEUE and (left := self._last_added + _CALM_SECONDS - time.monotonic()) > 0:
            if self._stopping.wait(left):
                return

    def _index_queued(self) -> bool:
        """Index a batch of the queue; False if the queue is empty."""
        with self._mutex:
            removed, self._removed = self._removed, []
            batch = list(islice(self._queue, _BATCH_MESSAGES))
            for message_id in batch:
                del self._queue[message_id]
        if removed:
            self._index.remove(removed)
        if batch:
            self._index_batch(batch)
        return bool(batch or removed)

    def _queue_older(self) -> bool:
        """Queue those of the next older messages that are not indexed; False if there are no older ones."""
        if self._before is None:
            return False
        page = self._transport.index.ask(messages.older, self._before, _PAGE_MESSAGES)
        self._before = page[-1] if page else None
        indexed = self._index.rows(page)
        self.add([message_id for message_id in page if message_id not in indexed])
        return self._before is not None

    def _index_batch(self, message_ids: Sequence[str]) -> None:
        self._index.add(message_ids, self._extract)
        self._stopping.wait(_BATCH_PAUSE_SECONDS)

    def _extract(self, message_ids: list[str]) -> Iterator[NewText]:
        owners = self._transport.index.ask(messages.owners, message_ids)
        for message_id in message_ids:
            if message_id not in owners or self._stopping.is_set():
                continue
            for text in self._reader.extract([message_id], longest=MAX_INDEXED_CHARACTERS).values():
                yield NewText(message_id, owners[message_id], text)
            time.sleep(_MESSAGE_PAUSE_SECONDS)
