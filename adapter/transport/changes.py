"""The change feed: committed operations, in order, for whoever wants to know.

One thread per open store follows the journal: woken by the writer for this process's commits, by inotify for those of
other processes, and by a slow poll where inotify is not to be had. A record is passed on only when the index has
applied it, so that a subscriber always finds what the record speaks of, and a batch that was aborted is never seen.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import sqlite3
import threading
from collections.abc import Callable, Iterator

from inotify_simple import INotify, flags

from adapter.store.disk import Directories
from adapter.store.index import Index
from adapter.store.journal import Journal, JournalDamaged, JournalTail, Record, without_aborted

_log = logging.getLogger(__name__)

_POLL = 0.25  # seconds, where inotify does not tell

Listener = Callable[[list[Record]], None]


class Subscription:
    """Calls ``listener`` with lists of records, on the feed's thread; it must return quickly and not raise."""

    def __init__(self, feed: ChangeFeed, listener: Listener, after: int) -> None:
        self._feed = feed
        self._listener = listener
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


class ChangeFeed:
    def __init__(self, directories: Directories, index: Index) -> None:
        self._directories = directories
        self._index = index
        self._journal = Journal(directories)  # for reading only
        self._mutex = threading.RLock()  # a listener may end its own subscription, or begin another
        self._subscriptions: list[Subscription] = []
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._tail: JournalTail | None = None

    def subscribe(self, listener: Listener, after: int | None = None) -> Subscription:
        """Hear of every record after ``after`` (by default: from now on).

        Raises :class:`~adapter.store.journal.JournalDamaged` if the journal no longer reaches back that far: the
        subscriber then has to look at the store as it is.
        """
        with self._mutex:
            applied = self._index.applied_seq()
            subscription = Subscription(self, listener, applied if after is None else after)
            if subscription.seq < applied:
                subscription.deliver(list(without_aborted(self._journal.records(subscription.seq, applied))))
            self._subscriptions.append(subscription)
            if self._thread is None:
                self._tail = JournalTail(self._journal, self._directories, applied)
                self._thread = threading.Thread(target=self._follow, name="markpost-changes", daemon=True)
                self._thread.start()
        return subscription

    def remove(self, subscription: Subscription) -> None:
        with self._mutex, contextlib.suppress(ValueError):
            self._subscriptions.remove(subscription)

    def notify(self) -> None:
        """This process committed something."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        self._stopping = True
        self.notify()
        if self._thread is not None:
            self._thread.join()
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
                try:
                    self._deliver()
                except (OSError, sqlite3.Error, JournalDamaged):
                    _log.exception("the change feed cannot read on; it will try again")

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
            records = self._tail.advance(applied)
            for subscription in list(self._subscriptions):
                subscription.deliver(records)


def watch(feed: ChangeFeed, after: int | None = None) -> Iterator[Record]:
    """Records as they come, for a thread that has nothing else to do; close the generator to stop."""
    arrived: queue.SimpleQueue[list[Record]] = queue.SimpleQueue()
    subscription = feed.subscribe(arrived.put, after)
    try:
        while True:
            yield from arrived.get()
    finally:
        subscription.close()
