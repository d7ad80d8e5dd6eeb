"""SEARCH, ESEARCH and SORT responses, PARTIAL windows, and what SAVE keeps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.imap.search_response import (
    ReturnOptions,
    SearchAnswer,
    extended_search,
    partial_window,
    search_response,
    sort_response,
)

FOUND = [20, 100, 110, 120, 210]
NUMBER = {20: 2, 100: 10, 110: 11, 120: 12, 210: 21}


def numbers(uids: Sequence[int]) -> list[int]:
    return [NUMBER[uid] for uid in uids]


def answer(options: ReturnOptions, found: Sequence[int] = FOUND, uid: bool = False) -> SearchAnswer:
    return extended_search(b"A1", options, found, uid_command=uid, number_of=numbers)


def test_plain() -> None:
    assert search_response([2, 3]) == b"* SEARCH 2 3\r\n"
    assert search_response([]) == b"* SEARCH\r\n"
    assert search_response([2], 99) == b"* SEARCH 2 (MODSEQ 99)\r\n"
    assert search_response([], 99) == b"* SEARCH\r\n"
    assert sort_response([5, 3]) == b"* SORT 5 3\r\n"
    assert sort_response([5, 3], 7) == b"* SORT 5 3 (MODSEQ 7)\r\n"


def test_items() -> None:
    every = ReturnOptions(minimum=True, maximum=True, all=True, count=True)
    assert answer(every) == SearchAnswer(b'* ESEARCH (TAG "A1") MIN 2 MAX 21 ALL 2,10:12,21 COUNT 5\r\n', None)
    assert answer(every, uid=True).response == (
        b'* ESEARCH (TAG "A1") UID MIN 20 MAX 210 ALL 20,100,110,120,210 COUNT 5\r\n'
    )
    assert answer(every, []).response == b'* ESEARCH (TAG "A1") COUNT 0\r\n'
    assert answer(ReturnOptions(all=True), [], uid=True).response == b'* ESEARCH (TAG "A1") UID\r\n'


@pytest.mark.parametrize(
    ("options", "saved"),
    [
        (ReturnOptions(save=True), FOUND),
        (ReturnOptions(save=True, minimum=True), [20]),
        (ReturnOptions(save=True, maximum=True), [210]),
        (ReturnOptions(save=True, minimum=True, maximum=True), [20, 210]),
        (ReturnOptions(save=True, minimum=True, all=True), FOUND),
        (ReturnOptions(save=True, maximum=True, count=True), FOUND),
        (ReturnOptions(save=True, partial=(2, 3)), [100, 110]),
        (ReturnOptions(save=True, partial=(2, 3), minimum=True), [20, 100, 110]),
        (ReturnOptions(save=True, partial=(1, 2), minimum=True, maximum=True), [20, 100, 210]),
        (ReturnOptions(save=True, partial=(2, 3), count=True, maximum=True), FOUND),
        (ReturnOptions(minimum=True), None),
    ],
)
def test_save(options: ReturnOptions, saved: list[int] | None) -> None:
    """RFC 5182 2.4 and RFC 9394 3.2, table 1."""
    assert answer(options).saved == saved
    if options.save:
        assert answer(options, []).saved == []


def test_save_alone_says_nothing() -> None:
    assert answer(ReturnOptions(save=True)).response == b""
    assert answer(ReturnOptions(save=True, count=True)).response == b'* ESEARCH (TAG "A1") COUNT 5\r\n'


def test_partial() -> None:
    assert answer(ReturnOptions(partial=(2, 3))).response == b'* ESEARCH (TAG "A1") PARTIAL (2:3 10:11)\r\n'
    assert answer(ReturnOptions(partial=(-1, -2)), uid=True).response == (
        b'* ESEARCH (TAG "A1") UID PARTIAL (-1:-2 120,210)\r\n'
    )
    assert answer(ReturnOptions(partial=(9, 12))).response == b'* ESEARCH (TAG "A1") PARTIAL (9:12 NIL)\r\n'
    assert answer(ReturnOptions(partial=(1, 2)), []).response == b'* ESEARCH (TAG "A1") PARTIAL (1:2 NIL)\r\n'


@given(st.integers(0, 12), st.integers(1, 15), st.integers(1, 15), st.booleans())
def test_partial_window(count: int, first: int, last: int, from_end: bool) -> None:
    found = list(range(100, 100 + count))
    low, high = min(first, last), max(first, last)
    window = (-first, -last) if from_end else (first, last)
    ordered = found[::-1] if from_end else found
    assert list(partial_window(found, window)) == sorted(ordered[low - 1 : high])


@pytest.mark.parametrize(
    ("options", "modseq"),
    [
        (ReturnOptions(minimum=True), 120),
        (ReturnOptions(maximum=True), 310),
        (ReturnOptions(minimum=True, maximum=True), 310),
        (ReturnOptions(count=True), 310),
        (ReturnOptions(partial=(2, 3)), 210),
    ],
)
def test_modseq(options: ReturnOptions, modseq: int) -> None:
    """RFC 4731 3.2: of the messages the answer is about."""
    got = extended_search(
        b"A1",
        options,
        FOUND,
        uid_command=True,
        number_of=numbers,
        modseq_of=lambda uids: [uid + 100 for uid in uids],
    )
    assert got.response.endswith(b" MODSEQ %d\r\n" % modseq)
    empty = extended_search(b"A1", options, [], uid_command=True, number_of=numbers, modseq_of=lambda uids: list(uids))
    assert b"MODSEQ" not in empty.response
