"""Journal segments as files: lines with checksums, the header that chains a segment to the one before, the padding.

The first line of a segment is its header: the id of the store, the number of its first record, and the checksum of the
record before that one. A segment appears together with its header, under its name, or not at all.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import orjson

from adapter.store import disk, layout
from adapter.store.disk import Directories

_CRC_SUFFIX = len(b',"crc":"00000000"}')
_CRC_DIGITS = 8
BEGINNING = "00000000"  # in place of the checksum of the record before the first
#: No record starts with any of these; NUL is what a power loss leaves of padding that was on its way to the disk.
PADDING = b" \0"


class JournalDamaged(Exception):  # noqa: N818 - a state of the store, reported by name
    """A record inside the journal does not verify."""


class JournalForeign(JournalDamaged):
    """A segment belongs to another store."""


class Header(NamedTuple):
    """The first line of a segment."""

    store: str
    first: int  # sequence number of the first record
    after: str  # checksum of the record before it

    def encode(self) -> bytes:
        head = orjson.dumps({"store": self.store, "first": self.first, "after": self.after})[:-1]
        return b'%b,"crc":"%08x"}\n' % (head, zlib.crc32(head))


def decode_header(line: bytes) -> Header:
    """Parse the first line of a segment. Raises :class:`JournalDamaged`."""
    if not verifies(line):
        raise JournalDamaged("the header of the segment does not verify")
    try:
        body = orjson.loads(line)
        header = Header(str(body["store"]), int(body["first"]), str(body["after"]))
    except (ValueError, KeyError, TypeError) as error:
        raise JournalDamaged("the segment has no header") from error
    return header


def read_header(directories: Directories, first: int) -> Header:
    """The header of the segment of that name. Raises :class:`JournalDamaged`."""
    with directories.stable(layout.JOURNAL) as directory:
        fd = disk.open_read(directory, layout.journal_segment(first))
    return read_header_of(fd, first)[0]


def read_header_of(fd: int, first: int) -> tuple[Header, int]:
    """The header and its octets; owns the descriptor."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):  # reading a pipe would never end
        os.close(fd)
        raise JournalDamaged(f"{layout.journal_segment(first)} is not a file")
    with Lines(fd, 0) as lines:
        line = next(iter(lines), b"")
    header = decode_header(line)
    if header.first != first:
        raise JournalDamaged(f"{layout.journal_segment(first)} is the segment of record {header.first}")
    return header, len(line)


def begin_segment(directories: Directories, header: Header) -> None:
    """Make a segment that holds no record yet. Raises OSError; the segment is not there then."""
    name = layout.journal_segment(header.first)
    with directories.stable(layout.JOURNAL) as directory:
        try:
            disk.replace_file(directory, name, header.encode())
        except BaseException:
            with contextlib.suppress(OSError):  # others would follow to it, while we go on in the old one
                disk.unlink(directory, name)
            raise


def checksum_of(line: bytes) -> str:
    """The checksum that a record's line carries."""
    return line[-_CRC_DIGITS - 3 : -3].decode("ascii", "replace")


def verifies(line: bytes) -> bool:
    """True if the checksum of a line matches."""
    head = memoryview(line)[: -_CRC_SUFFIX - 1]
    return line[len(head) :] == b',"crc":"%08x"}\n' % zlib.crc32(head)


def sequence(line: bytes) -> int:
    """The sequence number of a line with a matching checksum, else -1; much cheaper than :func:`decode`."""
    if not line.startswith(b'{"seq":') or not verifies(line):
        return -1
    digits = line[7 : line.find(b",", 7)]
    return int(digits) if digits.isdigit() else -1


class Lines(contextlib.AbstractContextManager["Lines"]):
    """Complete lines of a descriptor from an offset on, up to the padding; owns the descriptor."""

    def __init__(self, fd: int, offset: int) -> None:
        self._file = io.BufferedReader(io.FileIO(fd), 1 << 16)
        self._file.seek(offset)

    def __iter__(self) -> Iterator[bytes]:
        while self._file.peek(1)[:1] not in PADDING and (line := self._file.readline()).endswith(b"\n"):
            yield line

    def __exit__(self, *_: object) -> None:
        self._file.close()
