"""Threads: replies join their parents, and the counters stay right after removals."""

from __future__ import annotations

from adapter.store.flags import Flag
from adapter.store.queries import mailboxes
from adapter.store.queries.mailboxes import Thread
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from tests.support.messages import message
from tests.support.stores import ADA, BOB, deliver, folder, placed, rows


def threads(store: Transport, address: str = ADA) -> list[Thread]:
    with store.reading() as connection:
        return mailboxes.threads(connection, mailboxes.active_registration(connection, address).id)


def letter(store: Transport, name: str, *references: str, reply_to: str | None = None, to: str = ADA) -> str:
    octets = message(
        name,
        message_id=f"<{name}@x>",
        in_reply_to=f"<{reply_to}@x>" if reply_to else None,
        references=[f"<{reference}@x>" for reference in references],
    )
    return deliver(store, to, octets=octets).message_id


def test_replies_join_by_in_reply_to_or_references(store: Transport) -> None:
    letter(store, "root")
    letter(store, "reply", reply_to="root")
    letter(store, "deep", "root", "reply", reply_to="reply")
    latest = letter(store, "by reference", "root")
    letter(store, "other")
    listed = threads(store)
    assert [(thread.messages, thread.unread, thread.subject) for thread in listed] == [
        (1, 1, "other"),
        (4, 4, "by reference"),
    ]
    assert listed[1].latest_message_id == latest
    assert len({row.thread_id for row in rows(store)}) == 2


def test_messages_without_a_message_id_start_their_own_threads(store: Transport) -> None:
    deliver(store, ADA)
    deliver(store, ADA)
    assert [thread.messages for thread in threads(store)] == [1, 1]


def test_reply_delivered_before_its_parent_shares_its_thread(store: Transport) -> None:
    letter(store, "reply", "root", reply_to="root")
    letter(store, "root")
    assert [thread.messages for thread in threads(store)] == [2]


def test_reply_joins_the_thread_of_its_nearest_stored_ancestor(store: Transport) -> None:
    letter(store, "one")
    letter(store, "two")
    letter(store, "reply", "unknown", "one", "two", reply_to="lost")
    assert [(thread.messages, thread.subject) for thread in threads(store)] == [(2, "reply"), (1, "one")]


def test_thread_counters_are_per_account(store: Transport) -> None:
    letter(store, "root", to=ADA)
    letter(store, "reply", reply_to="root", to=BOB)
    assert [thread.messages for thread in threads(store)] == [1]
    assert [thread.messages for thread in threads(store, BOB)] == [1]
    assert threads(store)[0].thread_id == threads(store, BOB)[0].thread_id


def test_thread_counters_follow_flags_copies_and_expunges(store: Transport) -> None:
    first = letter(store, "root")
    letter(store, "reply", reply_to="root")
    inbox = folder(store).id
    store.run(op.ChangeFlags(ADA, inbox, [2], "add", Flag.READ))
    assert threads(store)[0][1:3] == (2, 1)
    store.run(op.Copy(ADA, inbox, [1, 2], "Archive"))
    assert threads(store)[0][1:3] == (4, 2)
    store.run(op.Move(ADA, inbox, [1, 2], "Trash"))
    assert threads(store)[0][1:3] == (4, 2)
    for name in ("Archive", "Trash"):
        folder_id = folder(store, name).id
        store.run(op.ChangeFlags(ADA, folder_id, [2], "add", Flag.DELETED))
        store.run(op.Expunge(ADA, folder_id))
    assert threads(store)[0][1:] == (
        2,
        2,
        first,
        "root",
    )  # the latest message is removed: the one before becomes the latest
    store.run(op.DeleteFolder(ADA, "Trash"))
    store.run(op.DeleteFolder(ADA, "Archive"))
    assert threads(store) == []


def test_threads_are_listed_latest_first_up_to_a_limit(store: Transport) -> None:
    for name in "abcde":
        letter(store, name)
    letter(store, "f", reply_to="a")
    with store.reading() as connection:
        registration = mailboxes.active_registration(connection, ADA).id
        assert [thread.subject for thread in mailboxes.threads(connection, registration)] == ["f", "e", "d", "c", "b"]
        assert [thread.subject for thread in mailboxes.threads(connection, registration, 2)] == ["f", "e"]


def test_thread_survives_the_collection_of_its_root(store: Transport) -> None:
    root = placed(deliver(store, ADA, octets=message("root", message_id="<root@x>")))
    store.run(op.ChangeFlags(ADA, root.folder, [root.uid], "add", Flag.DELETED))
    store.run(op.Expunge(ADA, root.folder))
    assert store.run(op.Collect(2**40)) == 1
    letter(store, "one", reply_to="root")
    letter(store, "two", reply_to="root")
    assert [thread.messages for thread in threads(store)] == [2]
