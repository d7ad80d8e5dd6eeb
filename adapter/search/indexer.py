"""Fills the text index in the background, one thread for each process.

Messages that came, and those that somebody looked for, go first; then everything that is older, the newest first. The
thread takes its time: while mail comes in it waits, since it would slow that down, and it lets others run between two
messages. What it has not got to yet, searches read for themselves.
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

import orjson

from adapter.search.text_index import LONGEST, NewText, TextIndex
from adapter.search.text_source import TextReader
from adapter.transport.transport import Transport
from protocol.errors import MailError

_log = logging.getLogger(__name__)

# Messages of one transaction.
_BATCH = 128
# Seconds without new mail before it begins, unless so many messages wait that a search would take long.
_CALM = 1.0
_MANY = 2000
# Between two transactions and between two messages.
_PAUSE = 0.05
_BREATH = 0.0002
# Messages that are looked up at once, when looking for those that lack.
_PAGE = 1000
# Beyond so many that wait, older ones are found again by going through all.
_MOST_WAITING = 20_000
_NICENESS = 10

_OLDER = """
SELECT message_id FROM messages WHERE message_id < ? AND file_sha256 <> '' AND unlinked_at IS NULL
ORDER BY message_id DESC LIMIT ?
"""
_OWNERS = """
SELECT p.message_id, min(f.registration_id) FROM mailbox_projections p JOIN folders f USING (folder_id)
WHERE p.message_id IN (SELECT value FROM json_each(?)) GROUP BY p.message_id
"""


class TextFiller:
    def __init__(self, transport: Transport, index: TextIndex, reader: TextReader) -> None:
        self._transport = transport
        self._index = index
        self._reader = reader
        self._mutex = threading.Lock()
        self._waiting: dict[str, None] = {}  # in the order of their coming
        self._gone: list[str] = []
        self._last_came = 0.0
        self._before: str | None = "~"  # all newer messages were looked up; sorts after every id. None: all were
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
        """These lack, or may lack, in the index."""
        with self._mutex:
            if len(self._waiting) < _MOST_WAITING:
                self._waiting.update(dict.fromkeys(message_ids))
        if message_ids:
            self._last_came = time.monotonic()
            self._wake.set()

    def remove(self, message_ids: Collection[str]) -> None:
        """The content of these is no more."""
        with self._mutex:
            self._gone += message_ids
        if message_ids:
            self._wake.set()

    # --- on its thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while not self._stopping.is_set():
            self._wait_for_calm()
            try:
                if self._fill_waiting() or self._fill_older():
                    continue
            except (MailError, OSError, sqlite3.Error):
                _log.exception("filling the text index failed; it will go on")
            self._index.shrink()
            self._wake.wait()
            self._wake.clear()

    def _wait_for_calm(self) -> None:
        while len(self._waiting) < _MANY and (left := self._last_came + _CALM - time.monotonic()) > 0:
            if self._stopping.wait(left):
                return

    def _fill_waiting(self) -> bool:
        """Index some of those that wait; False if none do."""
        with self._mutex:
            gone, self._gone = self._gone, []
            batch = list(islice(self._waiting, _BATCH))
            for message_id in batch:
                del self._waiting[message_id]
        if gone:
            self._index.remove(gone)
        if batch:
            self._fill(batch)
        return bool(batch or gone)

    def _fill_older(self) -> bool:
        """Index what lacks of the next older messages; False if there are none."""
        if self._before is None:
            return False
        page = [row[0] for row in self._transport.index.query(_OLDER, (self._before, _PAGE))]
        self._before = page[-1] if page else None
        known = self._index.rows(page)
        self.add([message_id for message_id in page if message_id not in known])
        return self._before is not None

    def _fill(self, message_ids: Sequence[str]) -> None:
        self._index.add(message_ids, self._make)
        self._stopping.wait(_PAUSE)

    def _make(self, message_ids: list[str]) -> Iterator[NewText]:
        owners = dict(self._transport.index.query(_OWNERS, (orjson.dumps(message_ids).decode(),)))
        for message_id in message_ids:
            if message_id not in owners or self._stopping.is_set():
                continue
            for text in self._reader.extract([message_id], longest=LONGEST).values():
                yield NewText(message_id, owners[message_id], text)
            time.sleep(_BREATH)
