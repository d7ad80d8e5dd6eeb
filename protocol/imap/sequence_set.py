"""Sequence sets (RFC 3501 9, sequence-set; RFC 5182 2.1, ``$``) and arithmetic on sets of numbers.

A set as the client wrote it is a :class:`SequenceSet`. Once ``*`` is known it becomes *spans*: inclusive
ranges, ascending, disjoint and not adjacent. No function here expands a range: cost follows the number of
ranges and of messages that exist, never the numbers written (``1:4294967295`` is one range).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from protocol.errors import ProtocolError
from protocol.imap.search.keys import STAR, Ranges

LARGEST = 0xFFFFFFFF

#: Inclusive ranges: ascending, disjoint, not adjacent.
Spans: TypeAlias = list[tuple[int, int]]


class SequenceSet(NamedTuple):
    """A set as written. ``saved`` is ``$``: no ranges, the caller puts its saved result in place."""

    ranges: Ranges
    saved: bool = False

    def resolve(self, largest: int) -> Spans:
        """The members from 1 to ``largest``, which is what ``*`` means (0 if there are no messages)."""
        found: list[tuple[int, int]] = []
        for first, last in self.ranges:
            low, high = first or largest, last or largest
            if low > high:
                low, high = high, low
            if low <= largest and largest:
                found.append((low, min(high, largest)))
        return found if len(found) < 2 else merge(found)

    def positions(self, count: int) -> list[range]:
        """As message numbers of a mailbox with ``count`` messages: the zero-based positions, ascending."""
        return [range(low - 1, high) for low, high in self.resolve(count)]

    def uid_positions(self, uids: Sequence[int]) -> list[range]:
        """As UIDs of a mailbox that has ``uids`` (ascending): the zero-based positions, ascending."""
        return span_positions(self.resolve(uids[-1]), uids) if uids else []


SAVED = SequenceSet((), saved=True)


# RFC 3501 9 sequence-set, seq-range, seq-number; RFC 5182 2.1 for "$"
def parse_set(text: bytes) -> SequenceSet:
    """Read a whole sequence set; ProtocolError if it is not one."""
    if text == b"$":
        return SAVED
    if text.isdigit():
        number = _seq_number(text)
        return SequenceSet(((number, number),))
    ranges: list[tuple[int, int]] = []
    for item in text.split(b","):
        first, colon, last = item.partition(b":")
        low = _seq_number(first)
        ranges.append((low, _seq_number(last) if colon else low))
    return SequenceSet(tuple(ranges))


def _seq_number(text: bytes) -> int:
    if text == b"*":
        return STAR
    if text.isdigit() and len(text) <= 10 and 0 < (number := int(text)) <= LARGEST:
        return number
    raise ProtocolError("Invalid sequence set")


def merge(ranges: Iterable[tuple[int, int]]) -> Spans:
    """The spans that cover the same numbers as ``ranges`` (each low to high, in any order)."""
    spans: Spans = []
    for low, high in sorted(ranges):
        if spans and low <= spans[-1][1] + 1:
            if high > spans[-1][1]:
                spans[-1] = (spans[-1][0], high)
        else:
            spans.append((low, high))
    return spans


def spans_of(numbers: Sequence[int]) -> Spans:
    """The spans of strictly ascending ``numbers``; a run costs the logarithm of its length."""
    spans: Spans = []
    start, count = 0, len(numbers)
    while start < count:
        step, low = 1, start
        while low + step < count and numbers[low + step] - numbers[start] == low + step - start:
            low += step
            step *= 2
        while step:
            if low + step < count and numbers[low + step] - numbers[start] == low + step - start:
                low += step
            step //= 2
        spans.append((numbers[start], numbers[low]))
        start = low + 1
    return spans


def span_positions(spans: Spans, numbers: Sequence[int]) -> list[range]:
    """Where the members of ``spans`` stand in ascending ``numbers``: non-empty ranges of positions."""
    found: list[range] = []
    start = 0
    for low, high in spans:
        first = bisect_left(numbers, low, start)
        start = bisect_right(numbers, high, first)
        if first < start:
            found.append(range(first, start))
    return found


def intersect(left: Spans, right: Spans) -> Spans:
    """The numbers in both."""
    found: Spans = []
    mine = theirs = 0
    while mine < len(left) and theirs < len(right):
        low = max(left[mine][0], right[theirs][0])
        high = min(left[mine][1], right[theirs][1])
        if low <= high:
            found.append((low, high))
        if left[mine][1] < right[theirs][1]:
            mine += 1
        else:
            theirs += 1
    return found


def subtract(left: Spans, right: Spans) -> Spans:
    """The numbers in ``left`` that are not in ``right``."""
    found: Spans = []
    start = 0
    for low, high in left:
        while start < len(right) and right[start][1] < low:
            start += 1
        index = start
        while index < len(right) and right[index][0] <= high:
            if low < right[index][0]:
                found.append((low, right[index][0] - 1))
            low = right[index][1] + 1
            index += 1
        start = max(start, index - 1)
        if low <= high:
            found.append((low, high))
    return found


def missing(spans: Spans, numbers: Sequence[int]) -> Spans:
    """The members of ``spans`` that are not in ascending ``numbers`` (RFC 7162 3.2.5: what vanished)."""
    return subtract(spans, spans_of(numbers))


def contains(spans: Spans, number: int) -> bool:
    index = bisect_right(spans, (number, LARGEST + 1)) - 1
    return index >= 0 and spans[index][1] >= number


# RFC 3501 9 sequence-set; RFC 4315 4 uid-set
def format_spans(spans: Iterable[tuple[int, int]]) -> bytes:
    return b",".join([b"%d" % low if low == high else b"%d:%d" % (low, high) for low, high in spans])


def format_set(numbers: Sequence[int]) -> bytes:
    """The shortest set of strictly ascending ``numbers``; empty for none."""
    return format_spans(spans_of(numbers))
