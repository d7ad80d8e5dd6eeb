"""SEARCH, ESEARCH and SORT responses, PARTIAL windows, and the result stored by SAVE."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.imap.commands.model import Partial, SearchReturn
from protocol.imap.responses.search import SearchResult, extended_search, partial_window, search_response, sort_response

MATCHES = [20, 100, 110, 120, 210]
NUMBER = {20: 2, 100: 10, 110: 11, 120: 12, 210: 21}


def numbers(uids: Sequence[int]) -> list[int]:
    return [NUMBER[uid] for uid in uids]


def esearch(options: SearchReturn, uids: Sequence[int] = MATCHES, uid: bool = False) -> SearchResult:
    return extended_search(b"A1", options, uids, uid_command=uid, number_of=numbers)


def test_plain() -> None:
    assert search_response([2, 3]) == b"* SEARCH 2 3\r\n"
    assert search_response([]) == b"* SEARCH\r\n"
    assert search_response([2], 99) == b"* SEARCH 2 (MODSEQ 99)\r\n"
    assert search_response([], 99) == b"* SEARCH\r\n"
    assert sort_response([5, 3]) == b"* SORT 5 3\r\n"
    assert sort_response([5, 3], 7) == b"* SORT 5 3 (MODSEQ 7)\r\n"


def test_items() -> None:
    every = SearchReturn(min=True, max=True, all=True, count=True)
    assert esearch(every) == SearchResult(b'* ESEARCH (TAG "A1") MIN 2 MAX 21 ALL 2,10:12,21 COUNT 5\r\n', None)
    assert esearch(every, uid=True).response == (
        b'* ESEARCH (TAG "A1") UID MIN 20 MAX 210 ALL 20,100,110,120,210 COUNT 5\r\n'
    )
    assert esearch(every, []).response == b'* ESEARCH (TAG "A1") COUNT 0\r\n'
    assert esearch(SearchReturn(all=True), [], uid=True).response == b'* ESEARCH (TAG "A1") UID\r\n'


@pytest.mark.parametrize(
    ("options", "saved"),
    [
        (SearchReturn(save=True), MATCHES),
        (SearchReturn(save=True, min=True), [20]),
        (SearchReturn(save=True, max=True), [210]),
        (SearchReturn(save=True, min=True, max=True), [20, 210]),
        (SearchReturn(save=True, min=True, all=True), MATCHES),
        (SearchReturn(save=True, max=True, count=True), MATCHES),
        (SearchReturn(save=True, partial=Partial(2, 3)), [100, 110]),
        (SearchReturn(save=True, partial=Partial(2, 3), min=True), [20, 100, 110]),
        (SearchReturn(save=True, partial=Partial(1, 2), min=True, max=True), [20, 100, 210]),
        (SearchReturn(save=True, partial=Partial(2, 3), count=True, max=True), MATCHES),
        (SearchReturn(min=True), None),
    ],
)
def test_save(options: SearchReturn, saved: list[int] | None) -> None:
    """Table 1 of RFC 5182 2.4 and RFC 9394 3.2."""
    assert esearch(options).saved == saved
    if options.save:
        assert esearch(options, []).saved == []


def test_save_alone_sends_no_response() -> None:
    assert esearch(SearchReturn(save=True)).response == b""
    assert esearch(SearchReturn(save=True, count=True)).response == b'* ESEARCH (TAG "A1") COUNT 5\r\n'


def test_partial() -> None:
    assert esearch(SearchReturn(partial=Partial(2, 3))).response == b'* ESEARCH (TAG "A1") PARTIAL (2:3 10:11)\r\n'
    assert esearch(SearchReturn(partial=Partial(-1, -2)), uid=True).response == (
        b'* ESEARCH (TAG "A1") UID PARTIAL (-1:-2 120,210)\r\n'
    )
    assert esearch(SearchReturn(partial=Partial(9, 12))).response == b'* ESEARCH (TAG "A1") PARTIAL (9:12 NIL)\r\n'
    assert esearch(SearchReturn(partial=Partial(1, 2)), []).response == b'* ESEARCH (TAG "A1") PARTIAL (1:2 NIL)\r\n'


@given(st.integers(0, 12), st.integers(1, 15), st.integers(1, 15), st.booleans())
def test_partial_window(count: int, first: int, last: int, from_end: bool) -> None:
    results = list(range(100, 100 + count))
    low, high = min(first, last), max(first, last)
    window = Partial(-first, -last) if from_end else Partial(first, last)
    ordered = results[::-1] if from_end else results
    assert list(partial_window(results, window)) == sorted(ordered[low - 1 : high])


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
    """MODSEQ is the highest of the messages that the response covers (RFC 4731 3.2)."""
    got = extended_search(
        b"A1",
        options,
        MATCHES,
        uid_command=True,
        number_of=numbers,
        modseq_of=lambda uids: [uid + 100 for uid in uids],
    )
    assert got.response.endswith(b" MODSEQ %d\r\n" % modseq)
    empty = extended_search(b"A1", options, [], uid_command=True, number_of=numbers, modseq_of=lambda uids: list(uids))
    assert b"MODSEQ" not in empty.response


def test_sorted_results() -> None:
    """Results are in the order of SORT, ranges only ascend (RFC 5267 3)."""
    order = [210, 120, 110, 100, 20]
    returns = SearchReturn(min=True, max=True, all=True, save=True)
    got = extended_search(b"A1", returns, order, uid_command=False, number_of=numbers, ordered=True)
    assert got.response == b'* ESEARCH (TAG "A1") MIN 21 MAX 2 ALL 21,12,11,10,2\r\n'
    assert got.saved == MATCHES
    got = extended_search(
        b"A1",
        SearchReturn(partial=Partial(1, 4)),
        [100, 110, 20, 120],
        uid_command=False,
        number_of=numbers,
        ordered=True,
    )
    assert got.response == b'* ESEARCH (TAG "A1") PARTIAL (1:4 10:11,2,12)\r\n'
