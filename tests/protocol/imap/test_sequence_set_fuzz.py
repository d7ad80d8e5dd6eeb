"""Sequence sets and modified UTF-7 against plain models."""

from __future__ import annotations

import time
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.imap.sequence_set import (
    LARGEST,
    STAR,
    SequenceSet,
    contains,
    format_set,
    intersect,
    merge,
    missing,
    parse_set,
    span_positions,
    spans_of,
    subtract,
)
from protocol.imap.wire import utf7

numbers = st.sets(st.integers(1, 60)).map(sorted)
seq_number = st.integers(0, 60)
sets = st.lists(st.tuples(seq_number, seq_number), min_size=1, max_size=8).map(lambda r: SequenceSet(tuple(r)))


def expand(spans: list[tuple[int, int]]) -> list[int]:
    return [n for low, high in spans for n in range(low, high + 1)]


def model(chosen: SequenceSet, largest: int) -> list[int]:
    members: set[int] = set()
    for first, last in chosen.ranges:
        low, high = sorted((first or largest, last or largest))
        members.update(range(low, high + 1))
    return sorted(n for n in members if 1 <= n <= largest)


@given(sets, st.integers(0, 60))
def test_resolve_is_the_set_clamped(chosen: SequenceSet, largest: int) -> None:
    spans = chosen.resolve(largest)
    assert expand(spans) == model(chosen, largest)
    assert all(a[1] + 1 < b[0] for a, b in pairwise(spans))


@given(sets, numbers)
def test_positions_in_uids(chosen: SequenceSet, uids: list[int]) -> None:
    members = set(model(chosen, uids[-1] if uids else 0))
    resolved = [uids[p] for r in chosen.uid_positions(uids) for p in r]
    assert resolved == [u for u in uids if u in members]


@given(sets)
def test_sets_round_trip(chosen: SequenceSet) -> None:
    def spell(n: int) -> str:
        return "*" if n == STAR else str(n)

    text = ",".join(f"{spell(a)}:{spell(b)}" if a != b else spell(a) for a, b in chosen.ranges)
    assert parse_set(text.encode()) == chosen


@given(numbers)
def test_spans_of_and_format(chosen: list[int]) -> None:
    spans = spans_of(chosen)
    assert expand(spans) == chosen
    assert spans == merge((n, n) for n in chosen)
    if chosen:
        assert expand(parse_set(format_set(chosen)).resolve(LARGEST)) == chosen
    else:
        assert format_set(chosen) == b""


@given(numbers, numbers)
def test_set_algebra(a: list[int], b: list[int]) -> None:
    left, right = spans_of(a), spans_of(b)
    assert expand(intersect(left, right)) == sorted(set(a) & set(b))
    assert expand(subtract(left, right)) == sorted(set(a) - set(b))
    assert expand(merge(left + right)) == sorted(set(a) | set(b))
    assert expand(missing(left, b)) == sorted(set(a) - set(b))
    assert [n for n in range(62) if contains(left, n)] == a
    assert [b[p] for r in span_positions(left, b) for p in r] == sorted(set(a) & set(b))


@given(st.binary(max_size=20))
def test_any_bytes_are_a_set_or_an_error(text: bytes) -> None:
    try:
        assert parse_set(text).ranges or text == b"$"
    except ProtocolError:
        pass


def test_cost_of_huge_ranges_depends_on_existing_messages() -> None:
    uids = list(range(1, 200_001, 2))
    started = time.process_time()
    for _ in range(1000):
        assert parse_set(b"1:4294967295").uid_positions(uids) == [range(100_000)]
        assert parse_set(b"1:*").positions(10) == [range(10)]
    many = parse_set(b",".join(b"%d" % n for n in range(20_000, 0, -2)))
    assert sum(map(len, many.uid_positions(uids))) == 0
    assert len(format_set(range(1, 1_000_000))) == 8
    assert time.process_time() - started < 10


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_utf7_round_trip(name: str) -> None:
    assert utf7.decode(utf7.encode(name)) == name


@given(st.text("&-,+AOk0w Z~é", max_size=16).map(lambda s: s.encode()))
def test_utf7_has_one_encoding(spelling: bytes) -> None:
    try:
        name = utf7.decode(spelling)
    except ProtocolError:
        return
    assert utf7.encode(name) == spelling
