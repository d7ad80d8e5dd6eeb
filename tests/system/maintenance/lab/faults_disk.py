"""Faults on disk: files, links, directories, credentials, snapshots, the end of the journal."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

from adapter.store import folder_identity, layout, segments, snapshots
from adapter.store.disk import Directories
from tests.support.stores import ADA, id_of
from tests.system.maintenance.lab.faults import fault
from tests.system.maintenance.lab.victims import Place, Unfit, Victims, records, write_records

_GONE = "msg-20200101T000000Z-" + "1" * 20


# --- a whole mailbox: first, because it needs an undamaged one ---------------------------------------------------


@fault("disk", "registration-directory-missing", "folder-row-without-path")
def mailbox_directory_gone(v: Victims) -> dict[str, int]:
    """Remove a mailbox directory with everything in it."""
    account = v.take("mailbox", v.accounts, lambda each: all(v.is_free("directory", own) for own in _own(v, each[0])))
    own = _own(v, account[0])
    v.use("directory", *own)
    v.use("link", *(each for each in v.shown if v.place(each.folder) in own))
    shutil.rmtree(v.path(*layout.mailbox_directory(account[2])))
    return {"registration-directory-missing": 1, "folder-row-without-path": len(own)}


def _own(v: Victims, registration: str) -> list[Place]:
    return [place for place in v.folders if place.registration == registration]


# --- messages and blobs ----------------------------------------------------------------------------------------------


@fault("disk", "message-lost")
def message_deleted(v: Victims) -> None:
    v.file_path(v.content()).unlink()


@fault("disk", "message-corrupt")
def message_overwritten(v: Victims) -> None:
    file = v.file_path(v.content())
    raw = bytearray(file.read_bytes())
    raw[v.chance.randrange(len(raw))] ^= 1
    file.chmod(0o644)
    file.write_bytes(raw)


@fault("disk", "message-lost")
def message_gone_for_good(v: Victims) -> None:
    v.file_path(v.only_copy()).unlink()


@fault("disk", "message-corrupt")
def message_edited_for_good(v: Victims) -> None:
    """No source has the original: the message stays in its folders, marked as damaged."""
    file = v.file_path(v.edited_copy())
    file.chmod(0o644)
    file.write_bytes(file.read_bytes() + b"A line that somebody added.\n")


@fault("disk", "part-returned")
def part_back_again(v: Victims) -> None:
    part, copy = v.lost_part()
    v.blob_path(part).parent.mkdir(exist_ok=True)
    shutil.copy(copy, v.blob_path(part))


@fault("disk", "message-returned")
def message_back_after_its_loss(v: Victims) -> None:
    message, copy = v.lost_message()
    v.file_path(message).parent.mkdir(exist_ok=True)
    shutil.copy(copy, v.file_path(message))


@fault("disk", "message-misfiled")
def message_misfiled(v: Victims) -> None:
    file = v.file_path(v.content(journaled=False))
    other = file.parent.parent / "2001-01-01"
    other.mkdir(exist_ok=True)
    file.rename(other / file.name)


@fault("disk", "message-duplicate")
def message_copied(v: Victims) -> None:
    file = v.file_path(v.content(journaled=False))
    other = file.parent.parent / "2001-01-02"
    other.mkdir(exist_ok=True)
    shutil.copy(file, other / file.name)


@fault("disk", "message-dropped")
def message_back_again(v: Victims) -> None:
    message_id = v.take(
        "content", v.dropped, lambda each: b"\nattachments:" not in v.texts.get(each, b"\nattachments:")
    )
    file = v.file_path(message_id)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(v.texts[message_id])


@fault("disk", "message-stray")
def stray_file(v: Victims) -> None:
    (v.file_path(v.some_message()).parent / "notes.txt").write_text("mine")


@fault("disk", "blob-missing")
def blob_deleted(v: Victims) -> None:
    v.blob_path(v.part()).unlink()


@fault("disk", "blob-corrupt")
def blob_overwritten(v: Victims) -> None:
    blob = v.blob_path(v.part())
    blob.chmod(0o644)
    blob.write_bytes(b"rotten")


@fault("disk", "blob-corrupt")
def blob_gone_for_good(v: Victims) -> None:
    blob = v.blob_path(v.only_part())
    blob.chmod(0o644)
    blob.write_bytes(b"rotten")


@fault("disk", "blob-misfiled")
def blob_misfiled(v: Victims) -> None:
    blob = v.blob_path(v.part())
    other = blob.parent.parent / f"{int(blob.parent.name, 16) ^ 1:02x}"
    other.mkdir(exist_ok=True)
    blob.rename(other / blob.name)


@fault("disk", "blob-duplicate")
def blob_copied(v: Victims) -> None:
    blob = v.blob_path(v.part())
    other = blob.parent.parent / f"{int(blob.parent.name, 16) ^ 2:02x}"
    other.mkdir(exist_ok=True)
    shutil.copy(blob, other / blob.name)


@fault("disk", "blob-orphan")
def blob_orphan(v: Victims) -> None:
    blob = v.blob_path("ab" * 32)
    blob.parent.mkdir(exist_ok=True)
    blob.write_bytes(b"whose?")


# --- links -----------------------------------------------------------------------------------------------------------


@fault("disk", "projection-missing")
def link_removed(v: Victims) -> None:
    v.link_path(v.link()).unlink()


@fault("disk", "projection-wrong-target")
def link_turned(v: Victims) -> None:
    link = v.link_path(v.link())
    link.unlink()
    link.symlink_to("../../../messages/nowhere.md")


@fault("disk", "projection-orphan")
def link_orphan(v: Victims) -> None:
    _add_link(v, v.folder_for_link(), 4_000_000_000, v.some_message())


@fault("disk", "projection-dangling")
def link_dangling(v: Victims) -> None:
    _add_link(v, v.folder_for_link(), 4_000_000_001, _GONE)


@fault("disk", "projection-duplicate-uid")
def link_same_uid(v: Victims) -> None:
    first = v.link()
    _add_link(v, v.place(first.folder), first.uid, v.some_message(but=first.message))


def _add_link(v: Victims, place: Place, uid: int, message_id: str) -> None:
    link = v.folder_path(place) / layout.projection_name(uid, message_id)
    link.symlink_to(layout.projection_target(message_id))


# --- folders and accounts --------------------------------------------------------------------------------------------


@fault("disk", "folder-row-without-path")
def folder_directory_gone(v: Victims) -> None:
    shutil.rmtree(v.folder_path(v.directory()))


@fault("disk", "folder-id-at-two-paths")
def folder_copied(v: Victims) -> None:
    place = v.directory()
    copy = v.path(*layout.folder_directory(place.directory, "Copy"))
    shutil.copytree(v.folder_path(place), copy, symlinks=True)


@fault("disk", "folder-two-ids")
def folder_identity_forged(v: Victims) -> None:
    place = v.directory()
    file = v.folder_path(place) / layout.IDENTITY_FILE
    file.unlink()
    file.write_bytes(folder_identity.Identity(id_of(v.root), 12345, place.registration, 42, "").encode())


@fault("disk", "folder-identity-damaged")
def folder_identity_torn(v: Victims) -> None:
    file = v.folder_path(v.directory()) / layout.IDENTITY_FILE
    raw = file.read_bytes()
    file.unlink()
    file.write_bytes(raw[: v.chance.randrange(len(raw))])


@fault("disk", "folder-unidentified")
def directory_made_by_hand(v: Victims) -> None:
    """The directory becomes a folder with the messages of its links."""
    account = v.take("mailbox", v.accounts)
    place = v.new_folder(account, "By hand")
    place.mkdir()
    message_id = v.some_message()
    (place / layout.projection_name(7, message_id)).symlink_to(layout.projection_target(message_id))
    v.new_folders.add((account[1], "By hand"))


@fault("disk", "registration-directory-orphan")
def stray_mailbox(v: Victims) -> None:
    v.path(*layout.mailbox_directory("half@made.test")).mkdir()


@fault("disk", "credentials-orphan")
def password_without_account(v: Victims) -> None:
    """The address becomes an account: a user chose that password."""
    place = v.path(*layout.CREDENTIALS)
    place.mkdir(mode=0o700, exist_ok=True)
    passwords = place / layout.CREDENTIALS_FILE
    if not passwords.exists():
        passwords.touch(mode=0o600)
    with passwords.open("a") as file:
        file.write("dora@example.test:{ARGON2ID}$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$aGFzaA::::::\n")
    v.new_accounts.add("dora@example.test")


# --- identity --------------------------------------------------------------------------------------------------------


@fault("disk", "store-id-damaged")
def store_id_damaged(v: Victims) -> None:
    place = v.path(layout.STORE_ID_FILE)
    raw = place.read_bytes()
    place.unlink()
    if v.chance.random() < 0.5:
        place.write_bytes(raw[: v.chance.randrange(len(raw))])


@fault("disk", "folder-identity-foreign")
def folder_identity_of_another_store(v: Victims) -> None:
    place = v.directory()
    file = v.folder_path(place) / layout.IDENTITY_FILE
    file.unlink()
    shutil.copy(v.other_store() / "mailboxes" / ADA / "inbox" / layout.IDENTITY_FILE, file)


@fault("disk", "folder-identity-outdated")
def folder_identity_outdated(v: Victims) -> None:
    """An older copy: UIDs have been assigned since."""
    file = v.folder_path(v.directory()) / layout.IDENTITY_FILE
    identity = folder_identity.decode(file.read_bytes())
    assert identity is not None
    file.unlink()
    file.write_bytes(replace(identity, uids_below=1).encode())


@fault("disk", "journal-foreign")
def segment_of_another_store(v: Victims) -> None:
    source = sorted((v.other_store() / "journal").glob("*.jsonl"))[-1]
    taken = segments.decode_header(records(source)[0])
    copy = v.path(*layout.JOURNAL, layout.journal_segment(90_000))
    copy.write_bytes(taken._replace(first=90_000).encode() + b"".join(records(source)[1:]))
    copy.chmod(0o600)


@fault("disk", "snapshot-foreign")
def snapshot_of_another_store(v: Victims) -> None:
    with (
        closing(Directories(str(v.root))) as directories,
        closing(sqlite3.connect(v.other_store() / layout.INDEX_FILE)) as connection,
    ):
        snapshots.write(directories, connection, 80_000)


# --- history ---------------------------------------------------------------------------------------------------------


@fault("disk", "staging-leftover")
def staging_leftover(v: Victims) -> None:
    place = v.path(*layout.staging_directory("1-dead"))
    place.mkdir(parents=True, exist_ok=True)
    (place / "00000001").write_bytes(b"half")


@fault("disk", "snapshot-damaged")
def snapshot_overwritten(v: Victims) -> None:
    """Damage the newest snapshot: the journal reaches back to the previous one."""
    with closing(Directories(str(v.root))) as directories:
        own = [layout.snapshot_directory(seq)[-1] for seq in snapshots.available(directories, v.store)]
    paths = [v.path(*layout.SNAPSHOTS, name) for name in own]
    if not paths:
        raise Unfit
    file = v.chance.choice(sorted(paths[-1].iterdir()))
    raw = bytearray(file.read_bytes())
    raw[v.chance.randrange(len(raw))] ^= 1
    file.chmod(0o644)
    file.write_bytes(raw)


@fault("disk", "journal-torn")
def journal_torn(v: Victims) -> None:
    newest = v.own_segments()[-1]
    write_records(newest, [*records(newest), b'{"seq":99999,"at":1,"op":"deli'])
