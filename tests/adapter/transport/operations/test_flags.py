"""Flags and keywords: add, remove, set, UNCHANGEDSINCE, counters; and sets of UIDs as text."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.store.effects import FlagChange
from adapter.store.flags import Flag, format_uids, join_keywords, parse_uids
from adapter.store.queries import mailboxes
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.support.messages import message
from tests.support.stores import ADA, BOB, append, folder, rows

R, A, S, D, T, X = (int(flag) for flag in Flag)


@pytest.fixture
def inbox(store: Transport) -> int:
    """The id of an INBOX with five messages, UIDs 1 to 5."""
    return append(store, "INBOX", *[message(str(number)) for number in range(5)])[0].folder


def change(
    store: Transport,
    inbox: int,
    uids: list[int],
    how: FlagChange,
    flags: int = 0,
    *keywords: str,
    since: int | None = None,
) -> op.FlagsChanged:
    return store.run(op.ChangeFlags(ADA, inbox, uids, how, flags, keywords, since))


def flags(store: Transport) -> list[int]:
    return [row.flags for row in rows(store)]


def keywords(store: Transport) -> list[str]:
    return [row.keywords for row in rows(store)]


def test_flags_can_be_added_removed_and_set(store: Transport, inbox: int) -> None:
    change(store, inbox, [1, 2], "add", R | S)
    assert flags(store) == [R | S, R | S, 0, 0, 0]
    change(store, inbox, [2, 3], "add", A)
    change(store, inbox, [1, 2], "remove", S | D)
    assert flags(store) == [R, R | A, A, 0, 0]
    result = change(store, inbox, [1, 2, 3, 4], "set", D | T)
    assert flags(store) == [D | T] * 4 + [0]
    assert result.changed == [(uid, D | T, "") for uid in (1, 2, 3, 4)]
    change(store, inbox, [1], "set")
    assert flags(store) == [0, D | T, D | T, D | T, 0]


def test_one_change_increments_modseq_once(store: Transport, inbox: int) -> None:
    before = folder(store).highestmodseq
    result = change(store, inbox, [1, 3, 5], "add", R)
    assert result.modseq == before + 1 == folder(store).highestmodseq
    assert [row.modseq for row in rows(store) if row.uid % 2] == [before + 1] * 3
    with store.reading() as connection:
        assert [row.uid for row in mailboxes.changed_since(connection, inbox, before)] == [1, 3, 5]


def test_unchanged_messages_keep_their_modseq(store: Transport, inbox: int) -> None:
    change(store, inbox, [1], "add", R, "work")
    before = folder(store).highestmodseq
    seq = store.index.applied_seq()
    result = change(store, inbox, [1], "add", R, "Work")
    assert result == op.FlagsChanged(before, [], [(1, R, "work")], [])
    assert folder(store).highestmodseq == before
    assert store.index.applied_seq() == seq
    mixed = change(store, inbox, [1, 2], "add", R)
    assert (mixed.changed, mixed.unchanged) == ([(2, R, "")], [(1, R, "work")])
    assert [row.modseq for row in rows(store)][:2] == [before, before + 1]


def test_folder_counters_follow_flag_changes(store: Transport, inbox: int) -> None:
    change(store, inbox, [1, 2, 3], "add", R | D)
    assert (folder(store).unseen, folder(store).deleted) == (2, 3)
    change(store, inbox, [1, 4], "set", D)
    assert (folder(store).unseen, folder(store).deleted) == (3, 4)
    change(store, inbox, [1, 2, 3, 4, 5], "remove", R | D)
    assert (folder(store).unseen, folder(store).deleted) == (5, 0)


def test_missing_uids_are_ignored(store: Transport, inbox: int) -> None:
    result = change(store, inbox, [99, 2, 2, 1_000_000], "add", R)
    assert [uid for uid, _, _ in result.changed] == [2]
    assert change(store, inbox, [], "add", R).changed == []


def test_unchangedsince_skips_messages_modified_later(store: Transport, inbox: int) -> None:
    before = folder(store).highestmodseq
    change(store, inbox, [2, 4], "add", R)
    result = change(store, inbox, [1, 2, 3, 4, 5], "add", S, since=before)
    assert result.modified == [2, 4]
    assert [uid for uid, _, _ in result.changed] == [1, 3, 5]
    assert flags(store) == [S, R, S, R, S]
    assert change(store, inbox, [1, 2], "add", A, since=0).modified == [1, 2]


def test_clients_cannot_change_the_archived_flag(store: Transport) -> None:
    (kept,) = append(store, "Archive", message())
    change(store, kept.folder, [1], "set", S)
    assert rows(store, "Archive")[0].flags == S | X
    change(store, kept.folder, [1], "remove", X | S)
    assert rows(store, "Archive")[0].flags == X
    (other,) = append(store, "INBOX", message())
    assert change(store, other.folder, [1], "add", X).changed == []
    assert rows(store)[0].flags == 0


def test_keywords_are_changed_without_regard_to_case(store: Transport, inbox: int) -> None:
    change(store, inbox, [1, 2], "add", 0, "work", "$Forwarded")
    assert keywords(store) == ["$Forwarded work"] * 2 + [""] * 3
    change(store, inbox, [1], "remove", 0, "WORK")
    change(store, inbox, [2], "add", 0, "Work", "a")  # the first spelling stays
    assert keywords(store)[:2] == ["$Forwarded", "$Forwarded a work"]
    change(store, inbox, [1, 2, 3], "set", R, "new")
    assert keywords(store) == ["new"] * 3 + [""] * 2
    change(store, inbox, [1], "set")
    assert keywords(store)[0] == ""


@pytest.mark.parametrize("how", ["set", "add"])
def test_reported_keywords_are_the_stored_ones(store: Transport, inbox: int, how: FlagChange) -> None:
    for given_keywords in (["foo", "Foo"], ["Foo", "foo"], ["b", "A", "a", "B"]):
        result = change(store, inbox, [1], how, R, *given_keywords)
        row = rows(store)[0]
        assert [*result.changed, *result.unchanged] == [(1, row.flags, row.keywords)]


def test_flags_of_many_scattered_uids_change_in_one_operation(store: Transport) -> None:
    places = append(store, "INBOX", *[message(str(number)) for number in range(60)])
    inbox = places[0].folder
    odd = list(range(1, 60, 2))
    change(store, inbox, odd, "add", R | D, "odd")
    assert [row.uid for row in rows(store) if row.flags == R | D and row.keywords == "odd"] == odd
    assert (folder(store).unseen, folder(store).deleted) == (30, 30)
    change(store, inbox, list(range(10, 50)), "set", S, "even")
    assert folder(store).deleted == 10
    change(store, inbox, list(range(1, 61)), "remove", D, "odd", "even")
    assert (folder(store).deleted, set(keywords(store))) == (0, {""})


def test_threads_count_unread_messages(store: Transport, inbox: int) -> None:
    with store.reading() as connection:
        registration = mailboxes.active_registration(connection, ADA).id
    change(store, inbox, [1, 2], "add", R)
    with store.reading() as connection:
        assert sorted(thread.unread for thread in mailboxes.threads(connection, registration)) == [0, 0, 1, 1, 1]


def test_operations_on_a_folder_of_another_account_are_refused(store: Transport, inbox: int) -> None:
    """The caller holds the lock of its own address only."""
    operations: list[op.Operation[Any]] = [
        op.ChangeFlags(BOB, inbox, [1], "add", R),
        op.Expunge(BOB, inbox),
        op.Copy(BOB, inbox, [1], "INBOX"),
        op.Move(BOB, inbox, [1], "INBOX"),
        op.Append(BOB, "INBOX", [op.AppendItem(store.stage(message()))], replaces=(inbox, [1])),
    ]
    for operation in operations:
        with pytest.raises(MailError) as caught:
            store.run(operation)
        assert caught.value.reason is Reason.NO_SUCH_FOLDER
    assert flags(store) == [0] * 5


def test_flag_change_in_a_deactivated_account_is_refused(store: Transport, inbox: int) -> None:
    store.run(op.Deregister(ADA))
    with pytest.raises(MailError) as caught:
        change(store, inbox, [1], "add", R)
    assert caught.value.reason is Reason.INACTIVE_ADDRESS


def test_flag_change_in_a_missing_folder_is_refused(store: Transport) -> None:
    with pytest.raises(MailError) as caught:
        change(store, 12345, [1], "add", R)
    assert caught.value.reason is Reason.NO_SUCH_FOLDER


# --- text forms ------------------------------------------------------------------------------------------------------


@given(st.sets(st.integers(1, 0xFFFFFFFF) | st.integers(1, 60), max_size=60))
def test_uid_sets_survive_formatting_and_parsing(uids: set[int]) -> None:
    text = format_uids(sorted(uids))
    ranges = parse_uids(text)
    assert [uid for first, last in ranges for uid in range(first, last + 1)] == sorted(uids)
    assert all(one[1] + 1 < two[0] for one, two in pairwise(ranges))  # the shortest form


def test_adjacent_uids_are_formatted_as_ranges() -> None:
    assert format_uids([]) == ""
    assert format_uids([1, 2, 3, 5, 7, 8]) == "1:3,5,7:8"


@given(st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=4)))
def test_joined_keywords_are_sorted_and_unique(given_keywords: list[str]) -> None:
    joined = join_keywords(given_keywords).split()
    folded = [keyword.casefold() for keyword in joined]
    assert folded == sorted({keyword.casefold() for keyword in given_keywords})
    assert set(joined) <= set(given_keywords)
    assert join_keywords(joined) == " ".join(joined)
