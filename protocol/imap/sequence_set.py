"""Sequence sets (RFC 3501 9, sequence-set; RFC 5182 2.1, ``$``) and arithmetic on sets of numbers.

A :class:`SequenceSet` is a set as the client sent it. Resolved against a mailbox, which gives ``*`` its value, it
becomes *spans*: inclusive ranges, ascending, disjoint and not adjacent. No function here expands a range: the cost
depends on the number of ranges and of existing messages, never on the numbers sent (``1:4294967295`` is one range).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from protocol.errors import ProtocolError

LARGEST = 0xFFFFFFFF

#: ``*`` in a range: the largest number in use (RFC 3501 9, seq-number). Zero is never a valid number itself.
STAR = 0

#: The ranges of a sequence set, in the order sent; either end may be the larger (RFC 3501 9, seq-range).
Ranges: TypeAlias = tuple[tuple[int, int], ...]

#: Inclusive ranges: ascending, disjoint, not adjacent.
Spans: TypeAlias = list[tuple[int, int]]


class SequenceSet(NamedTuple):
    """A set as the client sent it. ``saved`` is ``$``: no ranges, the caller replaces it by the saved result."""

    ranges: Ranges
    saved: bool = False

    def resolve(self, largest: int) -> Spans:
        """Return the members from 1 to ``largest``, the value of ``*`` (0 if there are no messages)."""
        spans: list[tuple[int, int]] = []
        for first, last in self.ranges:
            low, high = first or largest, last or largest
            if low > high:
                low, high = high, low
            if low <= largest and largest:
                spans.append((low, min(high, largest)))
        return spans if len(spans) < 2 else merge(spans)

    def positions(self, count: int) -> list[range]:
        """Resolve message numbers in a mailbox with ``count`` messages to zero-based positions, ascending."""
        return [range(low - 1, high) for low, high in self.resolve(count)]

    def uid_positions(self, uids: Sequence[int]) -> list[range]:
        """Resolve UIDs in a mailbox with these ``uids`` (ascending) to zero-based positions, ascending."""
        return span_positions(self.resolve(uids[-1]), uids) if uids else []


SAVED = SequenceSet((), saved=True)


# RFC 3501 9 sequence-set, seq-range, seq-number; RFC 5182 2.1 for "$"
def parse_set(text: bytes) -> SequenceSet:
    """Parse a sequence set. Raises ProtocolError."""
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
    """Return the spans that cover the same numbers as ``ranges`` (each low to high, in any order)."""
    spans: Spans = []
    for low, high in sorted(ranges):
        if spans and low <= spans[-1][1] + 1:
            if high > spans[-1][1]:
                spans[-1] = (spans[-1][0], high)
        else:
            spans.append((low, high))
    return spans


def spans_of(numbers: Sequence[int]) -> Spans:
    """Return the spans of strictly ascending ``numbers``; the cost of a run is logarithmic in its length."""
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
    """Return the positions of the members of ``spans`` in ascending ``numbers``, as non-empty ranges."""
    positions: list[range] = []
    start = 0
    for low, high in spans:
        first = bisect_left(numbers, low, start)
        start = bisect_right(numbers, high, first)
        if first < start:
            positions.append(range(first, start))
    return positions


def intersect(left: Spans, right: Spans) -> Spans:
    """Return the numbers in both."""
    common: Spans = []
    i = j = 0
    while i < len(left) and j < len(right):
        low = max(left[i][0], right[j][0])
        high = min(left[i][1], right[j][1])
        if low <= high:
            common.append((low, high))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return common


def subtract(left: Spans, right: Spans) -> Spans:
    """Return the numbers in ``left`` that are not in ``right``."""
    rest: Spans = []
    start = 0
    for low, high in left:
        while start < len(right) and right[start][1] < low:
            start += 1
        index = start
        while index < len(right) and right[index][0] <= high:
            if low < right[index][0]:
                rest.append((low, right[index][0] - 1))
            low = right[index][1] + 1
            index += 1
        start = max(start, index - 1)
        if low <= high:
            rest.append((low, high))
    return rest


def missing(spans: Spans, numbers: Sequence[int]) -> Spans:
    """Return the members of ``spans`` that are not in ascending ``numbers`` (RFC 7162 3.2.5: vanished UIDs)."""
    return subtract(spans, spans_of(numbers))


def contains(spans: Spans, number: int) -> bool:
    index = bisect_right(spans, (number, LARGEST + 1)) - 1
    return index >= 0 and spans[index][1] >= number


# RFC 3501 9 sequence-set; RFC 4315 4 uid-set
def format_spans(spans: Iterable[tuple[int, int]]) -> bytes:
    return b",".join([b"%d" % low if low == high else b"%d:%d" % (low, high) for low, high in spans])


def format_set(numbers: Sequence[int]) -> bytes:
    """Format strictly ascending ``numbers`` as the shortest sequence set; empty for none."""
    return format_spans(spans_of(numbers))
