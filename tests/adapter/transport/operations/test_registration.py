"""Registering and deregistering addresses, in every mode."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from adapter.store.queries import mailboxes as queries
from adapter.store.queries.mailboxes import Registration
from adapter.transport import operations as op
from adapter.transport.operations.registration import DeregisterMode, RegisterMode
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.support.messages import message
from tests.support.stores import ADA, BOB, append, deliver, folder, folder_names, placed, rows, subscriptions


def registrations(store: Transport, address: str = ADA) -> list[Registration]:
    with store.reading() as connection:
        return [each for each in queries.registrations(connection) if each.address == address]


def mailboxes(store: Transport) -> list[str]:
    return sorted(os.listdir(Path(store.root, "mailboxes")))


def contents(store: Transport) -> int:
    return len(list(Path(store.root, "messages").rglob("*.md")))


def reason(store: Transport, operation: op.Operation[Any]) -> Reason:
    with pytest.raises(MailError) as caught:
        store.run(operation)
    return caught.value.reason


def test_registering_an_address_twice_is_refused(store: Transport) -> None:
    assert reason(store, op.Register(ADA)) is Reason.ADDRESS_EXISTS
    assert [registration.status for registration in registrations(store)] == ["active"]
    assert mailboxes(store) == [ADA, BOB]


def test_deactivated_account_keeps_its_mail_until_it_is_reactivated(store: Transport) -> None:
    append(store, "Sent", message(), flags=5)
    first = registrations(store)[0]
    store.run(op.Deregister(ADA))
    assert registrations(store)[0].status == "inactive"
    assert reason(store, op.CreateFolder(ADA, "x")) is Reason.INACTIVE_ADDRESS
    assert reason(store, op.Deregister(ADA)) is Reason.NO_SUCH_ADDRESS
    back = store.run(op.Register(ADA))
    assert (back.id, back.status) == (first.id, "active")
    assert [row.flags for row in rows(store, "Sent")] == [5]
    assert placed(deliver(store, ADA)).uid == 1


def test_force_restores_missing_standard_folders_and_subscriptions(store: Transport) -> None:
    append(store, "INBOX", message())
    store.run(op.DeleteFolder(ADA, "Trash"))
    store.run(op.RenameFolder(ADA, "Sent", "Gesendet"))
    store.run(op.Subscribe(ADA, "Trash", on=False))
    first = registrations(store)[0]
    assert store.run(op.Register(ADA, "force")).id == first.id
    # Sent exists under another name: a second one would be a duplicate.
    assert folder_names(store) == ["Archive", "Drafts", "Gesendet", "INBOX", "Junk", "Trash"]
    assert "Trash" in subscriptions(store)
    assert folder(store).messages == 1


@pytest.mark.parametrize("deactivated", [False, True])
def test_stash_sets_the_whole_old_mailbox_aside(store: Transport, deactivated: bool) -> None:
    old = placed(deliver(store, ADA))
    before = folder(store)
    if deactivated:
        store.run(op.Deregister(ADA))
    fresh = store.run(op.Register(ADA, "stash"))
    by_status = {registration.status: registration for registration in registrations(store)}
    assert set(by_status) == {"active", "stashed"}
    assert by_status["active"].id == fresh.id
    aside = by_status["stashed"].directory
    assert mailboxes(store) == sorted([ADA, BOB, aside])
    assert len(os.listdir(Path(store.root, "mailboxes", aside, "inbox"))) == 2
    assert rows(store) == []
    assert folder(store).uidvalidity > before.uidvalidity
    with store.reading() as connection:
        assert [row.uid for row in queries.rows(connection, before.id)] == [1]
    assert reason(store, op.ChangeFlags(ADA, before.id, [old.uid], "add", 1)) is Reason.NO_SUCH_FOLDER
    store.run(op.Register(ADA, "stash"))
    assert len(mailboxes(store)) == 4


def test_deregister_by_stash_frees_the_address(store: Transport) -> None:
    deliver(store, ADA)
    store.run(op.Deregister(ADA, "stash"))
    outcome = deliver(store, ADA).recipients[ADA]
    assert isinstance(outcome, MailError)
    assert outcome.reason is Reason.NO_SUCH_ADDRESS
    store.run(op.Register(ADA))
    assert rows(store) == []
    assert len(registrations(store)) == 2


@pytest.mark.parametrize("deactivated", [False, True])
def test_purge_permanently_deletes_content_no_other_account_has(store: Transport, deactivated: bool) -> None:
    deliver(store, ADA, octets=message("only hers", attachments=[b"a" * 5000]))
    deliver(store, ADA, BOB, octets=message("shared", attachments=[b"b" * 5000]))
    append(store, "Drafts", message("draft"))
    if deactivated:
        store.run(op.Deregister(ADA))
    store.run(op.Deregister(ADA, "purge"))
    assert mailboxes(store) == [BOB]
    assert contents(store) == 1
    blobs = [path for path in Path(store.root, "attachments").rglob("*") if path.is_file()]
    assert len(blobs) == 1
    (row,) = rows(store, address=BOB)
    assert b"shared" in store.content.octets(row.message_id)
    assert registrations(store)[0].status == "purged"
    assert reason(store, op.Deregister(ADA, "purge")) is Reason.NO_SUCH_ADDRESS


def test_purge_keeps_only_the_message_id_and_the_subscriptions(store: Transport) -> None:
    delivery = deliver(store, ADA)
    store.run(op.Deregister(ADA, "purge"))
    with store.reading() as connection:
        message_rows = connection.execute("SELECT message_id, file_sha256, unlinked_at FROM messages").fetchall()
        assert connection.execute("SELECT count(*) FROM subscriptions").fetchone() == (6,)
    assert message_rows == [(delivery.message_id, "", None)]
    with pytest.raises(MailError) as caught:
        store.content.octets(delivery.message_id)
    assert caught.value.reason is Reason.NO_SUCH_MESSAGE


def test_purged_address_can_be_registered_again(store: Transport) -> None:
    before = folder(store)
    store.run(op.Deregister(ADA, "purge"))
    store.run(op.Register(ADA))
    assert folder(store).uidvalidity > before.uidvalidity
    assert placed(deliver(store, ADA)).uid == 1


@pytest.mark.parametrize("mode", ["deactivate", "stash", "purge"])
def test_deregistering_an_unknown_address_is_refused(store: Transport, mode: DeregisterMode) -> None:
    assert reason(store, op.Deregister("nobody@example.test", mode)) is Reason.NO_SUCH_ADDRESS


@pytest.mark.parametrize("mode", ["safe", "force", "stash"])
def test_new_address_can_be_registered_in_any_mode(store: Transport, mode: RegisterMode) -> None:
    made = store.run(op.Register("josé/x@example.test", mode))
    assert made.directory == "josé%2Fx@example.test"
    assert len(folder_names(store, "josé/x@example.test")) == 6


def test_mailbox_with_missing_files_can_be_purged(store: Transport) -> None:
    deliver(store, ADA)
    append(store, "Drafts", message("draft"))
    store.run(op.CreateFolder(ADA, "Work"))
    shutil.rmtree(Path(store.root, "mailboxes", ADA, "inbox"))
    Path(store.root, "mailboxes", ADA, "drafts", ".mailbox").unlink()
    shutil.rmtree(Path(store.root, "mailboxes", ADA, "Work"))
    store.run(op.DeleteFolder(ADA, "Work"))
    store.run(op.Deregister(ADA, "purge"))
    assert mailboxes(store) == [BOB]


def test_foreign_files_in_a_purged_mailbox_are_quarantined(store: Transport) -> None:
    Path(store.root, "mailboxes", ADA, "notes.txt").write_text("mine")
    store.run(op.Deregister(ADA, "purge"))
    (kept,) = Path(store.root, "maintenance", "quarantine").rglob("notes.txt")
    assert kept.read_text() == "mine"
    kept.unlink()
    kept.parent.rmdir()
