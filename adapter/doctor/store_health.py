"""Check the store: offline marker, SQLite journal mode, and lag of index and checkpoint behind the journal.

Nothing is changed and no lock is taken, so a server may be running. Commits in progress are waited for.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator

from adapter.doctor.findings import Finding, bad, ok, warn
from adapter.store import disk, layout, locks, offline_marker, snapshots
from adapter.store.disk import Directories
from adapter.store.index import Index, IndexMissing, IndexUnreadable
from adapter.store.journal import Journal, JournalDamaged
from adapter.transport import stats
from adapter.transport.compaction import DUE_BYTES

_REPAIR = "run markpost check, then markpost repair"
_RECOVERS_ITSELF = "nothing to do: the next process that opens the store recovers it"
_COMMIT_SECONDS = 3.0  # a commit in progress may take this long
_MAX_CHECKPOINT_AGE_SECONDS = 60.0  # while a server runs
_MAX_QUEUE_AGE_SECONDS = 3600.0
# The header of an SQLite file: https://sqlite.org/fileformat2.html#file_format_version_numbers
_HEADER, _WRITE_VERSION, _ROLLBACK = b"SQLite format 3\0", 18, 1


def service(directories: Directories) -> Iterator[Finding]:
    marker = offline_marker.read(directories)
    holders = locks.service_holders(directories)
    if marker is not None:
        yield warn("service", f"offline: {marker}", "run markpost maintenance off when the work is done")
    elif holders:
        yield ok("service", f"open by {'; '.join(holders)}")
    else:
        yield ok("service", "no process has the store open")


def last_change(directories: Directories) -> float | None:
    """Return the time of the last journal record; None if no record can be read."""
    with contextlib.suppress(OSError, JournalDamaged):
        return _last_record(directories)[1]
    return None


def layers(directories: Directories) -> Iterator[Finding]:
    mode = _journal_mode(directories)
    yield mode
    if mode.advice:
        return
    try:
        last_seq, _ = _last_record(directories)
        with contextlib.closing(Index(directories)) as index:
            yield _index_lag(directories, index, last_seq)
            measures = stats.collect_stats(directories, index, time.time())
            yield _checkpoint_lag(directories, measures)
            yield from _sizes(measures)
    except JournalDamaged as error:
        yield bad("journal", str(error), _REPAIR)
    except (IndexMissing, IndexUnreadable, sqlite3.Error) as error:
        yield bad("index", f"cannot be read: {error}", _REPAIR)


def _journal_mode(directories: Directories) -> Finding:
    """Read the journal mode from the file header: opening the database would silently reset it."""
    try:
        with directories.stable(()) as top:
            descriptor = disk.open_read(top, layout.INDEX_FILE)
        try:
            header = os.pread(descriptor, 100, 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        return bad("index", f"{layout.INDEX_FILE}: {error.strerror}", _REPAIR)
    if not header.startswith(_HEADER):
        return bad("index", f"{layout.INDEX_FILE} is not a database", _REPAIR)
    if header[_WRITE_VERSION] != _ROLLBACK:
        return bad(
            "index",
            "another program has set WAL mode, in which changes by other processes are not noticed",
            "stop that program and restart markpost serve, which resets the mode",
        )
    return ok("index", "journal mode DELETE")


def _last_record(directories: Directories) -> tuple[int, float | None]:
    """Return the number of the last record, and its time if it is in the newest segment."""
    with contextlib.closing(Journal(directories)) as journal:
        segments = journal.segments()
        if not segments:
            return max(snapshots.available(directories), default=0), None
        number, at = segments[-1] - 1, None
        for record in journal.records(number):
            number, at = record.seq, record.at / 1e6
    return number, at


def _index_lag(directories: Directories, index: Index, last_seq: int) -> Finding:
    deadline = time.monotonic() + (_COMMIT_SECONDS if locks.service_holders(directories) else 0.0)
    while (applied := index.applied_seq()) < last_seq and time.monotonic() < deadline:
        time.sleep(0.1)
    if applied > last_seq and applied > _last_record(directories)[0]:  # read again: a server may be writing
        return bad("index lag", f"the index has {_records(applied)}, the journal has fewer", _REPAIR)
    behind = last_seq - applied
    if behind <= 0:
        return ok("index lag", "none")
    if locks.service_holders(directories):
        return bad("index lag", f"the index is {_records(behind)} behind the journal", "see the server's log")
    return warn("index lag", f"{_records(behind)} behind the journal", _RECOVERS_ITSELF)


def _checkpoint_lag(directories: Directories, measures: stats.StoreStats) -> Finding:
    behind = max(0, measures.applied - measures.checkpoint)
    if not behind:
        return ok("checkpoint", "all layers are durable")
    if not locks.service_holders(directories):
        return warn(
            "checkpoint",
            f"{_records(behind)} behind: the last process did not shut down cleanly",
            _RECOVERS_ITSELF,
        )
    with directories.stable(layout.JOURNAL) as directory:
        try:
            age = time.time() - os.stat(layout.CHECKPOINT_FILE, dir_fd=directory).st_mtime
        except FileNotFoundError:
            age = float("inf")
    if age > _MAX_CHECKPOINT_AGE_SECONDS:
        return bad("checkpoint", f"{_records(behind)} behind, the last one {age:.0f} s ago", "see the server's log")
    return ok("checkpoint", f"{_records(behind)} behind, which is normal while mail arrives")


def _sizes(measures: stats.StoreStats) -> Iterator[Finding]:
    segments = measures.journal_segments
    text = f"{measures.journal_bytes / 1e6:.1f} MB in {segments} file{'s' * (segments != 1)}"
    if measures.journal_bytes > 3 * DUE_BYTES:
        yield warn("journal", f"{text}: not being compacted", "run markpost snapshot, and see the server's log")
    else:
        yield ok("journal", text)
    waiting = measures.queue_due + measures.queue_waiting
    if waiting and measures.queue_oldest > _MAX_QUEUE_AGE_SECONDS:
        yield warn(
            "outbox",
            f"{waiting} recipient{'s' * (waiting != 1)} queued, the oldest for {measures.queue_oldest / 3600:.1f} h",
            "see markpost queue list",
        )
    else:
        yield ok("outbox", f"{waiting} recipient{'s' * (waiting != 1)} queued")


def _records(count: int) -> str:
    return f"{count} record{'s' * (count != 1)}"
