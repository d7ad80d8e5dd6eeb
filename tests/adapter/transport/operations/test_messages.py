"""Copy, move and expunge, and the record of expunged UIDs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adapter.store.flags import Flag
from adapter.store.queries import mailboxes
from adapter.store.quotas import Quota
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.support.messages import message
from tests.support.stores import ADA, append, folder, rows

READ, DELETED, ARCHIVED = int(Flag.READ), int(Flag.DELETED), int(Flag.ARCHIVED)


@pytest.fixture
def inbox(store: Transport) -> int:
    """The id of an INBOX with five messages, UIDs 1 to 5."""
    return append(store, "INBOX", *[message(str(number)) for number in range(5)])[0].folder


def uids(store: Transport, name: str = "INBOX") -> list[int]:
    return [row.uid for row in rows(store, name)]


def expunged(store: Transport, folder_id: int, since: int = 0) -> list[str]:
    with store.reading() as connection:
        return mailboxes.expunged_since(connection, folder_id, since)


def links(store: Transport, entry: str) -> list[str]:
    return sorted(name for name in os.listdir(Path(store.root, "mailboxes", ADA, entry)) if name.endswith(".md"))


# --- copy ------------------------------------------------------------------------------------------------------------


def test_a_copy_has_its_own_uid_and_flags(store: Transport, inbox: int) -> None:
    store.run(op.ChangeFlags(ADA, inbox, [2, 4], "add", READ, ["work"]))
    copied = store.run(op.Copy(ADA, inbox, [4, 2, 99], "Trash"))
    trash = folder(store, "Trash")
    assert copied.uids == [(2, 1), (4, 2)]
    assert (copied.uidvalidity, copied.folder, copied.modseq) == (trash.uidvalidity, trash.id, trash.highestmodseq)
    assert copied.expunged_modseq is None
    assert [(row.uid, row.flags, row.keywords) for row in rows(store, "Trash")] == [
        (1, READ, "work"),
        (2, READ, "work"),
    ]
    store.run(op.ChangeFlags(ADA, trash.id, [1], "set", DELETED))
    assert [row.flags for row in rows(store)] == [0, READ, 0, READ, 0]
    assert uids(store) == [1, 2, 3, 4, 5]


def test_a_copy_keeps_its_date_and_gets_a_new_save_date(store: Transport) -> None:
    item = op.AppendItem(store.stage(message()), internal_date=1000)
    store.run(op.Append(ADA, "INBOX", [item]))
    store.run(op.Copy(ADA, folder(store).id, [1], "Trash"))
    assert rows(store, "Trash")[0].internal_date == 1000
    assert rows(store, "Trash")[0].saved_at >= rows(store)[0].saved_at


def test_copy_does_not_create_a_second_file(store: Transport, inbox: int) -> None:
    before = sorted(Path(store.root, "messages").rglob("*.md"))
    store.run(op.Copy(ADA, inbox, [1, 2, 3], "Archive"))
    store.run(op.Copy(ADA, inbox, [1], "INBOX"))
    assert sorted(Path(store.root, "messages").rglob("*.md")) == before
    assert uids(store) == [1, 2, 3, 4, 5, 6]
    assert rows(store)[5].message_id == rows(store)[0].message_id


def test_archived_flag_follows_the_folder(store: Transport, inbox: int) -> None:
    store.run(op.Copy(ADA, inbox, [1], "Archive"))
    assert rows(store, "Archive")[0].flags == ARCHIVED
    store.run(op.Move(ADA, folder(store, "Archive").id, [1], "Trash"))
    assert rows(store, "Trash")[0].flags == 0


def test_copying_nothing_changes_nothing(store: Transport, inbox: int) -> None:
    before = folder(store, "Trash")
    seq = store.index.applied_seq()
    for operation in (op.Copy(ADA, inbox, [99], "Trash"), op.Move(ADA, inbox, [], "Trash")):
        copied = store.run(operation)
        assert (copied.uids, copied.modseq, copied.expunged_modseq) == ([], before.highestmodseq, None)
    assert folder(store, "Trash") == before
    assert store.index.applied_seq() == seq


@pytest.mark.parametrize("kind", [op.Copy, op.Move])
def test_copy_and_move_to_a_missing_folder_are_refused(
    store: Transport, inbox: int, kind: type[op.Copy] | type[op.Move]
) -> None:
    with pytest.raises(MailError) as caught:
        store.run(kind(ADA, inbox, [1], "Nowhere"))
    assert caught.value.reason is Reason.NO_SUCH_FOLDER
    assert uids(store) == [1, 2, 3, 4, 5]


# --- move ------------------------------------------------------------------------------------------------------------


def test_a_move_is_one_commit(store: Transport, inbox: int) -> None:
    seq = store.index.applied_seq()
    before = folder(store)
    moved = store.run(op.Move(ADA, inbox, [5, 1], "Trash"))
    assert store.index.applied_seq() == seq + 1
    assert moved.uids == [(1, 1), (5, 2)]
    assert moved.expunged_modseq == before.highestmodseq + 1 == folder(store).highestmodseq
    assert uids(store) == [2, 3, 4]
    assert uids(store, "Trash") == [1, 2]
    assert expunged(store, inbox, before.highestmodseq) == ["1,5"]
    assert len(links(store, "inbox")) == 3
    assert len(links(store, "trash")) == 2


def test_a_move_into_the_same_folder_gives_new_uids(store: Transport, inbox: int) -> None:
    moved = store.run(op.Move(ADA, inbox, [2, 3], "INBOX"))
    assert moved.uids == [(2, 6), (3, 7)]
    assert uids(store) == [1, 4, 5, 6, 7]
    assert moved.expunged_modseq is not None
    assert moved.expunged_modseq > moved.modseq
    assert folder(store).uidnext == 8


def test_moving_back_and_forth_never_reuses_a_uid(store: Transport, inbox: int) -> None:
    trash = folder(store, "Trash").id
    for _ in range(3):
        store.run(op.Move(ADA, inbox, uids(store), "Trash"))
        store.run(op.Move(ADA, trash, uids(store, "Trash"), "INBOX"))
    assert uids(store) == [16, 17, 18, 19, 20]
    assert expunged(store, inbox) == ["1:5", "6:10", "11:15"]


# --- expunge ---------------------------------------------------------------------------------------------------------


def test_expunge_removes_only_messages_flagged_deleted(store: Transport, inbox: int) -> None:
    store.run(op.ChangeFlags(ADA, inbox, [1, 2, 4], "add", DELETED))
    before = folder(store)
    result = store.run(op.Expunge(ADA, inbox, [2, 3]))
    assert result == op.Expunged(before.highestmodseq + 1, [2])
    assert uids(store) == [1, 3, 4, 5]
    assert store.run(op.Expunge(ADA, inbox)).uids == [1, 4]
    after = folder(store)
    assert (after.messages, after.deleted, after.uidnext) == (2, 0, before.uidnext)
    assert after.size == sum(row.size for row in rows(store))


def test_expunge_without_deleted_messages_changes_nothing(store: Transport, inbox: int) -> None:
    before = folder(store)
    assert store.run(op.Expunge(ADA, inbox)) == op.Expunged(before.highestmodseq, [])
    assert folder(store) == before
    assert expunged(store, inbox) == []


def test_expunged_uids_are_listed_since_a_modseq(store: Transport, inbox: int) -> None:
    marks = []
    for batch in ([1, 2], [5], [3, 4]):
        store.run(op.ChangeFlags(ADA, inbox, batch, "add", DELETED))
        marks.append(folder(store).highestmodseq)
        store.run(op.Expunge(ADA, inbox))
    assert expunged(store, inbox, marks[0]) == ["1:2", "5", "3:4"]
    assert expunged(store, inbox, marks[1]) == ["5", "3:4"]
    assert expunged(store, inbox, marks[2]) == ["3:4"]
    assert expunged(store, inbox, folder(store).highestmodseq) == []


def test_uids_are_not_reused_after_all_messages_are_expunged(store: Transport, inbox: int) -> None:
    store.run(op.ChangeFlags(ADA, inbox, [1, 2, 3, 4, 5], "add", DELETED))
    store.run(op.Expunge(ADA, inbox))
    assert append(store, "INBOX", message())[0].uid == 6


def test_rows_are_read_by_range_and_by_uid_list(store: Transport, inbox: int) -> None:
    store.run(op.ChangeFlags(ADA, inbox, [3], "add", DELETED))
    store.run(op.Expunge(ADA, inbox))
    with store.reading() as connection:
        assert [row.uid for row in mailboxes.rows(connection, inbox, 2, 4)] == [2, 4]
        assert [row.uid for row in mailboxes.rows_of(connection, inbox, [5, 3, 1])] == [1, 5]
        assert mailboxes.rows(connection, inbox, 6) == []


def test_long_uid_lists_give_the_same_result_as_short_ones(store: Transport) -> None:
    """A list of UIDs too long for one query is replaced by a range query with the same result."""
    number = 30
    inbox = append(store, "INBOX", *[message(str(n)) for n in range(number)])[0].folder
    uids = [*range(2, number, 3), *range(10_000, 16_000)]
    result = store.run(op.ChangeFlags(ADA, inbox, uids, "add", DELETED))
    assert [uid for uid, _, _ in result.changed] == list(range(2, number, 3))
    assert store.run(op.Expunge(ADA, inbox, uids)).uids == list(range(2, number, 3))


def test_quota_applies_across_operations_of_one_batch(store: Transport) -> None:
    """Concurrent operations may each have seen the same free room: the last is refused; a replacement still fits."""
    quota = Quota(messages=2)
    items = [op.AppendItem(store.stage(message(f"{number}"))) for number in range(3)]
    both = store.commit_all([op.Append(ADA, "INBOX", [item], quota=quota) for item in items])
    assert [future.exception() for future in both[:2]] == [None, None]
    refused = both[2].exception()
    assert isinstance(refused, MailError)
    assert refused.reason is Reason.OVER_QUOTA
    inbox = folder(store).id
    with pytest.raises(MailError) as copied:
        store.run(op.Copy(ADA, inbox, [1], "Archive", quota))
    assert copied.value.reason is Reason.OVER_QUOTA
    another = op.AppendItem(store.stage(message("another")))
    store.run(op.Append(ADA, "Drafts", [another], (inbox, [1, 2]), quota))
    assert [len(rows(store)), len(rows(store, "Drafts"))] == [0, 1]
    store.run(op.Copy(ADA, folder(store, "Drafts").id, [1], "INBOX", quota))
    assert [len(rows(store)), len(rows(store, "Drafts"))] == [1, 1]
