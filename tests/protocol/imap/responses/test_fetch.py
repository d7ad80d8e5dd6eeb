"""FETCH responses: rows from columns, streamed sections, dates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.imap.responses import fetch


def test_rows() -> None:
    assert fetch.fetch_rows(fetch.row_format([fetch.UID, fetch.FLAGS]), [1, 2], [[10, 20], [b"()", b"(\\Seen)"]]) == (
        b"* 1 FETCH (UID 10 FLAGS ())\r\n* 2 FETCH (UID 20 FLAGS (\\Seen))\r\n"
    )
    assert (
        fetch.fetch_rows(fetch.row_format([fetch.FLAGS], uid_only=True), [10], [[b"()"]])
        == b"* 10 UIDFETCH (FLAGS ())\r\n"
    )
    assert fetch.fetch_rows(fetch.row_format([fetch.UID]), [], [[]]) == b""


def test_columns_may_be_iterators_but_must_fit() -> None:
    assert fetch.fetch_rows(fetch.row_format([fetch.RFC822_SIZE]), range(1, 3), [iter([5, 6])]).count(b"\r\n") == 2
    with pytest.raises(ValueError, match="shorter"):
        fetch.fetch_rows(fetch.row_format([fetch.RFC822_SIZE]), [1, 2], [[5]])


def test_every_item() -> None:
    row = fetch.fetch_rows(
        fetch.row_format(
            [
                fetch.UID,
                fetch.FLAGS,
                fetch.INTERNALDATE,
                fetch.RFC822_SIZE,
                fetch.ENVELOPE,
                fetch.BODY,
                fetch.BODYSTRUCTURE,
                fetch.MODSEQ,
                fetch.EMAILID,
                fetch.THREADID,
                fetch.SAVEDATE,
                fetch.PREVIEW,
                fetch.section(b"BODY[HEADER.FIELDS (X-%d)]"),
            ]
        ),
        [1],
        [
            [2],
            [b"()"],
            [fetch.date_time(0)],
            [3],
            [b"(E)"],
            [b"(B)"],
            [b"(S)"],
            [9],
            [b"M1"],
            [b"T1"],
            [b"NIL"],
            [b'"Hi"'],
            [b'""'],
        ],
    )
    assert row == (
        b'* 1 FETCH (UID 2 FLAGS () INTERNALDATE " 1-Jan-1970 00:00:00 +0000" RFC822.SIZE 3 ENVELOPE (E)'
        b" BODY (B) BODYSTRUCTURE (S) MODSEQ (9) EMAILID (M1) THREADID (T1) SAVEDATE NIL"
        b' PREVIEW "Hi" BODY[HEADER.FIELDS (X-%d)] "")\r\n'
    )


def test_streamed_section() -> None:
    head = fetch.fetch_start(3) + b"UID 7 " + fetch.literal_head(b"BODY[]", 5)
    assert head + b"a\r\nb\n" + fetch.FETCH_END == b"* 3 FETCH (UID 7 BODY[] {5}\r\na\r\nb\n)\r\n"
    assert fetch.fetch_start(7, uid_only=True) == b"* 7 UIDFETCH ("
    assert fetch.literal_head(b"BINARY[1]<0>", 5, binary=True) == b"BINARY[1]<0> ~{5}\r\n"
    assert fetch.binary_size(b"BINARY.SIZE[1]", 5) == b"BINARY.SIZE[1] 5"


@given(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59), timezones=st.just(UTC)))
def test_date_time(when: datetime) -> None:
    seconds = (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)  # exact: a float rounds up far away
    written = fetch.date_time(seconds).decode()
    assert len(written) == 28
    expected = when.replace(microsecond=0)
    assert datetime.strptime(written.strip('"').strip(), "%d-%b-%Y %H:%M:%S %z") == expected


def test_date_time_far_away() -> None:
    assert fetch.date_time(10**15).startswith(b'"31-Dec-9999 ')
    assert fetch.date_time(-(10**15)).startswith(b'" 1-Jan-0001 ')
