"""How the store is: offline or not, the index's journal mode, and how far index and checkpoint are behind the journal.

Nothing is changed and no lock is taken, so that a server may go on meanwhile: what is under way is waited for.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator

from adapter.doctor.findings import Finding, bad, ok, warn
from adapter.store import disk, layout, locks, offline_marker, snapshots, stats
from adapter.store.disk import Directories
from adapter.store.index import Index, IndexMissing, IndexUnreadable
from adapter.store.journal import Journal, JournalDamaged
from adapter.transport.compaction import DUE_BYTES

_REPAIR = "run markpost check, then markpost repair"
_BY_ITSELF = "whoever opens the store next puts that right by itself"
_UNDER_WAY = 3.0  # seconds that a commit may take
_OLD = 60.0  # of a checkpoint, while a server runs
_STUCK = 3600.0  # of mail in the outbox
# The header of an SQLite file: https://sqlite.org/fileformat2.html#file_format_version_numbers
_HEADER, _WRITE_VERSION, _ROLLBACK = b"SQLite format 3\0", 18, 1


def service(directories: Directories) -> Iterator[Finding]:
    marker = offline_marker.read(directories)
    holders = locks.service_holders(directories)
    if marker is not None:
        yield warn("service", f"offline: {marker}", "markpost maintenance off, when the work is done")
    elif holders:
        yield ok("service", f"open by {'; '.join(holders)}")
    else:
        yield ok("service", "nobody has the store open")


def last_change(directories: Directories) -> float | None:
    """When the last record was written; None: there is none that can be read."""
    with contextlib.suppress(OSError, JournalDamaged):
        return _newest(directories)[1]
    return None


def layers(directories: Directories) -> Iterator[Finding]:
    mode = _journal_mode(directories)
    yield mode
    if mode.advice:
        return
    try:
        newest, _ = _newest(directories)
        with contextlib.closing(Index(directories)) as index:
            yield _index_lag(directories, index, newest)
            found = stats.look(directories, index, time.time())
            yield _checkpoint_lag(directories, found)
            yield from _sizes(found)
    except JournalDamaged as error:
        yield bad("journal", str(error), _REPAIR)
    except (IndexMissing, IndexUnreadable, sqlite3.Error) as error:
        yield bad("index", f"cannot be read: {error}", _REPAIR)


def _journal_mode(directories: Directories) -> Finding:
    """From the file itself: opening it as we do would put it right without a word."""
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
        return bad("index", f"{layout.INDEX_FILE} is no database", _REPAIR)
    if header[_WRITE_VERSION] != _ROLLBACK:
        return bad(
            "index",
            "another program has put it into WAL mode, in which changes of other processes are not noticed",
            "stop that program; the mode is put right when markpost serve is started again",
        )
    return ok("index", "journal mode DELETE")


def _newest(directories: Directories) -> tuple[int, float | None]:
    """The last record's number, and its time if it is in the newest file."""
    with contextlib.closing(Journal(directories)) as journal:
        segments = journal.segments()
        if not segments:
            return max(snapshots.available(directories), default=0), None
        number, at = segments[-1] - 1, None
        for record in journal.records(number):
            number, at = record.seq, record.at / 1e6
    return number, at


def _index_lag(directories: Directories, index: Index, newest: int) -> Finding:
    deadline = time.monotonic() + (_UNDER_WAY if locks.service_holders(directories) else 0.0)
    while (applied := index.applied_seq()) < newest and time.monotonic() < deadline:
        time.sleep(0.1)
    if applied > newest and applied > _newest(directories)[0]:  # looked at again: a server may be busy
        return bad("index lag", f"the index knows {_records(applied)}, of which the journal lacks some", _REPAIR)
    behind = newest - applied
    if behind <= 0:
        return ok("index lag", "the index has everything that the journal has")
    if locks.service_holders(directories):
        return bad("index lag", f"the index is {_records(behind)} behind the journal", "look into the server's log")
    return warn("index lag", f"not in the index yet: {_records(behind)}", _BY_ITSELF)


def _checkpoint_lag(directories: Directories, found: stats.Measures) -> Finding:
    behind = max(0, found.applied - found.checkpoint)
    if not behind:
        return ok("checkpoint", "everything is durable in all layers")
    if not locks.service_holders(directories):
        return warn(
            "checkpoint",
            f"{_records(behind)} behind: the last process did not end well",
            _BY_ITSELF,
        )
    with directories.stable(layout.JOURNAL) as directory:
        try:
            age = time.time() - os.stat(layout.CHECKPOINT_FILE, dir_fd=directory).st_mtime
        except FileNotFoundError:
            age = float("inf")
    if age > _OLD:
        return bad("checkpoint", f"{_records(behind)} behind, and none for {age:.0f} s", "look into the server's log")
    return ok("checkpoint", f"{_records(behind)} behind, as is usual while mail comes in")


def _sizes(found: stats.Measures) -> Iterator[Finding]:
    text = f"{found.journal_bytes / 1e6:.1f} MB in {found.journal_segments} file{'s' * (found.journal_segments != 1)}"
    if found.journal_bytes > 3 * DUE_BYTES:
        yield warn("journal", f"{text}: it is not being compacted", "run markpost snapshot, and look into the log")
    else:
        yield ok("journal", text)
    waiting = found.queue_due + found.queue_waiting
    if waiting and found.queue_oldest > _STUCK:
        yield warn(
            "outbox",
            f"{waiting} recipient{'s' * (waiting != 1)}, the oldest for {found.queue_oldest / 3600:.1f} h",
            "see markpost queue",
        )
    else:
        yield ok("outbox", f"{waiting} recipient{'s' * (waiting != 1)} waiting")


def _records(count: int) -> str:
    return f"{count} record{'s' * (count != 1)}"
