"""What the store should hold: the tables that snapshots and journal lead to, in a SQLite file beside the index.

Replaying is one long sequence, so it is a process of its own: ``python -m adapter.maintenance.replay ROOT SCRATCH``. It
reads, never changes, and streams: its memory does not grow with the store. Unlike recovery it goes on where the journal
is damaged, and says so. Where snapshots and journal do not reach from the beginning to the end without a gap, the index
is believed if it is whole, else what both can still tell is put together (:mod:`adapter.maintenance.salvage`).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

import orjson

from adapter.maintenance import salvage, settle, tables, workspace
from adapter.store import disk, index, journal, layout, snapshots
from adapter.store.disk import Directories
from adapter.store.journal import JournalDamaged, Record
from adapter.transport import checkpoint, effects

BASE, COPY, FACTS, NOTES = "base.sqlite", "index-copy.sqlite", "facts.json", "notes.sqlite"


@dataclass(slots=True)
class Facts:
    """What is known after the replay; ``source`` says whom the tables in ``base.sqlite`` come from."""

    source: str = "journal"  # journal, index, salvage or nothing
    index_trouble: str = ""
    last_seq: int = 0  # of the state in base.sqlite
    next_seq: int = 1  # greater than any number ever seen
    torn: str = ""  # the segment with an unfinished append at its end
    damaged_segments: dict[str, str] = field(default_factory=dict)
    damaged_snapshots: list[str] = field(default_factory=list)
    gap: str = ""  # why snapshots and journal do not tell everything

    @property
    def complete(self) -> bool:
        return self.source == "journal"


class Replay:
    def __init__(self, root: str, scratch: str) -> None:
        self.scratch = scratch
        self.directories = Directories(root)
        self.facts = Facts()
        self.root = root

    def run(self) -> Facts:
        facts, base = self.facts, f"{self.scratch}/{BASE}"
        copy = f"{self.scratch}/{COPY}"
        facts.index_trouble = tables.copy_index(self.root, copy)
        applied = tables.applied_seq(copy)
        limit = applied if not facts.index_trouble else None  # an index in use: the journal may be ahead of the copy
        with contextlib.closing(index.create(base)) as connection:
            self._check_snapshots()
            start = snapshots.load_latest(self.directories, connection)
            self._replay(connection, start, limit)
            last = checkpoint.read(self.directories)
            known = [applied, last.seq if last else 0, facts.last_seq]
            known += [int(name) for name in facts.damaged_snapshots]
            facts.next_seq = max([facts.next_seq, *(seq + 1 for seq in known)])
            if not facts.gap and max(known) > facts.last_seq:
                facts.gap = f"records {facts.last_seq + 1} to {max(known)} are missing"
            if not facts.gap and not facts.last_seq and self._has_mail():
                facts.gap = "there is neither snapshot nor journal"
            if facts.gap:
                facts.source = "salvage" if facts.last_seq or not self._lacks_index() else "nothing"
                if facts.index_trouble and facts.index_trouble != "missing":
                    salvage.take_over(copy, connection)
        if facts.gap and not facts.index_trouble:
            facts.source = "index"
            self._take_index(copy, base)
        if facts.gap:
            with contextlib.closing(tables.connect(base, write=True)) as connection:
                settle.settle(connection)
        return facts

    def _lacks_index(self) -> bool:
        return self.facts.index_trouble == "missing"

    def _has_mail(self) -> bool:
        for parts in (layout.MESSAGES, layout.MAILBOXES):
            with contextlib.suppress(FileNotFoundError), self.directories.open(parts) as directory:
                if any(True for _ in os.scandir(directory)):
                    return True
        return False

    def _take_index(self, copy: str, base: str) -> None:
        with (
            contextlib.closing(tables.connect(copy)) as source,
            contextlib.closing(tables.connect(base, write=True)) as to,
        ):
            source.backup(to, pages=4096)
            to.execute("DELETE FROM cache_messages")

    def _check_snapshots(self) -> None:
        for seq in snapshots.available(self.directories):
            if not snapshots.verify(self.directories, seq):
                self.facts.damaged_snapshots.append(layout.snapshot_directory(seq)[-1])

    # --- the journal -----------------------------------------------------------------------------------------------

    def _replay(self, connection: sqlite3.Connection, start: int, limit: int | None) -> None:
        facts = self.facts
        facts.last_seq = start
        with contextlib.closing(tables.create(f"{self.scratch}/{NOTES}")) as notes:
            notes.execute("CREATE TABLE removed_folders (folder_id INTEGER PRIMARY KEY)")
            connection.execute("BEGIN")
            for record in journal.without_aborted(self._records(start)):
                if limit is not None and record.seq > limit:
                    break
                self._apply(connection, notes, record)
            reached = facts.last_seq if limit is None else min(facts.last_seq, max(limit, start))
            facts.last_seq = reached
            connection.execute("UPDATE meta SET value = ? WHERE key = 'applied_seq'", (reached,))
            connection.execute("COMMIT")

    def _apply(self, connection: sqlite3.Connection, notes: sqlite3.Connection, record: Record) -> None:
        connection.execute("SAVEPOINT record")
        try:
            for effect in record.effects:
                effects.apply_index(effect, connection, record.at)
                if effect["do"] == "remove-folder":
                    notes.execute("INSERT OR IGNORE INTO removed_folders VALUES (?)", (effect["folder"],))
        except (sqlite3.Error, KeyError, TypeError, IndexError, ValueError) as error:
            connection.execute("ROLLBACK TO record")
            self._gap(f"record {record.seq} cannot be replayed: {error}")
        connection.execute("RELEASE record")

    def _gap(self, why: str) -> None:
        self.facts.gap = self.facts.gap or why

    def _segments(self) -> list[int]:
        with contextlib.suppress(FileNotFoundError), self.directories.open(layout.JOURNAL) as directory:
            found = (layout.JOURNAL_SEGMENT.match(name) for name in os.listdir(directory))
            return sorted(int(match.group(1)) for match in found if match)
        return []

    def _records(self, start: int) -> Iterator[Record]:
        """Every record that verifies; what does not is noted. Those up to ``start`` are checked but not given."""
        facts = self.facts
        segments = self._segments()
        last = checkpoint.read(self.directories)
        durable = last.seq if last else 0
        expected = start + 1
        for number, first in enumerate(segments):
            if first > expected and first > start + 1:
                self._gap(f"records {expected} to {first - 1} are missing")
            expected = first if number == 0 or first > expected else expected
            for line in lines(self.directories, first):
                try:
                    record = journal.decode(line)
                except JournalDamaged:
                    if first == segments[-1] and expected > durable and _is_tail(self.directories, first, line):
                        facts.torn = layout.journal_segment(first)
                        break
                    facts.damaged_segments[layout.journal_segment(first)] = f"record {expected} does not verify"
                    if expected > start:
                        self._gap(f"record {expected} does not verify")
                    expected += 1
                    continue
                if record.seq != expected:
                    facts.damaged_segments[layout.journal_segment(first)] = f"record {expected} is missing"
                    if record.seq > start + 1:
                        self._gap(f"record {expected} is missing")
                expected = record.seq + 1
                facts.next_seq = max(facts.next_seq, record.seq + 1)
                if record.seq > start:
                    facts.last_seq = max(facts.last_seq, record.seq)
                    yield record
            if first == segments[-1]:
                facts.last_seq = max(facts.last_seq, first - 1)
                facts.next_seq = max(facts.next_seq, first)


def lines(directories: Directories, first: int) -> Iterator[bytes]:
    with directories.open(layout.JOURNAL) as directory:
        fd = disk.open_read(directory, layout.journal_segment(first))
    with open(fd, "rb", buffering=1 << 20) as file:
        yield from (line for line in file if line.strip(journal.PADDING))


def _is_tail(directories: Directories, first: int, line: bytes) -> bool:
    """Whether nothing that verifies follows this line."""
    seen = False
    for other in lines(directories, first):
        if seen:
            with contextlib.suppress(JournalDamaged):
                journal.decode(other)
                return False
        seen = seen or other == line
    return True


def start(root: str, scratch: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", __name__, root, scratch],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path])},
    )


def finish(process: subprocess.Popen[bytes], scratch: str) -> Facts:
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the replay failed: {errors.decode(errors='replace')[-2000:]}")
    with open(f"{scratch}/{FACTS}", "rb") as file:
        return Facts(**orjson.loads(file.read()))


def main() -> None:
    root, scratch = sys.argv[1:]
    workspace.write_file(f"{scratch}/{FACTS}", orjson.dumps(asdict(Replay(root, scratch).run())))


if __name__ == "__main__":
    main()
