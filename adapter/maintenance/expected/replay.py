"""Expected tables: replay snapshots and journal into a SQLite file next to the index.

Replay is sequential, so it runs in its own process (:mod:`adapter.maintenance.expected.replay_process`). It is
read-only and streams: its memory does not grow with the store. Unlike recovery it continues after journal damage, and
records it. If snapshots and journal have a gap, an intact index is the source; otherwise the readable rows of all of
them are merged (:mod:`adapter.maintenance.expected.salvage`).

Files of another store are recorded and otherwise ignored.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import asdict

import orjson

from adapter.maintenance import workspace
from adapter.maintenance.expected import index_copy, journal_segments, normalise, salvage, tables
from adapter.maintenance.expected.bulk_replay import BulkReplay
from adapter.maintenance.expected.replay_process import FACTS, ReplayFacts, read_facts
from adapter.maintenance.expected.tables import NOTES
from adapter.maintenance.findings import unreadable_cause
from adapter.store import index, journal, layout, snapshots
from adapter.store.disk import Directories
from adapter.store.effects import RemoveFolder
from adapter.store.journal import JournalDamaged, Record
from adapter.store.segments import BEGINNING, checksum_of
from adapter.transport import apply
from adapter.transport.recovery import checkpoint

BASE, COPY = "base.sqlite", "index-copy.sqlite"
UNREPAIRED = "unrepaired.sqlite"  # the tables before repair changed them, from which the next inspection continues
_MAX_ATTEMPTS = 5
_BATCH_RECORDS = 2000  # records per transaction when replaying record by record
#: Errors of a record that belongs to another state, or is malformed.
_UNREPLAYABLE = (sqlite3.Error, KeyError, TypeError, IndexError, ValueError)


class _Blind(Exception):  # noqa: N818 - a state
    """A part of the journal cannot be read now."""


class _Overtaken(Exception):  # noqa: N818 - a state
    """The newest snapshot is ahead of the copy of the index."""


class Replay:
    """One replay of snapshots and journal."""

    def __init__(self, root: str, scratch: str, store: str, earlier: str = "") -> None:
        """``store``: id of the store. ``earlier``: scratch directory of an inspection to continue from."""
        self.scratch = scratch
        self.store = store
        self.earlier = earlier
        self.directories = Directories(root)
        self.facts = ReplayFacts(store=store)
        self.root = root
        self._applied = -1  # last applied record of the copied index
        self._is_index_in_use = False  # the index advanced since the previous attempt
        self._limit: int | None = None  # last applied record of the index, where the tables must end
        self._limit_checksum = BEGINNING

    def run(self) -> ReplayFacts:
        """Replay; start over if a concurrent snapshot removed journal segments during the replay."""
        for _ in range(_MAX_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError, _Overtaken):
                return self._run_unless_blind()
            self.facts = ReplayFacts(store=self.store)
            self._remove_tables()
        return self._run_unless_blind()

    def _remove_tables(self) -> None:
        workspace.remove_files(self.scratch, [BASE, COPY, f"{COPY}-journal", NOTES])

    def _run_unless_blind(self) -> ReplayFacts:
        """Replay; without tables if a file that decides cannot be read now."""
        try:
            return self._run()
        except _Blind:
            self.facts.is_blind = True
            self._remove_tables()
            return self.facts

    def _run(self) -> ReplayFacts:
        base, copy = f"{self.scratch}/{BASE}", f"{self.scratch}/{COPY}"
        # Before the copy: in a store in use, the checkpoint would overtake the copy.
        last = checkpoint.read(self.directories, self.store)
        copied = index_copy.take(self.root, copy, self.store, last.seq if last else 0, self._checksum_at)
        applied, self.facts.index_kind, self.facts.index_detail, self.facts.index_problem = copied
        self._is_index_in_use, self._applied = applied != self._applied, applied
        self._check_snapshots()
        usable = not self.facts.index_kind
        self._fill(base, applied if usable else None)  # in a store in use, the journal may be ahead of the copy
        facts = self.facts
        with contextlib.closing(tables.private(tables.connect(base, write=True))) as connection:
            recorded = [applied, last.seq if last else 0, facts.last_seq]
            recorded += [int(name) for name in facts.damaged_snapshots]
            facts.next_seq = max([facts.next_seq, *(seq + 1 for seq in recorded)])
            if not facts.gap and max(recorded) > facts.last_seq:
                facts.gap = f"records {facts.last_seq + 1} to {max(recorded)} are missing"
            if not facts.gap and not facts.last_seq and self._has_mail():
                facts.gap = "no snapshot and no journal"
            if facts.gap and (facts.unreadable or self._is_index_unreadable()):
                raise _Blind
            if facts.gap:
                facts.read = {}  # the next inspection cannot continue from incomplete tables
                facts.source = "salvage" if facts.last_seq or not self._lacks_index() else "nothing"
                if facts.index_kind == "index-schema-wrong":
                    salvage.salvage_tables(copy, connection)
                elif facts.index_problem and facts.index_kind not in ("index-missing", "index-foreign"):
                    salvage.salvage_rows(layout.absolute(self.root, layout.INDEX_FILE), self.scratch, connection)
        if facts.index_kind == "index-diverged" and not facts.gap:
            facts.index_problem = facts.index_detail  # snapshots and journal are complete: they win
        if facts.gap and not facts.index_problem:
            facts.source = "index"
            self._copy_index_rows(copy, base)
        if facts.gap:
            with contextlib.closing(tables.private(tables.connect(base, write=True))) as connection:
                normalise.set_aside_orphans(connection, self.scratch)
                normalise.normalise(connection)
        elif not facts.index_problem:
            facts.wrong_meta = tables.differing_meta(base, copy)
        return facts

    def _checksum_at(self, seq: int) -> str | None:
        with contextlib.suppress(OSError):  # the replay records the error
            return journal_segments.checksum_at(self.directories, self._segments(), seq)
        return None

    def _fill(self, base: str, limit: int | None) -> None:
        """Replay in bulk, in one transaction without rollback; if that fails, start over record by record."""
        try:
            self._fill_from(base, self._continue_from(base), limit, careful=False)
        except _UNREPLAYABLE:
            before = self.facts
            self.facts = ReplayFacts(
                store=self.store,
                index_kind=before.index_kind,
                index_detail=before.index_detail,
                index_problem=before.index_problem,
                damaged_snapshots=before.damaged_snapshots,
                foreign_snapshots=before.foreign_snapshots,
                unreadable=before.unreadable,
            )
            workspace.remove_files(self.scratch, [BASE, NOTES])
            self._fill_from(base, None, limit, careful=True)

    def _fill_from(self, base: str, start: int | None, limit: int | None, *, careful: bool) -> None:
        """Replay from record ``start``, or from the latest snapshot. ``careful``: record by record, with rollback."""
        opened = index.create(base, self.store) if start is None else tables.connect(base, write=True)
        with contextlib.closing(tables.private(opened, can_roll_back=careful)) as connection:
            continued_from = start
            bulk = None if careful else BulkReplay(connection)
            if start is None:
                if bulk is not None:
                    bulk.postpone_indexes()
                start = snapshots.load_latest(self.directories, connection)
            if limit is not None and limit < start:
                if self._is_index_in_use:  # a snapshot was written after the index was copied
                    raise _Overtaken
                # a repair crashed before it installed the new index
                self.facts.index_problem, limit = "older than the oldest record of the journal", None
                self.facts.index_kind, self.facts.index_detail = "index-outdated", self.facts.index_problem
            self._replay(connection, start, limit, bulk)
            self.facts.unchanged = self.facts.last_seq == continued_from

    def _continue_from(self, base: str) -> int | None:
        """Copy the tables of the earlier inspection if the journal only grew since; return their last record."""
        if not self.earlier or not os.path.exists(f"{self.earlier}/{UNREPAIRED}"):
            return None
        earlier = read_facts(self.earlier)
        segments = list(earlier.read)
        if not segments or segments != [layout.journal_segment(first) for first in self._segments()][: len(segments)]:
            return None
        with self.directories.open(layout.JOURNAL) as directory:
            for name in segments:
                inode, size = earlier.read[name]
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if status.st_ino != inode or status.st_size < size or (name != segments[-1] and status.st_size > size):
                    return None
        workspace.copy_file(f"{self.earlier}/{UNREPAIRED}", base)
        self.facts.read = earlier.read
        return earlier.last_seq

    def _is_index_unreadable(self) -> bool:
        """True if permissions prevent reading the index. An index with bad sectors is salvaged instead."""
        try:
            os.close(os.open(layout.absolute(self.root, layout.INDEX_FILE), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except PermissionError as error:
            self.facts.unreadable[layout.INDEX_FILE] = unreadable_cause(error)
            return True
        except OSError:
            pass
        return False

    def _lacks_index(self) -> bool:
        return self.facts.index_kind in ("index-missing", "index-foreign")

    def _has_mail(self) -> bool:
        for parts in (layout.MESSAGES, layout.MAILBOXES):
            with contextlib.suppress(FileNotFoundError), self.directories.open(parts) as directory:
                if any(True for _ in os.scandir(directory)):
                    return True
        return False

    def _copy_index_rows(self, copy: str, base: str) -> None:
        with (
            contextlib.closing(tables.connect(copy)) as source,
            contextlib.closing(tables.private(tables.connect(base, write=True))) as to,
        ):
            source.backup(to, pages=4096)
            to.execute("DELETE FROM cache_messages")

    def _check_snapshots(self) -> None:
        for seq in snapshots.everything(self.directories):
            name = layout.snapshot_directory(seq)[-1]
            if (store := snapshots.store_of(self.directories, seq)) not in ("", self.store):
                self.facts.foreign_snapshots[name] = store
                continue
            try:
                is_whole, why = snapshots.verify_readable(self.directories, seq), ""
            except OSError as error:
                is_whole, why = False, unreadable_cause(error)
            if why:
                self.facts.unreadable[layout.absolute(*layout.snapshot_directory(seq))] = why
            elif not is_whole:
                self.facts.damaged_snapshots.append(name)

    # --- the journal -----------------------------------------------------------------------------------------------

    def _replay(self, connection: sqlite3.Connection, start: int, limit: int | None, bulk: BulkReplay | None) -> None:
        """Replay all records after ``start`` up to ``limit``, in bulk or record by record."""
        facts = self.facts
        facts.last_seq = start
        facts.last_checksum = before = index.applied(connection)[1]
        self._limit, self._limit_checksum = limit, before
        with contextlib.closing(tables.create(f"{self.scratch}/{NOTES}")) as notes:
            notes.execute("CREATE TABLE removed_folders (folder_id INTEGER PRIMARY KEY)")
            connection.execute("BEGIN")
            records = self._records(start, before)
            for number, record in enumerate(journal.without_aborted(records) if self._has_aborts() else records):
                if limit is not None and record.seq > limit:
                    facts.read = {}
                    break
                if bulk is not None:
                    self._apply(connection, notes, record, bulk)
                    continue
                self._apply_or_record_gap(connection, notes, record)
                if number % _BATCH_RECORDS == _BATCH_RECORDS - 1:
                    connection.execute("COMMIT")
                    connection.execute("BEGIN")
            if bulk is not None:
                bulk.finish()
            if facts.gap or facts.torn or facts.damaged_segments:
                facts.read = {}
            reached = facts.last_seq if limit is None else min(facts.last_seq, max(limit, start))
            if reached != facts.last_seq:
                facts.read = {}
                facts.last_checksum = before if reached == start else self._limit_checksum
            facts.last_seq = reached
            index.set_applied(connection, reached, facts.last_checksum)
            connection.execute("COMMIT")

    def _apply(
        self, connection: sqlite3.Connection, notes: sqlite3.Connection, record: Record, bulk: BulkReplay | None = None
    ) -> None:
        for effect in record.effects:
            if bulk is not None and bulk.take(effect):
                continue
            apply.apply_index(effect, connection, record.at)
            if isinstance(effect, RemoveFolder):
                notes.execute("INSERT OR IGNORE INTO removed_folders VALUES (?)", (effect.folder,))

    def _apply_or_record_gap(self, connection: sqlite3.Connection, notes: sqlite3.Connection, record: Record) -> None:
        connection.execute("SAVEPOINT record")
        try:
            self._apply(connection, notes, record)
        except _UNREPLAYABLE as error:
            connection.execute("ROLLBACK TO record")
            self._record_gap(f"record {record.seq} cannot be replayed: {error}")
        connection.execute("RELEASE record")

    def _record_gap(self, why: str) -> None:
        self.facts.gap = self.facts.gap or why

    def _segments(self) -> list[int]:
        try:
            with self.directories.open(layout.JOURNAL) as directory:
                matches = (layout.JOURNAL_SEGMENT.match(name) for name in os.listdir(directory))
                numbers = sorted(int(match.group(1)) for match in matches if match)
        except FileNotFoundError:
            return []
        except OSError as error:
            if not (why := unreadable_cause(error)):
                raise
            self.facts.unreadable[layout.absolute(*layout.JOURNAL)] = why
            raise _Blind from error
        return [first for first in numbers if not self._is_foreign(first)]

    def _is_foreign(self, first: int) -> bool:
        """True if a segment belongs to another store, which is recorded."""
        with self._raising_blind(first):
            header = journal_segments.header_of(self.directories, first)
        if header is None or header.store == self.store:
            return False
        self.facts.foreign_segments[layout.journal_segment(first)] = header.store
        return True

    def _check_header(self, first: int, before: str | None, *, is_needed: bool) -> None:
        """Record a header that is damaged or does not continue the chain. ``is_needed``: the segment is replayed."""
        header = journal_segments.header_of(self.directories, first)
        name = layout.journal_segment(first)
        if header is None:
            self.facts.damaged_segments[name] = "the header does not verify"
        elif before is not None and header.after != before:
            self.facts.damaged_segments[name] = f"the header does not continue record {first - 1}"
        if is_needed and name in self.facts.damaged_segments:
            self._record_gap(f"{name}: {self.facts.damaged_segments[name]}")

    def _records(self, start: int, before: str) -> Iterator[Record]:
        """Yield the intact records after ``start``. Damage is recorded; records up to ``start`` are only verified.

        ``before``: checksum of record ``start``.
        """
        facts = self.facts
        segments = self._segments()
        last = checkpoint.read(self.directories, self.store)
        durable = last.seq if last else 0
        expected = start + 1
        replayed = dict(facts.read)  # segments read by the earlier inspection: their records are in the tables
        reached = 0
        read, checksum = (start, before) if replayed else (0, "")  # the last record read
        for number, first in enumerate(segments):
            name, is_last = layout.journal_segment(first), first == segments[-1]
            reached = max(reached, first - 1)
            if name in replayed and name != max(replayed):
                continue
            if name not in replayed:
                if first > expected and first > start + 1:
                    self._record_gap(f"records {expected} to {first - 1} are missing")
                expected = first if number == 0 or first > expected else expected
            with self._raising_blind(first):
                problem = journal_segments.segment_problem(self.directories, first)
            if problem:
                facts.damaged_segments[name] = problem
                facts.next_seq = max(facts.next_seq, first)
                if is_last or segments[number + 1] > start + 1:
                    self._record_gap(f"{name} {problem}")
                continue
            if name not in replayed:
                follows = before if first == start + 1 else checksum if first == read + 1 and read else None
                is_needed = is_last or segments[number + 1] > start + 1
                self._check_header(first, follows, is_needed=is_needed)
            for line in self._lines(first):
                try:
                    record = journal.decode(line)
                except JournalDamaged:
                    if is_last and expected > durable and journal_segments.is_tail(self.directories, first, line):
                        facts.torn = name
                        break
                    facts.damaged_segments[name] = f"record {expected} does not verify"
                    if expected > start:
                        self._record_gap(f"record {expected} does not verify")
                    expected += 1
                    continue
                if record.seq != expected:
                    facts.damaged_segments[name] = f"record {expected} is missing"
                    if record.seq > start + 1:
                        self._record_gap(f"record {expected} is missing")
                expected = record.seq + 1
                reached = max(reached, record.seq)
                read, checksum = record.seq, checksum_of(line)
                if read == start and checksum != before:
                    facts.damaged_segments[name] = f"record {start} differs from the last record of the snapshot"
                    self._record_gap(facts.damaged_segments[name])
                if read == self._limit:
                    self._limit_checksum = checksum
                facts.next_seq = max(facts.next_seq, record.seq + 1)
                if record.seq > start:
                    if name in facts.damaged_segments:  # repair quarantines the whole segment
                        self._record_gap(facts.damaged_segments[name])
                    if record.seq > facts.last_seq:
                        facts.last_seq, facts.last_checksum = record.seq, checksum
                    yield record
            if is_last and first - 1 > facts.last_seq:
                header = journal_segments.header_of(self.directories, first)
                facts.last_seq, facts.last_checksum = first - 1, header.after if header else BEGINNING
            if is_last:
                facts.next_seq = max(facts.next_seq, first)
        facts.behind = reached < start and not replayed

    @contextlib.contextmanager
    def _raising_blind(self, first: int) -> Iterator[None]:
        """Read a segment in the block; a segment that cannot be read now ends the replay."""
        try:
            yield
        except OSError as error:
            if not (why := unreadable_cause(error)):
                raise
            self.facts.unreadable[layout.absolute(*layout.JOURNAL, layout.journal_segment(first))] = why
            raise _Blind from error

    def _has_aborts(self) -> bool:
        """True if any batch was rolled back: only then are records buffered until the following ones are read."""
        for first in self._segments():
            with self._raising_blind(first):
                if journal_segments.segment_problem(self.directories, first):
                    continue
                if journal_segments.contains_abort(self.directories, first):
                    return True
        return False

    def _lines(self, first: int) -> Iterator[bytes]:
        """Yield the lines of a segment not read by the earlier inspection, and record the end of the last line."""
        name = layout.journal_segment(first)
        _, at = self.facts.read.get(name, (0, 0))
        with self._raising_blind(first), journal_segments.open_segment(self.directories, first) as file:
            inode = os.fstat(file.fileno()).st_ino
            file.seek(at)
            place = at
            for line in file:
                place += len(line)
                if line.strip(journal.PADDING):
                    skip = not at and journal_segments.is_header(line)
                    at = place
                    if not skip:
                        yield line
            self.facts.read[name] = [inode, at]


def main() -> None:
    """Serve requests: one line of JSON on standard input per replay, answered with an empty line when it is done."""
    gc.disable()  # records contain no cycles
    for line in sys.stdin.buffer:
        request = orjson.loads(line)
        replay = Replay(**request)
        with contextlib.closing(replay.directories):
            workspace.write_file(f"{request['scratch']}/{FACTS}", orjson.dumps(asdict(replay.run())))
        sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
