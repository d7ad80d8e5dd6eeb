r"""FETCH responses, assembled from encoded values (RFC 3501 7.4.2): a hot path.

A FETCH of many messages is a table: one format for the row, one column per item. All rows are written by a single
formatting operation::

    fetch_rows(row_format([UID, FLAGS]), rows.numbers, [rows.uids, map(flags.encoded.__getitem__, masks)])

A body is streamed: ``fetch_start``, items, the head of its literal, its octets, ``FETCH_END``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from itertools import chain

# Formats of the items for fetch_rows: %d for a column of numbers, %b for one of encoded values.
UID = b"UID %d"  # RFC 3501 7.4.2
FLAGS = b"FLAGS %b"  # RFC 3501 7.4.2; flags.FlagTable.encoded
INTERNALDATE = b"INTERNALDATE %b"  # RFC 3501 7.4.2; date_time()
RFC822_SIZE = b"RFC822.SIZE %d"  # RFC 3501 7.4.2
ENVELOPE = b"ENVELOPE %b"  # RFC 3501 7.4.2; envelope.encode_envelope()
BODY = b"BODY %b"  # RFC 3501 7.4.2; envelope.encode_structure(extended=False)
BODYSTRUCTURE = b"BODYSTRUCTURE %b"  # RFC 3501 7.4.2; envelope.encode_structure(extended=True)
MODSEQ = b"MODSEQ (%d)"  # RFC 7162 3.1.4.2
EMAILID = b"EMAILID (%b)"  # RFC 8474 5.1
THREADID = b"THREADID (%b)"  # RFC 8474 5.2
SAVEDATE = b"SAVEDATE %b"  # RFC 8514 4.2; date_time() or NIL
PREVIEW = b"PREVIEW %b"  # RFC 8970 3.2; a string

FETCH_END = b")\r\n"

_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")
_EPOCH = date(1970, 1, 1).toordinal()
_FIRST_DAY = 1 - _EPOCH
_LAST_DAY = date(9999, 12, 31).toordinal() - _EPOCH
_MAX_CACHED_DAYS = 20_000
_MINUTES = [b"%02d:%02d:" % divmod(minute, 60) for minute in range(1440)]
_SECONDS = [b'%02d +0000"' % second for second in range(60)]
_days: dict[int, bytes] = {}


def section(label: bytes) -> bytes:
    """Return the format of an item with a label chosen by the client: ``BODY[HEADER.FIELDS (To)]<0>``"""
    return label.replace(b"%", b"%%") + b" %b"


def row_format(formats: Sequence[bytes], *, uid_only: bool = False) -> bytes:
    """Return the format of one response: FETCH, or UIDFETCH under UIDONLY (RFC 9586 3)."""
    return (b"* %d UIDFETCH (" if uid_only else b"* %d FETCH (") + b" ".join(formats) + FETCH_END


def fetch_rows(row: bytes, numbers: Iterable[int], columns: Sequence[Iterable[int] | Iterable[bytes]]) -> bytes:
    """Encode one response per number (under UIDONLY: per UID), with a column for every item of the format.

    Callers pass a few thousand rows at a time, to limit memory.
    """
    values = tuple(chain.from_iterable(zip(numbers, *columns, strict=True)))
    return row * (len(values) // (len(columns) + 1)) % values


def fetch_start(number: int, *, uid_only: bool = False) -> bytes:
    """Encode the beginning of one response; its items, separated by spaces, and ``FETCH_END`` follow."""
    return (b"* %d UIDFETCH (" if uid_only else b"* %d FETCH (") % number


# RFC 3501 4.3.1, 9 CHAR8: only a literal8 may contain NUL
def without_nul(octets: bytes) -> bytes:
    """Replace NUL by 0x80, as Dovecot does, for an ordinary literal: all sizes remain correct."""
    return octets.replace(b"\0", b"\x80")


# RFC 3501 4.3; RFC 3516 4.3 for literal8, which may contain NUL
def literal_head(label: bytes, size: int, *, binary: bool = False) -> bytes:
    """Encode the label and literal head of a section of ``size`` octets."""
    return (b"%b ~{%d}\r\n" if binary else b"%b {%d}\r\n") % (label, size)


# RFC 3516 4.3
def binary_size(label: bytes, size: int) -> bytes:
    """``BINARY.SIZE[1.2] 48213``"""
    return b"%b %d" % (label, size)


# RFC 3501 9, date-time
def date_time(seconds: int) -> bytes:
    """Encode seconds since 1970 for INTERNALDATE or SAVEDATE, in UTC: ``"17-Jul-1996 02:44:25 +0000"``."""
    day, rest = divmod(seconds, 86400)
    encoded = _days.get(day)
    if encoded is None:
        if len(_days) >= _MAX_CACHED_DAYS:
            _days.clear()
        then = date.fromordinal(_EPOCH + min(max(day, _FIRST_DAY), _LAST_DAY))
        encoded = _days[day] = b'"%2d-%b-%04d ' % (then.day, _MONTHS[then.month - 1], then.year)
    return encoded + _MINUTES[rest // 60] + _SECONDS[rest % 60]
