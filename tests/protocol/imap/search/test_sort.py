"""SORT: criteria, ties, REVERSE, and sort values (RFC 5256, RFC 5957)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.imap.search.collation import collation_key, fold
from protocol.imap.search.sort import (
    SortCriterion,
    SortKey,
    address_sort_value,
    display_sort_value,
    sort_uids,
    subject_sort_value,
)
from protocol.mime.addresses import Address


class Columns:
    def __init__(self, uids: Sequence[int], **columns: Sequence[int] | Sequence[str]) -> None:
        self.uids = uids
        self.columns = columns

    def sort_values(self, key: SortKey, uids: Sequence[int]) -> Sequence[int] | Sequence[str]:
        column = self.columns[key.name.lower()]
        return [column[self.uids.index(uid)] for uid in uids]  # type: ignore[return-value]


UIDS = [10, 20, 30, 40]
SOURCE = Columns(UIDS, subject=["B", "A", "B", "A"], date=[4, 3, 2, 1], size=[7, 7, 7, 7])


def order(*criteria: SortCriterion) -> list[int]:
    return sort_uids(criteria, UIDS, SOURCE)


def test_ties_are_mailbox_order_also_in_reverse() -> None:
    assert order(SortCriterion(SortKey.SIZE)) == UIDS
    assert order(SortCriterion(SortKey.SIZE, reverse=True)) == UIDS
    assert order(SortCriterion(SortKey.SUBJECT)) == [20, 40, 10, 30]
    assert order(SortCriterion(SortKey.SUBJECT, reverse=True)) == [10, 30, 20, 40]


def test_criteria_in_priority_order() -> None:
    assert order(SortCriterion(SortKey.SUBJECT), SortCriterion(SortKey.DATE)) == [40, 20, 30, 10]
    assert order(SortCriterion(SortKey.SUBJECT), SortCriterion(SortKey.DATE, reverse=True)) == [
        20,
        40,
        10,
        30,
    ]


def test_only_the_searched_messages() -> None:
    assert sort_uids([SortCriterion(SortKey.DATE)], [20, 40], SOURCE) == [40, 20]
    assert sort_uids([SortCriterion(SortKey.DATE)], [], SOURCE) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20), st.booleans(), st.booleans())
def test_same_as_sorting_by_tuples(rows: list[tuple[int, int]], first: bool, second: bool) -> None:
    uids = list(range(1, len(rows) + 1))
    source = Columns(uids, size=[row[0] for row in rows], date=[row[1] for row in rows])
    criteria = [SortCriterion(SortKey.SIZE, first), SortCriterion(SortKey.DATE, second)]
    expected = sorted(
        uids,
        key=lambda uid: (
            -rows[uid - 1][0] if first else rows[uid - 1][0],
            -rows[uid - 1][1] if second else rows[uid - 1][1],
            uid,
        ),
    )
    assert sort_uids(criteria, uids, source) == expected


ADA = Address(b"Ada", None, b"ada", b"example.test")


@pytest.mark.parametrize(
    ("addresses", "mailbox", "display"),
    [
        ([], "", ""),
        ([ADA], "ADA", "ADA"),
        ([Address(None, None, b"bob", b"example.test"), ADA], "BOB", "BOB@EXAMPLE.TEST"),
        ([Address(b"", None, b"bob", b"example.test")], "BOB", "BOB@EXAMPLE.TEST"),
        ([Address(b"=?utf-8?q?J=C3=BCrgen?=", None, b"j", b"x.test")], "J", collation_key("Jürgen")),
        ([Address(None, None, b"group", None)], "GROUP", "GROUP"),
        ([Address(None, None, None, None)], "", ""),
    ],
)
def test_address_values(addresses: list[Address], mailbox: str, display: str) -> None:
    assert address_sort_value(addresses) == mailbox
    assert display_sort_value(addresses) == display


def test_subject_value() -> None:
    assert subject_sort_value("Re: [x] hello (fwd)") == "HELLO"
    assert subject_sort_value(None) == ""
    assert subject_sort_value("") < subject_sort_value("a")


def test_collation_is_unicode_casemap() -> None:
    assert collation_key("straße") == "STRAßE"
    assert collation_key("Äpfel") == collation_key("A\u0308PFEL")
    assert collation_key("a_b") > collation_key("aZb")  # upper case letters come before "_"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Straße", "STRASSE"),
        ("Σίσυφος", "ΣΊΣΥΦΟΣ"),
        ("é", "e\u0301"),
        ("Ａ", "a"),
        ("ﬁ", "FI"),
        ("abc", "ABC"),
    ],
)
def test_fold_matches(left: str, right: str) -> None:
    assert fold(left) == fold(right)


@given(st.text())
def test_fold_is_stable(text: str) -> None:
    assert fold(fold(text)) == fold(text)
