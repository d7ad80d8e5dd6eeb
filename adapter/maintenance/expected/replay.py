"""What the store should hold: the tables that snapshots and journal lead to, in a SQLite file beside the index.

Replay is sequential, so it runs in a process of its own (:mod:`adapter.maintenance.expected.record_replay`). It reads,
never changes, and streams: its memory does not grow with the store. Unlike recovery it goes on where the journal is
damaged, and says so. Where snapshots and journal do not reach from the beginning to the end without a gap, the index
is believed if it is whole, else what both can still tell is put together (:mod:`adapter.maintenance.expected.salvage`).

Files of another store are noted and otherwise passed over, as if they were not there.
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
from adapter.maintenance.diff import index_copy
from adapter.maintenance.expected import journal_segments, normalise, salvage, set_aside, tables
from adapter.maintenance.expected.bulk_replay import Bulk
from adapter.maintenance.expected.store_facts import FACTS, Facts, read_facts
from adapter.maintenance.expected.tables import NOTES
from adapter.maintenance.scan import unreadable
from adapter.store import index, journal, layout, snapshots
from adapter.store.disk import Directories
from adapter.store.effects import RemoveFolder
from adapter.store.journal import JournalDamaged, Record
from adapter.store.segments import BEGINNING, checksum_of
from adapter.transport import apply
from adapter.transport.recovery import checkpoint

BASE, COPY = "base.sqlite", "index-copy.sqlite"
AGAIN = "again.sqlite"  # the tables as they were before repair changed anything, for the look after it
_STARTS = 5
_BATCH = 2000  # records of one transaction, where it may have to be taken back
#: What a record that belongs to another state, or is not one of ours, gives.
_UNREPLAYABLE = (sqlite3.Error, KeyError, TypeError, IndexError, ValueError)


class _Blind(Exception):  # noqa: N818 - what happened to us
    """A part of the journal cannot be read now."""


class _Overtaken(Exception):  # noqa: N818 - what happened to us
    """The newest snapshot holds more than the copy of the index."""


class Replay:
    def __init__(self, root: str, scratch: str, store: str, earlier: str = "") -> None:
        """``store``: its id. ``earlier``: the scratch directory of a look whose tables may be gone on from."""
        self.scratch = scratch
        self.store = store
        self.earlier = earlier
        self.directories = Directories(root)
        self.facts = Facts(store=store)
        self.root = root
        self._applied = -1  # of the index, when it was copied last
        self._moves = False  # whether that was another number than the time before
        self._limit: int | None = None  # the record that the index applied last, where the tables are to end
        self._limit_checksum = BEGINNING

    def run(self) -> Facts:
        """Starts over where a snapshot was taken meanwhile and what it makes needless went from under our feet."""
        for _ in range(_STARTS):
            with contextlib.suppress(FileNotFoundError, _Overtaken):
                return self._run_seeing()
            self.facts = Facts(store=self.store)
            self._remove_tables()
        return self._run_seeing()

    def _remove_tables(self) -> None:
        workspace.remove_files(self.scratch, [BASE, COPY, f"{COPY}-journal", NOTES])

    def _run_seeing(self) -> Facts:
        """If a file that decides cannot be read now, nothing is decided."""
        try:
            return self._run()
        except _Blind:
            self.facts.is_blind = True
            self._remove_tables()
            return self.facts

    def _run(self) -> Facts:
        base, copy = f"{self.scratch}/{BASE}", f"{self.scratch}/{COPY}"
        # First of all: in a store in use it would get ahead of the copy.
        last = checkpoint.read(self.directories, self.store)
        found = index_copy.take(self.root, copy, self.store, last.seq if last else 0, self._checksum_at)
        applied, self.facts.index_kind, self.facts.index_detail, self.facts.index_trouble = found
        self._moves, self._applied = applied != self._applied, applied
        self._check_snapshots()
        usable = not self.facts.index_kind
        self._fill(base, applied if usable else None)  # an index in use: the journal may be ahead of the copy
        facts = self.facts
        with contextlib.closing(tables.private(tables.connect(base, write=True))) as connection:
            known = [applied, last.seq if last else 0, facts.last_seq]
            known += [int(name) for name in facts.damaged_snapshots]
            facts.next_seq = max([facts.next_seq, *(seq + 1 for seq in known)])
            if not facts.gap and max(known) > facts.last_seq:
                facts.gap = f"records {facts.last_seq + 1} to {max(known)} are missing"
            if not facts.gap and not facts.last_seq and self._has_mail():
                facts.gap = "there is neither snapshot nor journal"
            if facts.gap and (facts.unreadable or self._is_index_unreadable()):
                raise _Blind
            if facts.gap:
                facts.read = {}  # a later look cannot go on from tables that lack something
                facts.source = "salvage" if facts.last_seq or not self._lacks_index() else "nothing"
                if facts.index_kind == "index-schema-wrong":
                    salvage.take_tables(copy, connection)
                elif facts.index_trouble and facts.index_kind not in ("index-missing", "index-foreign"):
                    salvage.take_over(layout.absolute(self.root, layout.INDEX_FILE), self.scratch, connection)
        if facts.index_kind == "index-diverged" and not facts.gap:
            facts.index_trouble = facts.index_detail  # snapshots and journal tell everything: they are believed
        if facts.gap and not facts.index_trouble:
            facts.source = "index"
            self._take_index(copy, base)
        if facts.gap:
            with contextlib.closing(tables.private(tables.connect(base, write=True))) as connection:
                set_aside.keep(connection, self.scratch)
                normalise.settle(connection)
        elif not facts.index_trouble:
            facts.wrong_meta = tables.differing_meta(base, copy)
        return facts

    def _checksum_at(self, seq: int) -> str | None:
        with contextlib.suppress(OSError):  # what cannot be read is noted when it is replayed
            return journal_segments.checksum_at(self.directories, self._segments(), seq)
        return None

    def _fill(self, base: str, limit: int | None) -> None:
        """All records in one transaction that cannot be taken back; if one cannot be replayed, all over with care."""
        try:
            self._fill_from(base, self._go_on(base), limit, careful=False)
        except _UNREPLAYABLE:
            known = self.facts
            self.facts = Facts(
                store=self.store,
                index_kind=known.index_kind,
                index_detail=known.index_detail,
                index_trouble=known.index_trouble,
                damaged_snapshots=known.damaged_snapshots,
                foreign_snapshots=known.foreign_snapshots,
                unreadable=known.unreadable,
            )
            workspace.remove_files(self.scratch, [BASE, NOTES])
            self._fill_from(base, None, limit, careful=True)

    def _fill_from(self, base: str, start: int | None, limit: int | None, *, careful: bool) -> None:
        opened = index.create(base, self.store) if start is None else tables.connect(base, write=True)
        with contextlib.closing(tables.private(opened, undo=careful)) as connection:
            known = start
            bulk = None if careful else Bulk(connection)
            if start is None:
                if bulk is not None:
                    bulk.postpone_indexes()
                start = snapshots.load_latest(self.directories, connection)
            if limit is not None and limit < start:
                if self._moves:  # a snapshot was taken since the index was copied, unless that stands still
                    raise _Overtaken
                # of a repair that died before its index was in place
                self.facts.index_trouble, limit = "older than what the journal can bring up to date", None
                self.facts.index_kind, self.facts.index_detail = "index-outdated", self.facts.index_trouble
            self._replay(connection, start, limit, bulk)
            self.facts.unchanged = self.facts.last_seq == known

    def _go_on(self, base: str) -> int | None:
        """Take over the tables of the earlier look, if the journal only grew since; returns what they hold."""
        if not self.earlier or not os.path.exists(f"{self.earlier}/{AGAIN}"):
            return None
        known = read_facts(self.earlier)
        segments = list(known.read)
        if not segments or segments != [layout.journal_segment(first) for first in self._segments()][: len(segments)]:
            return None
        with self.directories.open(layout.JOURNAL) as directory:
            for name in segments:
                inode, size = known.read[name]
                now = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if now.st_ino != inode or now.st_size < size or (name != segments[-1] and now.st_size > size):
                    return None
        workspace.copy_file(f"{self.earlier}/{AGAIN}", base)
        self.facts.read = known.read
        return known.last_seq

    def _is_index_unreadable(self) -> bool:
        """Whether the index cannot be read for want of permission; around bad sectors it is salvaged."""
        try:
            os.close(os.open(layout.absolute(self.root, layout.INDEX_FILE), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except PermissionError as error:
            self.facts.unreadable[layout.INDEX_FILE] = unreadable.cause(error)
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

    def _take_index(self, copy: str, base: str) -> None:
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
                is_whole, why = False, unreadable.cause(error)
            if why:
                self.facts.unreadable[layout.absolute(*layout.snapshot_directory(seq))] = why
            elif not is_whole:
                self.facts.damaged_snapshots.append(name)

    # --- the journal -----------------------------------------------------------------------------------------------

    def _replay(self, connection: sqlite3.Connection, start: int, limit: int | None, bulk: Bulk | None) -> None:
        """Without ``bulk``, with care."""
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
                self._apply_with_care(connection, notes, record)
                if number % _BATCH == _BATCH - 1:
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
        self, connection: sqlite3.Connection, notes: sqlite3.Connection, record: Record, bulk: Bulk | None = None
    ) -> None:
        for effect in record.effects:
            if bulk is not None and bulk.take(effect):
                continue
            apply.apply_index(effect, connection, record.at)
            if isinstance(effect, RemoveFolder):
                notes.execute("INSERT OR IGNORE INTO removed_folders VALUES (?)", (effect.folder,))

    def _apply_with_care(self, connection: sqlite3.Connection, notes: sqlite3.Connection, record: Record) -> None:
        connection.execute("SAVEPOINT record")
        try:
            self._apply(connection, notes, record)
        except _UNREPLAYABLE as error:
            connection.execute("ROLLBACK TO record")
            self._gap(f"record {record.seq} cannot be replayed: {error}")
        connection.execute("RELEASE record")

    def _gap(self, why: str) -> None:
        self.facts.gap = self.facts.gap or why

    def _segments(self) -> list[int]:
        try:
            with self.directories.open(layout.JOURNAL) as directory:
                found = (layout.JOURNAL_SEGMENT.match(name) for name in os.listdir(directory))
                numbers = sorted(int(match.group(1)) for match in found if match)
        except FileNotFoundError:
            return []
        except OSError as error:
            if not (why := unreadable.cause(error)):
                raise
            self.facts.unreadable[layout.absolute(*layout.JOURNAL)] = why
            raise _Blind from error
        return [first for first in numbers if not self._is_foreign(first)]

    def _is_foreign(self, first: int) -> bool:
        """Whether a segment belongs to another store; noted if so."""
        with self._seeing(first):
            header = journal_segments.header_of(self.directories, first)
        if header is None or header.store == self.store:
            return False
        self.facts.foreign_segments[layout.journal_segment(first)] = header.store
        return True

    def _check_header(self, first: int, before: str | None, *, wanted: bool) -> None:
        """Note a header that is damaged, or does not follow the record before. ``wanted``: its records matter."""
        header = journal_segments.header_of(self.directories, first)
        name = layout.journal_segment(first)
        if header is None:
            self.facts.damaged_segments[name] = "its header does not verify"
        elif before is not None and header.after != before:
            self.facts.damaged_segments[name] = f"record {first - 1} is not the one that it follows"
        if wanted and name in self.facts.damaged_segments:
            self._gap(f"{name}: {self.facts.damaged_segments[name]}")

    def _records(self, start: int, before: str) -> Iterator[Record]:
        """Every record that verifies; what does not is noted. Those up to ``start`` are checked but not given.

        ``before``: the checksum of record ``start``.
        """
        facts = self.facts
        segments = self._segments()
        last = checkpoint.read(self.directories, self.store)
        durable = last.seq if last else 0
        expected = start + 1
        known = dict(facts.read)  # read by the earlier look, up to what is in the tables
        reached = 0
        read, checksum = (start, before) if known else (0, "")  # the record read last
        for number, first in enumerate(segments):
            name, is_last = layout.journal_segment(first), first == segments[-1]
            reached = max(reached, first - 1)
            if name in known and name != max(known):
                continue
            if name not in known:
                if first > expected and first > start + 1:
                    self._gap(f"records {expected} to {first - 1} are missing")
                expected = first if number == 0 or first > expected else expected
            with self._seeing(first):
                trouble = journal_segments.segment_trouble(self.directories, first)
            if trouble:
                facts.damaged_segments[name] = trouble
                facts.next_seq = max(facts.next_seq, first)
                if is_last or segments[number + 1] > start + 1:
                    self._gap(f"{name} {trouble}")
                continue
            if name not in known:
                follows = before if first == start + 1 else checksum if first == read + 1 and read else None
                wanted = is_last or segments[number + 1] > start + 1
                self._check_header(first, follows, wanted=wanted)
            for line in self._lines(first):
                try:
                    record = journal.decode(line)
                except JournalDamaged:
                    if is_last and expected > durable and journal_segments.is_tail(self.directories, first, line):
                        facts.torn = name
                        break
                    facts.damaged_segments[name] = f"record {expected} does not verify"
                    if expected > start:
                        self._gap(f"record {expected} does not verify")
                    expected += 1
                    continue
                if record.seq != expected:
                    facts.damaged_segments[name] = f"record {expected} is missing"
                    if record.seq > start + 1:
                        self._gap(f"record {expected} is missing")
                expected = record.seq + 1
                reached = max(reached, record.seq)
                read, checksum = record.seq, checksum_of(line)
                if read == start and checksum != before:
                    facts.damaged_segments[name] = f"record {start} is not the one that the snapshot ends with"
                    self._gap(facts.damaged_segments[name])
                if read == self._limit:
                    self._limit_checksum = checksum
                facts.next_seq = max(facts.next_seq, record.seq + 1)
                if record.seq > start:
                    if name in facts.damaged_segments:  # the whole segment will go
                        self._gap(facts.damaged_segments[name])
                    if record.seq > facts.last_seq:
                        facts.last_seq, facts.last_checksum = record.seq, checksum
                    yield record
            if is_last and first - 1 > facts.last_seq:
                header = journal_segments.header_of(self.directories, first)
                facts.last_seq, facts.last_checksum = first - 1, header.after if header else BEGINNING
            if is_last:
                facts.next_seq = max(facts.next_seq, first)
        facts.behind = reached < start and not known

    @contextlib.contextmanager
    def _seeing(self, first: int) -> Iterator[None]:
        """Read a segment; one that cannot be read now ends the replay."""
        try:
            yield
        except OSError as error:
            if not (why := unreadable.cause(error)):
                raise
            self.facts.unreadable[layout.absolute(*layout.JOURNAL, layout.journal_segment(first))] = why
            raise _Blind from error

    def _has_aborts(self) -> bool:
        """Whether any batch was taken back: only then records have to wait for those that follow them."""
        for first in self._segments():
            with self._seeing(first):
                if journal_segments.segment_trouble(self.directories, first):
                    continue
                if journal_segments.contains_abort(self.directories, first):
                    return True
        return False

    def _lines(self, first: int) -> Iterator[bytes]:
        """Lines of a segment that were not read before; notes how far it was read."""
        name = layout.journal_segment(first)
        _, at = self.facts.read.get(name, (0, 0))
        with self._seeing(first), journal_segments.open_segment(self.directories, first) as file:
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
    """One line of JSON on standard input asks for the tables of a look; an empty one answers that they are there."""
    gc.disable()  # records hold no cycles
    for line in sys.stdin.buffer:
        asked = orjson.loads(line)
        replay = Replay(**asked)
        with contextlib.closing(replay.directories):
            workspace.write_file(f"{asked['scratch']}/{FACTS}", orjson.dumps(asdict(replay.run())))
        sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
