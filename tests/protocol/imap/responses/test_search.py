"""SEARCH, ESEARCH and SORT responses, PARTIAL windows, and what SAVE keeps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.imap.commands.model import Partial, SearchReturn
from protocol.imap.responses.search import SearchResult, extended_search, partial_window, search_response, sort_response

FOUND = [20, 100, 110, 120, 210]
NUMBER = {20: 2, 100: 10, 110: 11, 120: 12, 210: 21}


def numbers(uids: Sequence[int]) -> list[int]:
    return [NUMBER[uid] for uid in uids]


def answer(options: SearchReturn, found: Sequence[int] = FOUND, uid: bool = False) -> SearchResult:
    return extended_search(b"A1", options, found, uid_command=uid, number_of=numbers)


def test_plain() -> None:
    assert search_response([2, 3]) == b"* SEARCH 2 3\r\n"
    assert search_response([]) == b"* SEARCH\r\n"
    assert search_response([2], 99) == b"* SEARCH 2 (MODSEQ 99)\r\n"
    assert search_response([], 99) == b"* SEARCH\r\n"
    assert sort_response([5, 3]) == b"* SORT 5 3\r\n"
    assert sort_response([5, 3], 7) == b"* SORT 5 3 (MODSEQ 7)\r\n"


def test_items() -> None:
    every = SearchReturn(min=True, max=True, all=True, count=True)
    assert answer(every) == SearchResult(b'* ESEARCH (TAG "A1") MIN 2 MAX 21 ALL 2,10:12,21 COUNT 5\r\n', None)
    assert answer(every, uid=True).response == (
        b'* ESEARCH (TAG "A1") UID MIN 20 MAX 210 ALL 20,100,110,120,210 COUNT 5\r\n'
    )
    assert answer(every, []).response == b'* ESEARCH (TAG "A1") COUNT 0\r\n'
    assert answer(SearchReturn(all=True), [], uid=True).response == b'* ESEARCH (TAG "A1") UID\r\n'


@pytest.mark.parametrize(
    ("options", "saved"),
    [
        (SearchReturn(save=True), FOUND),
        (SearchReturn(save=True, min=True), [20]),
        (SearchReturn(save=True, max=True), [210]),
        (SearchReturn(save=True, min=True, max=True), [20, 210]),
        (SearchReturn(save=True, min=True, all=True), FOUND),
        (SearchReturn(save=True, max=True, count=True), FOUND),
        (SearchReturn(save=True, partial=Partial(2, 3)), [100, 110]),
        (SearchReturn(save=True, partial=Partial(2, 3), min=True), [20, 100, 110]),
        (SearchReturn(save=True, partial=Partial(1, 2), min=True, max=True), [20, 100, 210]),
        (SearchReturn(save=True, partial=Partial(2, 3), count=True, max=True), FOUND),
        (SearchReturn(min=True), None),
    ],
)
def test_save(options: SearchReturn, saved: list[int] | None) -> None:
    """RFC 5182 2.4 and RFC 9394 3.2, table 1."""
    assert answer(options).saved == saved
    if options.save:
        assert answer(options, []).saved == []


def test_save_alone_says_nothing() -> None:
    assert answer(SearchReturn(save=True)).response == b""
    assert answer(SearchReturn(save=True, count=True)).response == b'* ESEARCH (TAG "A1") COUNT 5\r\n'


def test_partial() -> None:
    assert answer(SearchReturn(partial=Partial(2, 3))).response == b'* ESEARCH (TAG "A1") PARTIAL (2:3 10:11)\r\n'
    assert answer(SearchReturn(partial=Partial(-1, -2)), uid=True).response == (
        b'* ESEARCH (TAG "A1") UID PARTIAL (-1:-2 120,210)\r\n'
    )
    assert answer(SearchReturn(partial=Partial(9, 12))).response == b'* ESEARCH (TAG "A1") PARTIAL (9:12 NIL)\r\n'
    assert answer(SearchReturn(partial=Partial(1, 2)), []).response == b'* ESEARCH (TAG "A1") PARTIAL (1:2 NIL)\r\n'


@given(st.integers(0, 12), st.integers(1, 15), st.integers(1, 15), st.booleans())
def test_partial_window(count: int, first: int, last: int, from_end: bool) -> None:
    found = list(range(100, 100 + count))
    low, high = min(first, last), max(first, last)
    window = Partial(-first, -last) if from_end else Partial(first, last)
    ordered = found[::-1] if from_end else found
    assert list(partial_window(found, window)) == sorted(ordered[low - 1 : high])


@pytest.mark.parametrize(
    ("options", "modseq"),
    [
        (SearchReturn(min=True), 120),
        (SearchReturn(max=True), 310),
        (SearchReturn(min=True, max=True), 310),
        (SearchReturn(count=True), 310),
        (SearchReturn(partial=Partial(2, 3)), 210),
    ],
)
def test_modseq(options: SearchReturn, modseq: int) -> None:
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


def test_sorted_results() -> None:
    """RFC 5267 3: in the order of SORT, ranges only upwards."""
    order = [210, 120, 110, 100, 20]
    returns = SearchReturn(min=True, max=True, all=True, save=True)
    got = extended_search(b"A1", returns, order, uid_command=False, number_of=numbers, ordered=True)
    assert got.response == b'* ESEARCH (TAG "A1") MIN 21 MAX 2 ALL 21,12,11,10,2\r\n'
    assert got.saved == FOUND
    got = extended_search(
        b"A1",
        SearchReturn(partial=Partial(1, 4)),
        [100, 110, 20, 120],
        uid_command=False,
        number_of=numbers,
        ordered=True,
    )
    assert got.response == b'* ESEARCH (TAG "A1") PARTIAL (1:4 10:11,2,12)\r\n'
