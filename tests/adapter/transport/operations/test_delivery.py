"""Delivery and append: targets, UIDs, recorded recipients and files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adapter.content import front_matter
from adapter.store.flags import Flag
from adapter.store.queries import mailboxes
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.support.messages import message
from tests.support.stores import ADA, BOB, append, deliver, folder, new_store, placed, rows


def recipients(store: Transport, message_id: str) -> dict[str, str]:
    with store.reading() as connection:
        address_kinds = connection.execute(
            "SELECT address, kind FROM message_recipients WHERE message_id = ?", (message_id,)
        ).fetchall()
    return dict(address_kinds)


def canonical_files(store: Transport) -> list[Path]:
    return sorted(Path(store.root, "messages").rglob("*.md"))


# --- delivery --------------------------------------------------------------------------------------------------------


def test_message_to_many_recipients_is_stored_in_one_file(store: Transport) -> None:
    others = [f"user{number}@example.test" for number in range(10)]
    for address in others:
        store.run(op.Register(address))
    delivery = deliver(store, ADA, *others)
    assert set(delivery.recipients) == {ADA, *others}
    assert {placed(delivery, address).uid for address in delivery.recipients} == {1}
    (file,) = canonical_files(store)
    assert file.name == f"{delivery.message_id}.md"
    for address in delivery.recipients:
        (row,) = rows(store, address=address)
        assert row.message_id == delivery.message_id
        link = Path(store.root, "mailboxes", address, "inbox", f"1-{delivery.message_id}.md")
        assert not os.readlink(link).startswith("/")
        assert link.resolve() == file.resolve()
        assert link.read_bytes() == file.read_bytes()


def test_uids_and_modseqs_rise_one_by_one(store: Transport) -> None:
    before = folder(store)
    assert (before.uidnext, before.highestmodseq) == (1, 1)
    places = [placed(deliver(store, ADA)) for _ in range(3)]
    assert [place.uid for place in places] == [1, 2, 3]
    assert [place.modseq for place in places] == [2, 3, 4]
    assert {place.uidvalidity for place in places} == {before.uidvalidity}
    assert {place.folder for place in places} == {before.id}
    after = folder(store)
    assert (after.uidnext, after.highestmodseq, after.messages, after.unseen) == (4, 4, 3, 3)
    assert after.size == 3 * len(message())


def test_unknown_and_deactivated_recipients_do_not_stop_delivery_to_the_others(store: Transport) -> None:
    store.run(op.Register("gone@example.test"))
    store.run(op.Deregister("gone@example.test"))
    delivery = deliver(store, "gone@example.test", ADA, "nobody@example.test")
    inactive, unknown = delivery.recipients["gone@example.test"], delivery.recipients["nobody@example.test"]
    assert isinstance(inactive, MailError)
    assert inactive.reason is Reason.INACTIVE_ADDRESS
    assert isinstance(unknown, MailError)
    assert unknown.reason is Reason.NO_SUCH_ADDRESS
    assert placed(delivery).uid == 1
    assert recipients(store, delivery.message_id) == {ADA: "to"}


def test_message_without_a_valid_recipient_leaves_no_file_and_no_record(store: Transport) -> None:
    before = store.index.applied_seq()
    delivery = deliver(store, "nobody@example.test")
    assert isinstance(delivery.recipients["nobody@example.test"], MailError)
    assert canonical_files(store) == []
    assert store.index.applied_seq() == before


def test_recipient_listed_twice_gets_one_copy(store: Transport) -> None:
    delivery = deliver(store, ADA, ADA)
    assert placed(delivery).uid == 1
    assert folder(store).messages == 1


def test_bcc_recipients_are_recorded_but_not_written_to_the_file(store: Transport) -> None:
    store.run(op.Register("carol@example.test"))
    octets = message(to="Ada <ADA@example.test>, someone@elsewhere.test", cc="carol@example.test")
    delivery = deliver(store, ADA, "carol@example.test", BOB, octets=octets)
    assert recipients(store, delivery.message_id) == {ADA: "to", "carol@example.test": "cc", BOB: "bcc"}
    text = store.content.file(delivery.message_id).decode()
    assert "bcc" not in text.lower()
    matter = front_matter.read(text.encode())
    assert BOB not in [person.address for person in (*matter.to, *matter.cc)]


def test_delivery_goes_to_the_chosen_folder_or_to_inbox_if_it_does_not_exist(store: Transport) -> None:
    store.run(op.CreateFolder(ADA, "Lists/Announce"))
    staged = store.stage(message())
    chosen = {ADA: "lists/Announce", BOB: "Nowhere"}
    delivery = store.run(op.Deliver(staged, "x@y.test", [ADA, BOB], chosen | {ADA: "Lists/Announce"}))
    assert placed(delivery).folder_name == "Lists/Announce"
    assert placed(delivery, BOB).folder_name == "INBOX"


def test_sent_copy_is_marked_read(store: Transport) -> None:
    staged = store.stage(message())
    delivery = store.run(op.Deliver(staged, BOB, [ADA], keep_sent=True))
    assert delivery.sent is not None
    assert (delivery.sent.address, delivery.sent.folder_name, delivery.sent.uid) == (BOB, "Sent", 1)
    (row,) = rows(store, "Sent", BOB)
    assert row.flags == Flag.READ
    assert row.message_id == rows(store)[0].message_id
    assert len(canonical_files(store)) == 1
    assert recipients(store, delivery.message_id) == {ADA: "to"}


def test_a_message_to_oneself_is_sent_and_received(store: Transport) -> None:
    staged = store.stage(message())
    delivery = store.run(op.Deliver(staged, ADA, [ADA], keep_sent=True))
    assert delivery.sent is not None
    assert placed(delivery).folder_name == "INBOX"
    assert delivery.sent.folder_name == "Sent"


def test_message_to_oneself_delivered_to_sent_appears_there_twice(store: Transport) -> None:
    delivery = store.run(op.Deliver(store.stage(message()), ADA, [ADA], {ADA: "Sent"}, keep_sent=True))
    assert delivery.sent is not None
    assert (placed(delivery).uid, delivery.sent.uid) == (1, 2)


def test_sent_copy_follows_a_renamed_sent_folder(store: Transport) -> None:
    store.run(op.RenameFolder(BOB, "Sent", "Gesendet"))
    delivery = store.run(op.Deliver(store.stage(message()), BOB, [ADA], keep_sent=True))
    assert delivery.sent is not None
    assert delivery.sent.folder_name == "Gesendet"


def test_message_is_delivered_without_a_sent_folder(store: Transport) -> None:
    store.run(op.DeleteFolder(BOB, "Sent"))
    delivery = store.run(op.Deliver(store.stage(message()), BOB, [ADA], keep_sent=True))
    assert delivery.sent is None
    assert placed(delivery).uid == 1


def test_sent_copy_is_refused_for_a_sender_without_an_account(store: Transport) -> None:
    with pytest.raises(MailError) as caught:
        store.run(op.Deliver(store.stage(message()), "x@y.test", [ADA], keep_sent=True))
    assert caught.value.reason is Reason.NO_SUCH_ADDRESS
    assert folder(store).messages == 0


@pytest.mark.parametrize("sender", ["", "Someone@Elsewhere.test"])
def test_the_envelope_sender_is_kept_as_given(store: Transport, sender: str) -> None:
    delivery = deliver(store, ADA, sender=sender)
    with store.reading() as connection:
        stored = connection.execute(
            "SELECT sender, header_from, subject, unlinked_at FROM messages WHERE message_id = ?",
            (delivery.message_id,),
        ).fetchall()
    assert stored == [(sender, "bob@example.test", "Hello", None)]


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"\r\n",
        b"\x00\xff\r\n\r\n\x00",
        b"Subject: x\n\nbare line feeds\n",
        message(body="Grüße\r\n" * 20_000),
        message(attachments=[b"a" * 100, os.urandom(3000), b"a" * 100]),
        message(attachments=[os.urandom(600_000)]),
    ],
    ids=["empty", "blank", "noise", "lf", "long text", "attachments", "large attachment"],
)
def test_message_is_read_back_byte_for_byte(store: Transport, octets: bytes) -> None:
    delivery = deliver(store, ADA, octets=octets)
    assert store.content.octets(delivery.message_id) == octets
    assert rows(store)[0].size == len(octets)


def test_attachment_shared_by_messages_is_stored_once(store: Transport) -> None:
    picture = os.urandom(5000)
    for number in range(3):
        deliver(store, ADA, octets=message(subject=str(number), attachments=[picture]))
    assert len([path for path in Path(store.root, "attachments").rglob("*") if path.is_file()]) == 1


def test_discarded_message_leaves_no_file(store: Transport) -> None:
    store.discard(store.stage(message(attachments=[os.urandom(600_000), b"x" * 50])))
    assert canonical_files(store) == []


def test_spool_accepts_messages_of_any_size(store: Transport) -> None:
    for size in (0, 10, 300_000, 1_500_000):
        octets = message(body="0123456789abcd\r\n" * (size // 16))
        spool = store.spool()
        for start in range(0, len(octets), 65_536):
            spool.write(octets[start : start + 65_536])
        assert spool.size == len(octets)
        delivery = store.run(op.Deliver(spool.stage(), "x@y.test", [ADA]))
        assert store.content.octets(delivery.message_id) == octets
    with store.spool() as spool:
        spool.write(b"x" * 1_000_000)


# --- append ----------------------------------------------------------------------------------------------------------


def test_append_adds_all_messages_or_none(store: Transport) -> None:
    places = append(store, "Drafts", message("a"), message("b"), flags=Flag.DRAFT | Flag.READ, keywords=("b", "A"))
    assert [place.uid for place in places] == [1, 2]
    assert [(row.flags, row.keywords) for row in rows(store, "Drafts")] == [(Flag.DRAFT | Flag.READ, "A b")] * 2
    with pytest.raises(MailError) as caught:
        append(store, "Nowhere", message("c"), message("d"))
    assert caught.value.reason is Reason.NO_SUCH_FOLDER
    assert len(canonical_files(store)) == 2


def test_append_keeps_the_date_it_is_given(store: Transport) -> None:
    item = op.AppendItem(store.stage(message()), internal_date=86_400)
    store.run(op.Append(ADA, "INBOX", [item]))
    (row,) = rows(store)
    assert row.internal_date == 86_400
    assert row.saved_at > 1_500_000_000
    append(store, "INBOX", message())
    assert rows(store)[1].internal_date == rows(store)[1].saved_at


def test_append_can_replace_in_one_commit(store: Transport) -> None:
    (old,) = append(store, "Drafts", message("first draft"))
    before = store.index.applied_seq()
    item = op.AppendItem(store.stage(message("second draft")))
    (new,) = store.run(op.Append(ADA, "Drafts", [item], replaces=(old.folder, [old.uid])))
    assert store.index.applied_seq() == before + 1
    assert [row.uid for row in rows(store, "Drafts")] == [new.uid] == [2]
    with store.reading() as connection:
        assert mailboxes.expunged_since(connection, old.folder, 1) == ["1"]


def test_append_cannot_set_the_archived_flag(store: Transport) -> None:
    append(store, "INBOX", message(), flags=Flag.ARCHIVED | Flag.READ)
    append(store, "Archive", message())
    assert [row.flags for row in rows(store)] == [Flag.READ]
    assert [row.flags for row in rows(store, "Archive")] == [Flag.ARCHIVED]


def test_append_to_a_deactivated_account_is_refused(store: Transport) -> None:
    store.run(op.Deregister(ADA))
    with pytest.raises(MailError) as caught:
        append(store, "INBOX", message())
    assert caught.value.reason is Reason.INACTIVE_ADDRESS


def test_folder_without_free_uids_refuses_messages_with_a_limit_error(tmp_path: Path) -> None:
    with new_store(tmp_path / "store", ADA) as store:
        # Jump to the last UID instead of delivering four billion messages.
        store.index.writer.execute("UPDATE folders SET uidnext = 4294967295")
        (last,) = append(store, "INBOX", message())
        assert last.uid == 0xFFFFFFFF
        for attempt in (lambda: append(store, "INBOX", message()), lambda: copy_to_inbox(store)):
            with pytest.raises(MailError) as caught:
                attempt()
            assert caught.value.reason is Reason.LIMIT


def copy_to_inbox(store: Transport) -> None:
    store.run(op.Copy(ADA, folder(store).id, [row.uid for row in rows(store)], "INBOX"))
