"""Following the journal: what the change feed reads, without a lock and nothing twice."""

from __future__ import annotations

from collections.abc import Iterator

from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.store.journal import Journal, JournalDamaged, Record, decode, without_aborted
from adapter.store.segments import Lines, decode_header, sequence


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
            self.seq, self._segment, self._offset = before  # what was not passed on is read again
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
