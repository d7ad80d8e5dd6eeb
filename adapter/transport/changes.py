"""The change feed: committed operations, in order, for subscribers.

One thread per open store follows the journal: woken by the writer for this process's commits, by inotify for those of
other processes, and by a slow poll where inotify is not available. A record is passed on only when the index has
applied it, so that a subscriber always finds the rows of the record, and an aborted batch is never passed on.

:meth:`ChangeFeed.when_caught_up` is for caches: before they answer they compare what they have seen with the published
sequence number (:mod:`adapter.store.published`) and, if they are behind, wait for one pass of the feed.

Compaction removes old records. A subscriber that is too far behind receives a *gap* instead of the removed records; it
reads the current state of the store and continues from there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from inotify_simple import INotify, flags

from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.store.effects import AddContent, Project
from adapter.store.index import Index
from adapter.store.journal import Journal, JournalDamaged, Record, decode, without_aborted
from adapter.store.published import PublishedSequence
from adapter.store.segments import Lines, decode_header, sequence

_log = logging.getLogger(__name__)

_POLL = 0.25  # seconds, without inotify

Listener = Callable[[list[Record]], None]
#: Records after the first number, up to the second, no longer exist.
GapListener = Callable[[int, int], None]
#: Called with the number of the last record that was passed on; None: the feed cannot read, or has ended.
CaughtUp = Callable[[int | None], None]


class JournalTail:
    """Follows the journal from a record on, without reading anything twice. Takes no lock."""

    def __init__(self, journal: Journal, directories: Directories, seq: int) -> None:
        self._directories = directories
        self.seq = seq
        self._segment = max((first for first in journal.segments() if first <= seq + 1), default=seq + 1)
        self._offset = 0
        if self._segment <= seq:
            for line in self._lines():
                self._offset += len(line)
                if sequence(line) >= seq:
                    break

    def advance(self, upto: int) -> list[Record]:
        """The records after the last call's, up to ``upto``, which must have been applied; aborted ones left out."""
        before = self.seq, self._segment, self._offset
        try:
            return list(without_aborted(iter(self._read(upto))))
        except BaseException:
            self.seq, self._segment, self._offset = before  # records that were not passed on are read again
            raise

    def _read(self, upto: int) -> list[Record]:
        records = []
        while self.seq < upto:
            before = self.seq
            for line in self._lines():
                if not self._offset:
                    decode_header(line)
                    self._offset = len(line)
                    continue
                record = decode(line)
                if record.seq != self.seq + 1:
                    raise JournalDamaged(f"record {self.seq + 1} is missing")
                records.append(record)
                self._offset += len(line)
                self.seq = record.seq
                if self.seq == upto:
                    break
            if self.seq < upto:
                if self.seq == before and self._segment == self.seq + 1:
                    raise JournalDamaged(f"records {self.seq + 1} to {upto} are missing")
                self._segment, self._offset = self.seq + 1, 0
        return records

    def _lines(self) -> Iterator[bytes]:
        with self._directories.stable(layout.JOURNAL) as directory:
            try:
                fd = disk.open_read(directory, layout.journal_segment(self._segment))
            except FileNotFoundError:
                return
        with Lines(fd, self._offset) as lines:
            yield from lines


class Gap(Exception):  # noqa: N818 - what happened, not a mistake
    """The records after ``after``, up to ``upto``, no longer exist: the index shows what they led to."""

    def __init__(self, after: int, upto: int) -> None:
        super().__init__(f"records {after + 1} to {upto} cannot be read")
        self.after = after
        self.upto = upto


class Subscription:
    """Calls ``listener`` with lists of records, on the feed's thread; it must return quickly and not raise.

    So must ``on_gap``, which is called where records were lost to the subscriber.
    """

    def __init__(self, feed: ChangeFeed, listener: Listener, after: int, on_gap: GapListener | None = None) -> None:
        self._feed = feed
        self._listener = listener
        self._on_gap = on_gap
        self.seq = after  # of the last record passed on

    def close(self) -> None:
        self._feed.remove(self)

    def deliver(self, records: list[Record]) -> None:
        fresh = [record for record in records if record.seq > self.seq]
        if fresh:
            self.seq = fresh[-1].seq
            try:
                self._listener(fresh)
            except Exception:
                _log.exception("a listener of the change feed failed")

    def skip(self, upto: int) -> None:
        """The records up to this one cannot be passed on."""
        after, self.seq = self.seq, max(self.seq, upto)
        if self._on_gap is not None and after < upto:
            try:
                self._on_gap(after, upto)
            except Exception:
                _log.exception("a listener of the change feed failed")


class ChangeFeed:
    def __init__(self, directories: Directories, index: Index, published: PublishedSequence) -> None:
        self._directories = directories
        self._index = index
        self._published = published
        self._journal = Journal(directories)  # for reading only
        self._mutex = threading.RLock()  # a listener may end its own subscription, or begin another
        self._subscriptions: list[Subscription] = []
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = False
        self._is_failing = False
        self._waiting: deque[CaughtUp] = deque()
        self._thread: threading.Thread | None = None
        self._tail: JournalTail | None = None
        self._passed_on = -1  # the last record that all listeners were given

    def subscribe(
        self, listener: Listener, after: int | None = None, on_gap: GapListener | None = None
    ) -> Subscription:
        """Subscribe to every record after ``after`` (by default: from now on).

        If the journal no longer reaches back that far, ``on_gap`` is called; without one,
        :class:`~adapter.store.journal.JournalDamaged` is raised.
        """
        with self._mutex:
            applied = self._index.applied_seq()
            subscription = Subscription(self, listener, applied if after is None else after, on_gap)
            if subscription.seq < applied:
                try:
                    subscription.deliver(list(without_aborted(self._journal.records(subscription.seq, applied))))
                except JournalDamaged:
                    if on_gap is None:
                        raise
                    subscription.skip(applied)
            self._subscriptions.append(subscription)
            if self._thread is None:
                self._tail = JournalTail(self._journal, self._directories, applied)
                self._passed_on = applied
                self._thread = threading.Thread(target=self._follow, name="markpost-changes", daemon=True)
                self._thread.start()
        return subscription

    def reader(self, after: int) -> FeedReader:
        """A reader of the records after ``after``, for a consumer that sets its own pace."""
        return FeedReader(self._directories, self._index, after)

    def remove(self, subscription: Subscription) -> None:
        with self._mutex, contextlib.suppress(ValueError):
            self._subscriptions.remove(subscription)

    def notify(self) -> None:
        """This process committed something."""
        os.eventfd_write(self._wake, 1)

    def when_caught_up(self, done: CaughtUp) -> None:
        """Call ``done`` when subscribers have been given every record that is applied now. Never blocks.

        It is called on the feed's thread, after the listeners, and must return quickly. There must be a subscription.
        """
        self._waiting.append(done)
        self.notify()

    def catch_up(self, patience: float) -> bool:
        """The same for a thread that can wait, if the feed is behind at all; False if that does not come about."""
        if self._passed_on >= self._published.get():
            return True
        reached: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.when_caught_up(reached.put)
        try:
            return reached.get(timeout=patience) is not None
        except queue.Empty:
            return False

    def close(self) -> None:
        self._stopping = True
        self.notify()
        if self._thread is not None:
            self._thread.join()
        self._answer(len(self._waiting), None)
        os.close(self._wake)

    def _follow(self) -> None:
        with contextlib.ExitStack() as scope:
            poller = select.poll()
            poller.register(self._wake, select.POLLIN)
            notifier = self._watch_index()
            if notifier is not None:
                scope.callback(notifier.close)
                poller.register(notifier.fileno(), select.POLLIN)
            while not self._stopping:
                poller.poll(_POLL * 1000)
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
                if notifier is not None:
                    notifier.read(timeout=0)
                waiting = len(self._waiting)  # those who ask from now on may want a record that this pass does not see
                self._answer(waiting, self._pass())

    def _pass(self) -> int | None:
        """Pass on what is applied; the number of the last record, None if it cannot be read."""
        try:
            self._deliver()
            self._published.follow()
        except (OSError, sqlite3.Error) as error:
            if not self._is_failing:  # every command of a session makes it try again
                _log.error("change feed: cannot read on (%s: %s); retrying", type(error).__name__, error)
            self._is_failing = True
            return None
        self._is_failing = False
        return self._passed_on

    def _answer(self, number: int, seq: int | None) -> None:
        for _ in range(number):
            try:
                self._waiting.popleft()(seq)
            except Exception:
                _log.exception("a listener of the change feed failed")

    def _watch_index(self) -> INotify | None:
        """A commit in rollback mode ends with the removal of the index's rollback journal."""
        try:
            notifier = INotify()
            notifier.add_watch(self._directories.root, flags.DELETE)
        except OSError as error:
            _log.warning("no inotify (%s): changes of other processes are polled for", error)
            return None
        return notifier

    def _deliver(self) -> None:
        with self._mutex:
            applied = self._index.applied_seq()
            if self._tail is None or applied <= self._tail.seq:
                return
            try:
                records = self._tail.advance(applied)
            except JournalDamaged as error:
                _log.warning("the change feed goes on at record %d: %s", applied + 1, error)
                self._tail = JournalTail(self._journal, self._directories, applied)
                for subscription in list(self._subscriptions):
                    subscription.skip(applied)
            else:
                for subscription in list(self._subscriptions):
                    subscription.deliver(records)
            self._passed_on = applied


class FeedReader:
    """The feed for a slow consumer: it reads the journal in small pieces and keeps nothing in memory.

    A record that was aborted right after may be among them: the index does not show its effects.
    """

    def __init__(self, directories: Directories, index: Index, after: int) -> None:
        self._directories = directories
        self._index = index
        self._tail: JournalTail | None = None
        self.seq = after  # of the last record given

    def read(self, most: int = 64) -> list[Record]:
        """The next records that are applied, none if there are none yet. Raises :class:`Gap`, and goes on behind it."""
        applied = self._index.applied_seq()
        if applied <= self.seq:
            return []
        try:
            if self._tail is None:
                self._tail = JournalTail(Journal(self._directories), self._directories, self.seq)
            records = self._tail.advance(min(applied, self.seq + most))
        except JournalDamaged as error:
            gap = Gap(self.seq, applied)
            self._tail, self.seq = None, applied
            raise gap from error
        self.seq = self._tail.seq
        return records


class Arrival(NamedTuple):
    """A new message in a folder."""

    registration: str
    folder: int
    folder_name: str
    uid: int
    message_id: str


def new_mail(record: Record) -> Iterator[Arrival]:
    """The new mail of a record. Messages that were here before, copied or moved, are not new."""
    brought = {effect.message_id for effect in record.effects if isinstance(effect, AddContent)}
    for effect in record.effects:
        if isinstance(effect, Project):
            for row in effect.rows:
                if row.message_id in brought:
                    yield Arrival(effect.registration, effect.folder, effect.name, row.uid, row.message_id)


def watch(feed: ChangeFeed, after: int | None = None) -> Iterator[Record]:
    """Records as they come, for a thread that has nothing else to do; close the generator to stop."""
    arrived: queue.SimpleQueue[list[Record]] = queue.SimpleQueue()
    subscription = feed.subscribe(arrived.put, after)
    try:
        while True:
            yield from arrived.get()
    finally:
        subscription.close()
