"""Folders: create, rename, delete, subscribe; INBOX rules, special uses, identities and directories."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from adapter.store import folder_identity
from adapter.store.queries import mailboxes
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from tests.support.messages import message
from tests.support.stores import ADA, append, folder, folder_names, rows, subscriptions

STANDARD = ["Archive", "Drafts", "INBOX", "Junk", "Sent", "Trash"]


def entries(store: Transport, address: str = ADA) -> list[str]:
    return sorted(os.listdir(Path(store.root, "mailboxes", address)))


def refused(store: Transport, operation: op.Operation[Any]) -> Reason:
    seq = store.index.applied_seq()
    with pytest.raises(MailError) as caught:
        store.run(operation)
    assert store.index.applied_seq() == seq
    return caught.value.reason


# --- create ----------------------------------------------------------------------------------------------------------


def test_an_account_starts_with_six_folders(store: Transport) -> None:
    assert folder_names(store) == STANDARD
    assert entries(store) == ["archive", "drafts", "inbox", "junk", "sent", "trash"]
    assert subscriptions(store) == STANDARD
    uses = {name: folder(store, name).special_use for name in STANDARD}
    assert uses == {name: "" if name == "INBOX" else f"\\{name}" for name in STANDARD}


def test_create_also_creates_missing_parent_folders(store: Transport) -> None:
    made = store.run(op.CreateFolder(ADA, "Work/2026/Engine/"))
    assert made.name == "Work/2026/Engine"
    assert folder_names(store) == sorted([*STANDARD, "Work", "Work/2026", "Work/2026/Engine"])
    assert "Work~2026~Engine" in entries(store)
    assert subscriptions(store) == STANDARD


def test_identity_file_describes_its_folder(store: Transport) -> None:
    made = store.run(op.CreateFolder(ADA, "Später", special_use="\\Flagged"))
    path = Path(store.root, "mailboxes", ADA, "Später", ".mailbox")
    assert path.stat().st_mode & 0o777 == 0o444
    assert folder_identity.decode(path.read_bytes()) == folder_identity.Identity(
        store.store, made.id, made.registration, made.uidvalidity, "\\Flagged"
    )
    assert folder(store, "Später").id == made.id


@pytest.mark.parametrize("name", ["INBOX", "inbox", "Sent", "Work", "Work/"])
def test_creating_an_existing_folder_is_refused(store: Transport, name: str) -> None:
    store.run(op.CreateFolder(ADA, "Work"))
    assert refused(store, op.CreateFolder(ADA, name)) is Reason.FOLDER_EXISTS


def test_special_use_belongs_to_one_folder_at_a_time(store: Transport) -> None:
    assert refused(store, op.CreateFolder(ADA, "Outbox", special_use="\\Sent")) is Reason.FOLDER_EXISTS
    store.run(op.DeleteFolder(ADA, "Sent"))
    assert store.run(op.CreateFolder(ADA, "Outbox", special_use="\\Sent")).special_use == "\\Sent"


@pytest.mark.parametrize("name", ["", "/", "a//b", "/a", "x" * 1001])
def test_invalid_folder_names_are_refused(store: Transport, name: str) -> None:
    assert refused(store, op.CreateFolder(ADA, name)) is Reason.BAD_FOLDER_NAME
    assert refused(store, op.RenameFolder(ADA, "Trash", name)) is Reason.BAD_FOLDER_NAME


@pytest.mark.parametrize(
    "name",
    ["sent", "INBOX/Sub", ".", "..", "a/..", "nul\x00", "50%", "~", "a~b", "é" * 400, "x" * 300, "/".join("y" * 60)],
)
def test_odd_names_work_like_any_other(store: Transport, name: str) -> None:
    made = store.run(op.CreateFolder(ADA, name))
    append(store, name, message())
    store.run(op.RenameFolder(ADA, name, f"{name} renamed"))
    assert folder(store, f"{name} renamed").id == made.id
    assert len(rows(store, f"{name} renamed")) == 1
    store.run(op.RenameFolder(ADA, f"{name} renamed", "short"))
    store.run(op.RenameFolder(ADA, "short", name))
    store.run(op.DeleteFolder(ADA, name))
    assert name not in folder_names(store)


def test_recreated_folder_has_a_higher_uidvalidity_and_a_new_id(store: Transport) -> None:
    seen = set()
    last = 0
    for _ in range(5):
        made = store.run(op.CreateFolder(ADA, "Work"))
        assert made.uidvalidity > last
        assert made.id not in seen
        assert (made.uidnext, made.highestmodseq) == (1, 1)
        last = made.uidvalidity
        seen.add(made.id)
        store.run(op.DeleteFolder(ADA, "Work"))


def test_every_folder_of_the_store_has_its_own_uidvalidity(store: Transport) -> None:
    store.run(op.CreateFolder(ADA, "a/b/c"))
    with store.reading() as connection:
        uidvalidities = [row[0] for row in connection.execute("SELECT uidvalidity FROM folders").fetchall()]
    assert len(uidvalidities) == len(set(uidvalidities)) == 15


# --- rename ----------------------------------------------------------------------------------------------------------


def test_rename_also_renames_child_folders(store: Transport) -> None:
    store.run(op.CreateFolder(ADA, "a/b/c"))
    store.run(op.CreateFolder(ADA, "ab"))
    append(store, "a/b/c", message())
    before = {name: folder(store, name).id for name in ("a", "a/b", "a/b/c")}
    renamed = store.run(op.RenameFolder(ADA, "a", "x/y"))
    assert renamed.name == "x/y"
    assert folder_names(store) == sorted([*STANDARD, "ab", "x", "x/y", "x/y/b", "x/y/b/c"])
    assert {name: folder(store, name.replace("a", "x/y", 1)).id for name in before} == before
    assert [row.uid for row in rows(store, "x/y/b/c")] == [1]
    assert entries(store) == sorted(
        ["archive", "drafts", "inbox", "junk", "sent", "trash", "ab", "x", "x~y", "x~y~b", "x~y~b~c"]
    )


def test_rename_keeps_uidvalidity_uids_flags_and_use(store: Transport) -> None:
    append(store, "Sent", message(), flags=5, keywords=("k",))
    before = folder(store, "Sent")
    store.run(op.RenameFolder(ADA, "Sent", "Gesendet"))
    after = folder(store, "Gesendet")
    assert (after.id, after.uidvalidity, after.uidnext, after.highestmodseq, after.special_use) == (
        before.id,
        before.uidvalidity,
        before.uidnext,
        before.highestmodseq,
        "\\Sent",
    )
    assert [(row.uid, row.flags, row.keywords) for row in rows(store, "Gesendet")] == [(1, 5, "k")]


def test_two_folders_can_swap_names(store: Transport) -> None:
    ids = {name: store.run(op.CreateFolder(ADA, name)).id for name in ("a", "b")}
    for old, new in (("a", "t"), ("b", "a"), ("t", "b")):
        store.run(op.RenameFolder(ADA, old, new))
    assert folder(store, "a").id == ids["b"]
    assert folder(store, "b").id == ids["a"]


def test_rename_to_a_taken_or_invalid_name_is_refused(store: Transport) -> None:
    store.run(op.CreateFolder(ADA, "a/b"))
    store.run(op.CreateFolder(ADA, "x/b"))
    assert refused(store, op.RenameFolder(ADA, "nowhere", "y")) is Reason.NO_SUCH_FOLDER
    assert refused(store, op.RenameFolder(ADA, "a", "Trash")) is Reason.FOLDER_EXISTS
    assert refused(store, op.RenameFolder(ADA, "a", "a")) is Reason.FOLDER_EXISTS
    assert refused(store, op.RenameFolder(ADA, "a", "inbox")) is Reason.FOLDER_EXISTS
    assert refused(store, op.RenameFolder(ADA, "a", "a/b/c")) is Reason.NOT_ALLOWED
    store.run(op.DeleteFolder(ADA, "x"))
    assert refused(store, op.RenameFolder(ADA, "a", "x")) is Reason.FOLDER_EXISTS  # its child would collide with x/b
    store.run(op.CreateFolder(ADA, "d/" + "e" * 900))
    assert refused(store, op.RenameFolder(ADA, "d", "f" * 200)) is Reason.BAD_FOLDER_NAME


def test_parent_name_without_a_folder_can_be_renamed(store: Transport) -> None:
    store.run(op.CreateFolder(ADA, "a/b"))
    store.run(op.DeleteFolder(ADA, "a"))
    assert refused(store, op.RenameFolder(ADA, "a", "a")) is Reason.FOLDER_EXISTS
    store.run(op.RenameFolder(ADA, "a", "c"))
    assert [name for name in folder_names(store) if name not in STANDARD] == ["c/b"]


def test_renaming_inbox_moves_its_messages_to_the_new_folder(store: Transport) -> None:
    """RFC 3501 6.3.5: INBOX stays, empty; its children stay where they are."""
    append(store, "INBOX", message("1"), message("2"), flags=1, keywords=("k",))
    store.run(op.CreateFolder(ADA, "INBOX/Sub"))
    before = folder(store)
    made = store.run(op.RenameFolder(ADA, "inbox", "Old/Mail"))
    assert made.name == "Old/Mail"
    assert [(row.uid, row.flags, row.keywords) for row in rows(store, "Old/Mail")] == [(1, 1, "k"), (2, 1, "k")]
    after = folder(store)
    assert (after.id, after.uidvalidity, after.uidnext, after.messages) == (before.id, before.uidvalidity, 3, 0)
    assert "INBOX/Sub" in folder_names(store)
    with store.reading() as connection:
        assert mailboxes.expunged_since(connection, before.id, 0) == ["1:2"]
    assert append(store, "INBOX", message())[0].uid == 3


def test_inbox_may_be_emptied_into_a_folder_below_it(store: Transport) -> None:
    append(store, "INBOX", message())
    store.run(op.RenameFolder(ADA, "INBOX", "INBOX/2025"))
    assert (len(rows(store)), len(rows(store, "INBOX/2025"))) == (0, 1)


def test_an_empty_inbox_can_be_renamed(store: Transport) -> None:
    store.run(op.RenameFolder(ADA, "INBOX", "Old"))
    assert rows(store, "Old") == []


# --- delete ----------------------------------------------------------------------------------------------------------


def test_delete_removes_the_messages_and_keeps_the_children(store: Transport) -> None:
    store.run(op.CreateFolder(ADA, "a/b"))
    append(store, "a", message("1"))
    append(store, "a/b", message("2"))
    store.run(op.DeleteFolder(ADA, "a"))
    assert [name for name in folder_names(store) if name not in STANDARD] == ["a/b"]
    assert len(rows(store, "a/b")) == 1
    assert "a" not in entries(store)
    store.run(op.CreateFolder(ADA, "a"))
    assert rows(store, "a") == []


def test_inbox_cannot_be_deleted(store: Transport) -> None:
    assert refused(store, op.DeleteFolder(ADA, "inbox")) is Reason.NOT_ALLOWED
    assert refused(store, op.DeleteFolder(ADA, "nowhere")) is Reason.NO_SUCH_FOLDER


def test_foreign_files_in_a_deleted_folder_are_quarantined(store: Transport) -> None:
    store.run(op.CreateFolder(ADA, "Work"))
    Path(store.root, "mailboxes", ADA, "Work", "notes.txt").write_text("mine")
    store.run(op.DeleteFolder(ADA, "Work"))
    quarantine = Path(store.root, "maintenance", "quarantine")
    (kept,) = quarantine.rglob("notes.txt")
    assert kept.read_text() == "mine"
    store.run(op.CreateFolder(ADA, "Work"))
    kept.unlink()
    kept.parent.rmdir()


def test_foreign_directory_with_the_name_of_a_new_folder_is_quarantined(store: Transport) -> None:
    stray = Path(store.root, "mailboxes", ADA, "Work")
    stray.mkdir()
    (stray / "notes.txt").write_text("mine")
    store.run(op.CreateFolder(ADA, "Work"))
    assert os.listdir(stray) == [".mailbox"]
    (kept,) = Path(store.root, "maintenance", "quarantine").rglob("notes.txt")
    kept.unlink()
    kept.parent.rmdir()


# --- subscriptions ---------------------------------------------------------------------------------------------------


def test_subscription_does_not_require_a_folder_and_survives_its_deletion(store: Transport) -> None:
    assert store.run(op.Subscribe(ADA, "Some/Day")) is True
    assert store.run(op.Subscribe(ADA, "Some/Day/")) is False
    store.run(op.CreateFolder(ADA, "Work"))
    assert store.run(op.Subscribe(ADA, "Work")) is True
    store.run(op.DeleteFolder(ADA, "Work"))
    assert subscriptions(store) == sorted([*STANDARD, "Some/Day", "Work"])
    assert store.run(op.Subscribe(ADA, "Work", on=False)) is True
    assert store.run(op.Subscribe(ADA, "Work", on=False)) is False
    assert "Work" not in subscriptions(store)


def test_rename_does_not_change_subscriptions(store: Transport) -> None:
    store.run(op.RenameFolder(ADA, "Sent", "Gesendet"))
    assert subscriptions(store) == STANDARD


def test_subscriptions_are_per_account(store: Transport) -> None:
    store.run(op.Subscribe(ADA, "Work"))
    assert "Work" not in subscriptions(store, "bob@example.test")


@pytest.mark.parametrize(
    "operation",
    [
        op.CreateFolder("nobody@example.test", "x"),
        op.RenameFolder("nobody@example.test", "x", "y"),
        op.DeleteFolder("nobody@example.test", "x"),
        op.Subscribe("nobody@example.test", "x"),
    ],
    ids=lambda operation: operation.name,
)
def test_folder_operations_of_an_unknown_account_are_refused(store: Transport, operation: op.Operation[Any]) -> None:
    assert refused(store, operation) is Reason.NO_SUCH_ADDRESS
