"""The transport: one open store. Everything above (servers, command line, programs) talks to this class.

    with Transport.open(root) as transport:
        staged = transport.stage(octets)
        delivery = transport.run(Deliver(staged, sender, recipients))

Mutations are operations, submitted from any thread or awaited from asyncio. Reads take no lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar, cast

from adapter.content.ingest import Buffer, ThreadKeys, default_thread
from adapter.store import disk, index, layout, locks, snapshots, store_id
from adapter.store.disk import Directories
from adapter.store.effects import Actor
from adapter.store.index import Index
from adapter.store.journal import Journal, Record
from adapter.store.locks import Locks
from adapter.store.published import PublishedSequence
from adapter.store.queries import content_rows, mailboxes, recent_marks
from adapter.transport import errors
from adapter.transport.changes import ChangeFeed
from adapter.transport.compaction import Compactor
from adapter.transport.content import ContentReader
from adapter.transport.operations.base import Operation
from adapter.transport.recovery import checkpoint, opening, rebuild, roll_forward
from adapter.transport.recovery.opening import check_root, open_root, refuse_offline
from adapter.transport.staging import Spool, Staged, StagingArea, is_in_use, remove_dead_sessions
from adapter.transport.writer import Writer
from protocol.errors import MailError, Reason

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

LOCK_TIMEOUT = 30.0
CHECKPOINT_SECONDS = 5.0
_REFERENCES_LOOKED_UP = 20
#: Of a program that does not name one.
PROGRAM = Actor("", "program")


class Transport:
    def __init__(self, root: str, lock_timeout: float = LOCK_TIMEOUT, actor: Actor = PROGRAM) -> None:
        self._actor = actor
        with contextlib.ExitStack() as scope:
            self._directories = scope.enter_context(contextlib.closing(open_root(root)))
            check_root(self._directories)
            self._locks = scope.enter_context(contextlib.closing(Locks(self._directories, lock_timeout)))
            refuse_offline(self._directories)
            self._locks.share_service()
            refuse_offline(self._directories)  # again: with the lock held, no process can take the store offline
            self._journal = scope.enter_context(contextlib.closing(Journal(self._directories)))
            self._published = scope.enter_context(contextlib.closing(PublishedSequence(self._directories)))
            self._trusted = True  # False: a sync failed, and what it may have lost was not written again
            with self._locks.hold(()):
                self.index = scope.enter_context(contextlib.closing(self._recover()))
                self.recovered = self._catch_up()
                checkpoint.remove_unfinished(self._directories)
                snapshots.remove_unfinished(self._directories)
                if self._trusted:
                    checkpoint.write(self._directories, self._journal.last_seq, afresh=True)
                    remove_dead_sessions(self._directories)
                self._staging = StagingArea(self._directories, self._find_thread, self._knows_blob)
            self._keep_staging = False
            scope.callback(lambda: self._staging.close(keep=self._keep_staging))
            self.content = ContentReader(self._directories, self.index)
            self.changes = scope.enter_context(
                contextlib.closing(ChangeFeed(self._directories, self.index, self._published))
            )
            self._writer = Writer(
                self._directories,
                self._locks,
                self._journal,
                self.index,
                self._staging,
                self._published,
                self._catch_up,
                self._committed,
                actor,
            )
            scope.callback(self._writer.close)
            self._compactor = scope.enter_context(contextlib.closing(Compactor(self._directories)))
            self._checkpointer = _Checkpointer(self)
            self._closed = False
            self._scope = scope.pop_all()

    @classmethod
    def open(
        cls, root: str | os.PathLike[str], *, lock_timeout: float = LOCK_TIMEOUT, actor: Actor = PROGRAM
    ) -> Transport:
        """Open an existing store. Raises :class:`MailError` with one clear line if that cannot be done safely.

        ``actor``: the one recorded for operations that name no other.
        """
        with errors.translate_disk_errors():
            return cls(os.fspath(root), lock_timeout, actor)

    def close(self) -> None:
        """Finish what is queued, make everything durable, let go of the store."""
        if self._closed:
            return
        self._closed = True
        self._writer.close()
        durable = self._checkpointer.close()
        self._keep_staging = not durable or not self._writer.is_settled
        self._scope.close()

    def __enter__(self) -> Transport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- mutations -------------------------------------------------------------------------------------------------

    def submit(self, operation: Operation[Result], actor: Actor | None = None) -> Future[Result]:
        """Queue an operation from any thread; the future ends when it is durable, or with a :class:`MailError`.

        ``actor`` caused it; None: the actor that the store was opened with.
        """
        return cast("Future[Result]", self._writer.submit(operation, actor or self._actor))

    def commit_all(
        self, operations: Sequence[Operation[Any]], actors: Sequence[Actor | None] | None = None
    ) -> list[Future[Any]]:
        """Run these on the calling thread, in one commit if they all can; the futures have ended.

        ``actors``: one for each operation.
        """
        by_operation = actors or [None] * len(operations)
        return self._writer.commit_all(
            [(operation, actor or self._actor) for operation, actor in zip(operations, by_operation, strict=True)]
        )

    def run(self, operation: Operation[Result], actor: Actor | None = None) -> Result:
        return self.submit(operation, actor).result()

    async def commit(self, operation: Operation[Result], actor: Actor | None = None) -> Result:
        """Run an operation from asyncio. Cancelling the caller does not cancel a commit under way."""
        return await asyncio.shield(asyncio.wrap_future(self.submit(operation, actor)))

    def stage(self, octets: Buffer, arrived: int | None = None) -> Staged:
        """Parse octets into canonical content; not mail yet. CPU and disk work: keep it off an event loop."""
        return self._staging.stage(octets, arrived)

    def discard(self, staged: Staged) -> None:
        """Give up on a staged message that no operation was submitted for."""
        self._staging.release(staged, committed=False)

    def spool(self) -> Spool:
        """A place for incoming octets of unknown size; ``spool.stage()`` turns it into staged content."""
        return self._staging.spool()

    # --- reads -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Several :mod:`adapter.store.queries.mailboxes` that see one state; do nothing else inside the block."""
        with self.index.reading() as connection:
            yield connection

    def published_seq(self) -> int:
        """The last record that any process may have acknowledged: a cache that has seen fewer is behind. No query."""
        return self._published.get()

    @property
    def root(self) -> str:
        return self._directories.root

    @property
    def store(self) -> str:
        """The id of the store."""
        return self._journal.store

    # --- upkeep ----------------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Make everything applied so far durable in all layers, and drop what staging kept until then."""
        retiring = self._staging.retiring()
        if not self._trusted:
            checkpoint.distrust(self._directories)
        try:
            checkpoint.write(self._directories, self.index.applied_seq())
        except checkpoint.SyncFailed:
            self._trusted = False
            raise
        for name in retiring:
            self._staging.remove(name)
        try:
            self._compactor.start_if_due()
        except OSError as error:  # that is for another time: everything is durable
            _log.warning("journal: compaction check failed (%s); skipped until the next checkpoint", error)

    @contextlib.contextmanager
    def quiesced(self) -> Iterator[Journal]:
        """Hold the write lock with all layers caught up to the end of the journal."""
        with self._locks.hold(()):
            with errors.translate_disk_errors():
                self._journal.refresh()
                self._catch_up()
            yield self._journal

    def snapshot(self) -> int:
        """Copy the mutable tables to Parquet and remove journal that two snapshots make needless; returns its seq."""
        with errors.translate_disk_errors():
            return self._snapshot()

    def _snapshot(self) -> int:
        name = self._staging.fresh_name()
        copy_path = layout.absolute(self.root, *layout.staging_directory(self._staging.session), name)
        try:
            with index.unsynced_copy(copy_path) as copy:
                with self.quiesced() as journal:
                    self.index.writer.backup(copy)
                    seq = journal.last_seq
                    journal.rotate()
                snapshots.write(self._directories, copy, seq)
        finally:
            self._staging.remove(name)
        self.checkpoint()
        needless = snapshots.prune(self._directories)
        with self._locks.hold(()):
            self._journal.refresh()
            self._journal.remove_segments_before(needless)
        return seq

    # --- inside ----------------------------------------------------------------------------------------------------

    def _recover(self) -> Index:
        store = store_id.read(self._directories)
        if store is None:
            raise MailError(Reason.UNKNOWN, f"{layout.STORE_ID_FILE} is missing or damaged: run markpost repair")
        last = checkpoint.read(self._directories)
        self._journal.durable_seq = last.seq if last else 0
        try:
            index.check_store(self._directories, store)  # before anything is changed
            self._journal.check_store()
            self._journal.refresh()
            roll_forward.check_reaches(self._journal, self._journal.durable_seq)
            suspect = roll_forward.find_suspect(self._directories, self._journal)
            if suspect is not None and suspect.cached and is_in_use(self._directories):
                suspect, self._trusted = None, False
            if suspect is not None:
                roll_forward.replace_index(self._directories, self._journal, suspect)
            opened = self._open_index()
            if rebuild.is_unfinished(self._directories, opened.applied_seq()):
                _log.warning("finishing a repair that died")
                opened.close()
                rebuild.finish(self._directories, self._journal)
                opened = Index(self._directories)
            self._recovery = roll_forward.Recovery(self._directories, self._journal, opened)
            if suspect is not None:
                roll_forward.restore_suspect(self._directories, self._journal, opened, suspect)
        except index.IndexForeign as error:
            raise MailError(
                Reason.UNKNOWN, f"{layout.INDEX_FILE} is of another store ({error}): run markpost repair"
            ) from error
        except index.IndexMissing:
            raise MailError(Reason.UNKNOWN, f"{layout.INDEX_FILE} is missing: run markpost repair") from None
        except index.IndexUnreadable as error:
            raise MailError(
                Reason.UNKNOWN, f"{layout.INDEX_FILE} is unreadable ({error}): run markpost repair"
            ) from error
        return opened

    def _open_index(self) -> Index:
        """The index, if journal and index have one history. Raises :class:`~index.IndexDiverged`."""
        opened = Index(self._directories)
        try:
            roll_forward.check_history(self._journal, *opened.applied_for_writer())
        except BaseException:
            opened.close()
            raise
        return opened

    def _find_thread(self, keys: ThreadKeys) -> str:
        """A known parent decides; else the thread follows from the headers alone."""
        parents = [keys.in_reply_to] if keys.in_reply_to else []
        parents += [reference for reference in reversed(keys.references) if reference not in parents]
        if parents:
            with self.index.reading() as connection:
                thread = mailboxes.thread_of(connection, parents[:_REFERENCES_LOOKED_UP])
            if thread is not None:
                return thread
        return default_thread(keys)

    def _knows_blob(self, sha256: str) -> bool:
        with self.index.reading() as connection:
            return content_rows.has_blob(connection, sha256)

    def _catch_up(self) -> int:
        """Bring the index to the end of the journal, and the published number with it, whatever it was."""
        count = self._recovery.catch_up()
        if self._published.get() != self._journal.last_seq:
            self._published.set(self._journal.last_seq)
        return count

    def _committed(self, records: list[Record]) -> None:
        self._recovery.committed(records[-1].seq)
        self._checkpointer.wake()
        self.changes.notify()


class _Checkpointer:
    """A checkpoint a few seconds after the first commit that needs one, and a last one at the end."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._durable = True
        self._dirty = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="markpost-checkpoint", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._dirty.set()

    def close(self) -> bool:
        """Stop after a last checkpoint; False if that one failed."""
        self._stop.set()
        self._dirty.set()
        self._thread.join()
        return self._durable

    def _run(self) -> None:
        last = False
        last_error = ""  # logged once: the same error occurs every second
        while not last:
            self._dirty.wait()
            self._stop.wait(CHECKPOINT_SECONDS)
            last = self._stop.is_set()  # asked before the checkpoint: one that is under way already may miss a commit
            self._dirty.clear()
            try:
                self._transport.checkpoint()
                self._durable, last_error = True, ""
            except Exception as error:  # of any kind: without this thread there would be no further checkpoint
                if str(error) != last_error:
                    _log.error("checkpoint failed (%s); the journal keeps everything, retrying", error)
                last_error = str(error)
                self._durable = False
                self._dirty.set()
                self._stop.wait(1.0)


def create_store(root: str) -> None:
    """Make an empty store in a directory that is empty or does not exist."""
    os.makedirs(root, mode=0o700, exist_ok=True)
    if os.listdir(root):
        raise MailError(Reason.UNKNOWN, f"{root} is not empty: a store is made in an empty directory")
    with contextlib.closing(Directories(root)) as directories:
        opening.refuse_superuser(directories)
        for parts in layout.DIRECTORIES:
            with directories.stable(parts, create=True):
                pass
        locks.check_exclusion(directories)
        store = store_id.new()
        store_id.write(directories, store)
        index.create(layout.absolute(root, layout.INDEX_FILE), store).close()
        checkpoint.write(directories, 0)
        recent_marks.open_marks(root, list).close()  # made here, so that the first mail is recent
        disk.replace_file(directories.root_fd, layout.README_FILE, layout.readme(), mode=0o444)
        # Written last: a store without it is not one.
        disk.replace_file(directories.root_fd, layout.VERSION_FILE, f"{layout.VERSION}\n".encode(), mode=0o444)
