"""Sequence sets: the grammar, and corner cases of ``*``."""

from __future__ import annotations

import pytest

from protocol.errors import ProtocolError
from protocol.imap.sequence_set import SAVED, SequenceSet, format_set, parse_set


@pytest.mark.parametrize(
    ("text", "largest", "spans"),
    [
        (b"1", 5, [(1, 1)]),
        (b"2:4", 5, [(2, 4)]),
        (b"4:2", 5, [(2, 4)]),
        (b"*", 5, [(5, 5)]),
        (b"*:3", 5, [(3, 5)]),
        (b"7:*", 5, [(5, 5)]),  # RFC 3501 9: always includes the largest
        (b"*:7", 5, [(5, 5)]),
        (b"*", 0, []),
        (b"1:*", 0, []),
        (b"6:9", 5, []),
        (b"5,3,1,4", 9, [(1, 1), (3, 5)]),
        (b"1:4294967295", 5, [(1, 5)]),
    ],
)
def test_ranges_resolve_to_ascending_spans(text: bytes, largest: int, spans: list[tuple[int, int]]) -> None:
    assert parse_set(text).resolve(largest) == spans


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"0",
        b"1:0",
        b"1,",
        b",1",
        b"1::2",
        b"1:2:3",
        b"-1",
        b"1.2",
        b"4294967296",
        b"9" * 5000,
        b"$,1",
        b"**",
        b"\xb2",
    ],
)
def test_invalid_sets_are_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_set(text)


def test_dollar_is_the_saved_result() -> None:
    assert parse_set(b"$") is SAVED
    assert SAVED.saved
    assert SAVED.resolve(9) == []


def test_star_is_the_largest_uid() -> None:
    assert parse_set(b"100:*").uid_positions([3, 7, 9]) == [range(2, 3)]
    assert parse_set(b"*").uid_positions([]) == []


def test_format_is_compact() -> None:
    assert format_set([1, 2, 3, 5, 7, 8]) == b"1:3,5,7:8"
    assert SequenceSet(((1, 1),)).positions(3) == [range(1)]
