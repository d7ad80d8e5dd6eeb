"""The journal: an append-only log of every mutation; its fsync is the commit point.

One record is one line: a JSON object with its sequence number first and a CRC-32 of everything before it last. Records
live in segments named after their first sequence number. Sequence numbers have no gaps.

The first line of a segment is its header (:mod:`adapter.store.segments`). The headers chain the segments: a segment of
another store, or of another history of this one, does not fit.

Behind the last record of the newest segment there may be padding: spaces that the next records overwrite. Their fsync
then finds the file's size and blocks on disk already and has nothing but octets to write. A segment is cut to its
records before the next one is begun: where there is padding, there is no later segment.

Invariants: only the holder of the index lock appends, cuts or rotates. A line that does not verify, after the last
checkpoint, is a torn append that was never acknowledged: it is cut. Anywhere else it is damage, which is reported and
never cut. A batch that failed after it was written is followed directly by an ``abort`` record that names it.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import zlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from msgspec import MsgspecError, Raw, Struct
from msgspec.json import Decoder, Encoder
from pybase64 import b64decode, b64encode

from adapter.store import disk, layout, store_id
from adapter.store.disk import Directories
from adapter.store.effects import Actor, Effect, Octets
from adapter.store.segments import (
    BEGINNING,
    PADDING,
    Header,
    JournalDamaged,
    JournalForeign,
    Lines,
    begin_segment,
    checksum_of,
    read_header,
    read_header_of,
    sequence,
    verifies,
)

__all__ = [
    "MAX_BATCH",
    "PADDING",
    "Journal",
    "JournalDamaged",
    "JournalForeign",
    "Record",
    "decode",
    "taken_back",
    "without_aborted",
]

SEGMENT_BYTES = 16 << 20
MAX_BATCH = 512  # records between an abort and the first record it may name
_LEAST_PADDING, _MOST_PADDING = 256 << 10, 4 << 20
_PADDED_BATCHES = 16  # as large as the one that has no room
#: From so many octets on, a batch makes no room for others: to write all of it twice takes longer than its fsync gains.
_LARGE_BATCH = 256 << 10


class Record(Struct, omit_defaults=True, kw_only=True):
    """One operation: what it was, when, who caused it, and the effects it has on files and index."""

    seq: int = 0  # set when the record is appended; the first field of a line
    at: int  # microseconds since the epoch
    op: str
    actor: Actor
    effects: list[Effect]
    aborted: tuple[int, int] | None = None  # set on abort records: first and last seq

    def encode(self) -> bytes:
        return b"".join(self.pieces())

    def pieces(self) -> tuple[memoryview, bytes]:
        """The line in two pieces, so that a large record need not be copied to get its end."""
        head = memoryview(_ENCODER.encode(self))[:-1]
        return head, b',"crc":"%08x"}\n' % zlib.crc32(head)


def _encode_octets(octets: Any) -> Raw:
    return Raw(b'"%b"' % b64encode(octets.raw))


def _decode_octets(_: type, text: Any) -> Octets:
    return Octets(b64decode(text, validate=True))


_ENCODER = Encoder(enc_hook=_encode_octets)
_DECODER = Decoder(Record, dec_hook=_decode_octets)


def decode(line: bytes) -> Record:
    """Parse one complete line (with its line end). Raises :class:`JournalDamaged`."""
    if not verifies(line):
        raise JournalDamaged("checksum does not match")
    try:
        return _DECODER.decode(line)
    except (MsgspecError, ValueError) as error:
        raise JournalDamaged("not a record") from error


def without_aborted(records: Iterator[Record]) -> Iterator[Record]:
    """The records that count: an abort record cancels the batch written directly before it."""
    waiting: deque[Record] = deque()
    for record in records:
        if record.aborted:
            first, last = record.aborted
            while waiting and waiting[-1].seq >= first and waiting[-1].seq <= last:
                waiting.pop()
            continue
        waiting.append(record)
        if len(waiting) > MAX_BATCH:
            yield waiting.popleft()
    yield from waiting


def taken_back(records: list[Record]) -> list[Record]:
    """The records that an abort record cancels."""
    counting = {record.seq for record in without_aborted(iter(records))}
    return [record for record in records if not record.aborted and record.seq not in counting]


class Journal:
    def __init__(self, directories: Directories, store: str | None = None) -> None:
        """``store``: its id; by default the one that the root names."""
        self._directories = directories
        self._store = store
        self._segment = 0  # first seq of the segment we append to; 0 = none yet
        self._fd = -1
        self._start = 0  # octets of the segment's header
        self._after = BEGINNING  # checksum of the record before the segment
        self._end = 0  # octets of the header and of verified records in the segment
        self._room = 0  # octets of the segment, padding included
        self._unread = True  # octets after the known records were not read yet
        self._before_batch = (0, 0, BEGINNING)  # _end, last_seq and last_checksum before the last append
        self.last_seq = 0
        self.last_checksum = BEGINNING  # of the last record
        self.durable_seq = 0  # of the last checkpoint: nothing up to here can be a torn append

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def segments(self) -> list[int]:
        with self._directories.stable(layout.JOURNAL) as directory:
            matches = (layout.JOURNAL_SEGMENT.match(name) for name in os.listdir(directory))
        return sorted(int(match.group(1)) for match in matches if match)

    @property
    def store(self) -> str:
        """The id of the store. Raises :class:`JournalDamaged` if nothing names it."""
        if self._store is None:
            self._store = store_id.read(self._directories)
        if self._store is None:
            raise JournalDamaged(f"{layout.STORE_ID_FILE} is missing or damaged")
        return self._store

    def check_store(self) -> None:
        """Raise :class:`JournalForeign` if a segment belongs to another store."""
        for first in self.segments():
            with contextlib.suppress(FileNotFoundError):  # compacted away by now
                self._check_header(read_header(self._directories, first))

    def checksum_at(self, seq: int) -> str | None:
        """The checksum of a record; None if it is not in the journal."""
        if seq == self.last_seq:
            return self.last_checksum
        segments = self.segments()
        if seq + 1 in segments:
            return read_header(self._directories, seq + 1).after
        first = max((first for first in segments if first <= seq), default=0)
        for line in self._lines(first) if first else ():
            if sequence(line) == seq:
                return checksum_of(line)
        return None

    # --- for the holder of the index lock --------------------------------------------------------------------------

    def refresh(self) -> None:
        """Take in what others appended since the last call; cut a torn tail."""
        if self._fd >= 0 and os.fstat(self._fd).st_nlink == 0:
            self.close()  # compacted away by another process
        if self._fd < 0:
            self._open_newest()
        while self._fd >= 0:
            self._room = os.fstat(self._fd).st_size
            if self._room < self._end:
                raise JournalDamaged("the journal became shorter")
            if self._room > self._end and (self._unread or os.pread(self._fd, 1, self._end) not in PADDING):
                self._scan_tail()
            self._unread = False
            if self._room > self._end or not self._follow_rotation():
                return

    def append(self, records: list[Record]) -> None:
        """Write the records and make them durable. On failure the journal is as it was before."""
        if self._fd < 0 and self._segment:
            raise OSError(errno.EIO, "the end of the journal is unknown until it is read again")
        follows_its_batch = records[0].aborted is not None
        if self._fd < 0 or (self._end >= SEGMENT_BYTES and not follows_its_batch):
            self._rotate()
        for number, record in enumerate(records, self.last_seq + 1):
            record.seq = number
        pieces = [piece for record in records for piece in record.pieces()]
        checksum = checksum_of(bytes(pieces[-1]))
        size = sum(map(len, pieces))
        end = self._end + size
        room = self._room
        if end > room:
            padding = min(max(_LEAST_PADDING, _PADDED_BATCHES * size), _MOST_PADDING)
            room = end if size >= _LARGE_BATCH else end + padding
        try:
            disk.write_at(self._fd, pieces, self._end, spaces=room - end if room > self._room else 0)
            disk.sync_data(self._fd)
        except OSError:
            self._take_back()
            raise
        self._before_batch = (self._end, self.last_seq, self.last_checksum)
        self._end, self._room = end, room
        self.last_seq += len(records)
        self.last_checksum = checksum

    def write_again(self, after: int) -> None:
        """Write and sync the records after this one once more, before anything is built on them.

        Their sync may have failed in the process that wrote them: the kernel then shows pages that never reached the
        disk, and a later sync reports no error. They are in the newest segment: a process that begins one has
        applied all records before it.
        """
        start = 0
        with Lines(os.dup(self._fd), 0) as lines:
            for line in lines:
                if start == self._end or sequence(line) > after:
                    break
                start += len(line)
        if start < self._end:
            disk.write_at(self._fd, [os.pread(self._fd, self._end - start, start)], start)
            disk.sync_data(self._fd)

    @property
    def is_known(self) -> bool:
        """False after a failed rollback: only :meth:`refresh` can determine what the journal holds."""
        return self._fd >= 0 or not self._segment

    @property
    def extent(self) -> tuple[int, int]:
        """The first record of the newest segment (0: there is none) and how many octets header and records have."""
        return self._segment, self._end

    def forget_last_batch(self) -> None:
        """Cut the last batch off again: it failed, and there was no room even for an abort record."""
        if self._fd >= 0:
            self._end, self.last_seq, self.last_checksum = self._before_batch
            self._take_back()

    def rotate(self) -> None:
        """Start a new segment with the next record, so that a snapshot ends on a segment's border."""
        if self._end > self._start:
            self._rotate()

    def go_on_after(self, seq: int, checksum: str) -> None:
        """Start a new segment behind this record, unless the journal has reached it: a snapshot holds what led here."""
        if self.last_seq < seq:
            self.last_seq, self.last_checksum = seq, checksum
            self._rotate()

    def remove_segments_before(self, seq: int) -> list[int]:
        """Remove segments with no record after ``seq`` (a snapshot holds what they led to)."""
        segments = self.segments()
        removable = [first for first, following in itertools.pairwise(segments) if following <= seq + 1]
        with self._directories.stable(layout.JOURNAL) as directory:
            for first in removable:
                disk.unlink(directory, layout.journal_segment(first))
            disk.sync_directory(directory)
        return removable

    def _follow_rotation(self) -> bool:
        following = self.last_seq + 1
        if following == self._segment:
            return False
        with self._directories.stable(layout.JOURNAL) as directory:
            try:
                fd = disk.open_log(directory, layout.journal_segment(following), create=False)
            except FileNotFoundError:
                return False
        try:
            header, size = read_header_of(os.dup(fd), following)
            self._check_header(header)
            if header.after != self.last_checksum:
                raise JournalDamaged(f"record {self.last_seq} is not the one that record {following} followed")
        except BaseException:
            os.close(fd)
            raise
        self.close()
        self._fd, self._segment, self._unread = fd, following, True
        self._start = self._end = size
        self._after = header.after
        return True

    def _check_header(self, header: Header) -> None:
        if header.store != self.store:
            raise JournalForeign(f"{layout.journal_segment(header.first)} belongs to store {header.store}")

    def _open_newest(self) -> None:
        segments = self.segments()
        if not segments:
            self._segment = self._start = self._end = self.last_seq = 0
            self.last_checksum = BEGINNING
            return
        newest = segments[-1]
        with self._directories.stable(layout.JOURNAL) as directory:
            fd = disk.open_log(directory, layout.journal_segment(newest), create=False)
        try:
            header, size = read_header_of(os.dup(fd), newest)
            self._check_header(header)
        except BaseException:
            os.close(fd)
            raise
        if newest != self._segment:
            # The newest segment starts right after everything before it.
            self._segment, self._start, self._after = newest, size, header.after
            self._end, self.last_seq, self.last_checksum = size, newest - 1, header.after
        self._fd, self._unread = fd, True

    def _scan_tail(self) -> None:
        with Lines(os.dup(self._fd), self._end) as lines:
            for line in lines:
                if sequence(line) != self.last_seq + 1:
                    break
                self.last_seq += 1
                self.last_checksum = checksum_of(line)
                self._end += len(line)
        if not self._unread and os.pread(self._fd, 1, self._end) in PADDING:
            return  # written by a live process: only a power loss tears out of order
        torn = os.pread(self._fd, self._room - self._end, self._end).rstrip(PADDING)
        if not torn:
            return
        if self.last_seq < self.durable_seq:
            raise JournalDamaged(f"record {self.last_seq + 1} does not verify")
        if b"\n" in torn:  # more than one torn line: the disk wrote out of order; keep it for inspection
            with self._directories.open(layout.QUARANTINE, create=True) as quarantine:
                name = f"journal-tail-{self.last_seq + 1}-{os.urandom(4).hex()}.jsonl"
                disk.write_new(quarantine, name, torn, sync=True)
        disk.truncate(self._fd, self._end)
        disk.sync_data(self._fd)
        self._room = self._end

    def _rotate(self) -> None:
        first = self.last_seq + 1
        if self._fd >= 0 and self._room > self._end:
            disk.truncate(self._fd, self._end)  # first: padding means that there is no later segment
            self._room = self._end
        header = Header(self.store, first, self.last_checksum)
        begin_segment(self._directories, header)
        with self._directories.stable(layout.JOURNAL) as directory:
            fd = disk.open_log(directory, layout.journal_segment(first), create=False)
        self.close()
        self._fd, self._segment, self._after = fd, first, header.after
        self._start = self._end = self._room = len(header.encode())

    def _take_back(self) -> None:
        try:
            disk.truncate(self._fd, self._end)
            self._room = self._end
        except OSError:
            # The content of the file is unknown now; the next refresh reads it again from the start of the segment.
            self.close()
            self._end, self.last_seq, self.last_checksum = self._start, self._segment - 1, self._after
            return
        with contextlib.suppress(OSError):  # should it come back after a power loss, it is whole and rolled forward
            disk.sync_data(self._fd)

    # --- for readers (no lock) -------------------------------------------------------------------------------------

    def records(self, after: int, upto: int | None = None, checksum: str | None = None) -> Iterator[Record]:
        """Verified records with ``after < seq <= upto``. Raises :class:`JournalDamaged` at the first bad line or gap.

        A torn tail only ends the iteration if the caller names no ``upto``. ``checksum``: that of record ``after``, as
        the caller knows it: it must be the same here.
        """
        expected = after + 1
        begun = False
        last: str | None = None  # checksum of the record read last
        segments = self.segments()
        for first, following in zip(segments, [*segments[1:], None]):
            if following is not None and following <= after + 1:
                continue
            if first > expected or (begun and first != expected):
                raise JournalDamaged(f"records {expected} to {first - 1} are missing")
            header, lines = self._segment_lines(first)
            self._check_header(header)
            if begun and header.after != last:
                raise JournalDamaged(f"record {first - 1} is not the one that record {first} followed")
            expected, begun, last = first, True, header.after
            _compare(checksum, last, after, first - 1)
            for line in lines:
                if upto is not None and expected > upto:
                    return
                try:
                    record = decode(line)
                    if record.seq != expected:
                        raise JournalDamaged("sequence number out of order")
                except JournalDamaged as error:
                    if following is None and upto is None:
                        return
                    raise JournalDamaged(f"record {expected}: {error}") from None
                expected += 1
                last = checksum_of(line)
                if record.seq > after:
                    yield record
                else:
                    _compare(checksum, last, after, record.seq)
        if upto is not None and expected <= upto:
            raise JournalDamaged(f"records {expected} to {upto} are missing")

    def _segment_lines(self, first: int) -> tuple[Header, Iterator[bytes]]:
        """The header of a segment and the lines behind it."""
        return read_header(self._directories, first), self._lines(first)

    def _lines(self, first: int) -> Iterator[bytes]:
        """The lines of a segment behind its header."""
        with self._directories.stable(layout.JOURNAL) as directory:
            fd = disk.open_read(directory, layout.journal_segment(first))
        with Lines(fd, 0) as lines:
            yield from itertools.islice(lines, 1, None)


def _compare(expected: str | None, checksum: str, after: int, seq: int) -> None:
    """Raise :class:`JournalDamaged` if ``seq`` is the record that a caller knows, and another one."""
    if expected is not None and seq == after and checksum != expected:
        raise JournalDamaged(f"record {seq} has the checksum {checksum}, not {expected}")
