"""The fault catalogue: an injector for each kind of finding, damaging a store that operations built.

Each returns the findings it should give. Faults touch different objects, so any set of them may be applied together,
in the order of the catalogue; after repair the mail is as if they had never been.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from adapter.store import identity, layout, names
from tests.maintenance.lab import index, path
from tests.support.stores import ADA, BOB

Expected = dict[str, int]
Fault = Callable[[Path], Expected]


def _one(root: Path, sql: str) -> tuple[str, ...]:
    connection = index(root)
    try:
        row: tuple[str, ...] = connection.execute(sql).fetchone()
        return row
    finally:
        connection.close()


def _run(root: Path, *statements: str) -> None:
    connection = index(root)
    try:
        for statement in statements:
            assert connection.execute(statement).rowcount > 0, statement
    finally:
        connection.close()


def _message(root: Path, subject: str) -> tuple[Path, str]:
    (message_id,) = _one(root, f"SELECT message_id FROM messages WHERE subject = '{subject}'")
    return path(root, *layout.message_directory(message_id), layout.message_name(message_id)), message_id


def _folder(root: Path, address: str, name: str) -> Path:
    return path(root, *layout.folder_directory(names.address_entry(address), name))


def _links(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.is_symlink())


# --- rows of the index -----------------------------------------------------------------------------------------------


def flags_changed(root: Path) -> Expected:
    _run(root, "UPDATE mailbox_state SET flags = 2, keywords = 'forged' WHERE keywords = 'todo'")
    return {"state-wrong": 1}


def state_lost(root: Path) -> Expected:
    _run(root, "DELETE FROM mailbox_state WHERE flags = 4")
    return {"state-missing": 1}


def state_invented(root: Path) -> Expected:
    _run(root, "INSERT INTO mailbox_state (folder_id, uid, flags, keywords, modseq) VALUES (77, 1, 0, '', 1)")
    return {"state-orphan": 1}


def uidnext_lowered(root: Path) -> Expected:
    _run(root, "UPDATE folders SET uidnext = 1 WHERE name = 'Archive' AND messages = 1")
    return {"uidnext-too-low": 1}


def counters_off(root: Path) -> Expected:
    _run(root, "UPDATE folders SET messages = 99, size = 1 WHERE name = 'Trash' AND rowid ="
         " (SELECT min(folder_id) FROM folders WHERE name = 'Trash')")  # fmt: skip
    return {"counters-stale": 1}


def folder_renamed_in_index(root: Path) -> Expected:
    _run(root, "UPDATE folders SET name = 'Elsewhere' WHERE folder_id ="
         " (SELECT min(folder_id) FROM folders WHERE name = 'Junk')")  # fmt: skip
    return {"folder-mismatched": 1}


def folder_row_lost(root: Path) -> Expected:
    _run(root, "DELETE FROM folders WHERE folder_id = (SELECT max(folder_id) FROM folders WHERE name = 'Drafts')")
    return {"folder-path-without-row": 1}


def folder_row_invented(root: Path) -> Expected:
    _run(root, "INSERT INTO folders (folder_id, registration_id, name, special_use, uidvalidity, uidnext,"
         " highestmodseq) VALUES (99, 'reg-0000000000000000', 'Ghost', '', 5, 1, 1)")  # fmt: skip
    return {"folder-row-orphan": 1}


def registration_row_lost(root: Path) -> Expected:
    _run(root, f"DELETE FROM mailbox_registrations WHERE address = '{BOB}'")
    return {"registration-missing": 1}


def registration_invented(root: Path) -> Expected:
    _run(root, "INSERT INTO mailbox_registrations VALUES ('reg-1', 'eve@x.test', 'active', 'eve@x.test', 1, 1)")
    return {"registration-orphan": 1}


def registration_status(root: Path) -> Expected:
    _run(root, f"UPDATE mailbox_registrations SET status = 'inactive' WHERE address = '{ADA}'")
    return {"registration-mismatched": 1}


def subscription_lost(root: Path) -> Expected:
    _run(root, "DELETE FROM subscriptions WHERE name = 'Projects/Engine'")
    return {"subscription-wrong": 1}


def message_row_lost(root: Path) -> Expected:
    _run(root, "DELETE FROM messages WHERE subject = 'Message 5'")
    return {"message-not-indexed": 1}


def message_row_invented(root: Path) -> Expected:
    _run(root, "INSERT INTO messages VALUES ('msg-20200101T000000Z-00000000000000000000', 0, '', '', 'forged', '', 't',"
         " 1, '', '', NULL)")  # fmt: skip
    return {"message-row-orphan": 1}


def message_row_wrong(root: Path) -> Expected:
    _run(root, "UPDATE messages SET thread_id = 'thr-wrong' WHERE subject = 'Message 2'")
    return {"message-row-wrong": 1}


def recipient_changed(root: Path) -> Expected:
    _run(root, f"UPDATE message_recipients SET kind = 'bcc' WHERE address = '{BOB}' AND message_id ="
         " (SELECT message_id FROM messages WHERE subject = 'Message 0')")  # fmt: skip
    return {"recipients-wrong": 1}


def attachment_renamed(root: Path) -> Expected:
    _run(root, "UPDATE message_attachments SET name = 'virus.exe' WHERE position = 0 AND message_id ="
         " (SELECT message_id FROM messages WHERE subject = 'Message 1')")  # fmt: skip
    return {"attachments-wrong": 1}


def projection_row_lost(root: Path) -> Expected:
    _run(root, "DELETE FROM mailbox_projections WHERE message_id ="
         " (SELECT message_id FROM messages WHERE subject = 'Old')")  # fmt: skip
    return {"projection-row-missing": 1}


def projection_row_invented(root: Path) -> Expected:
    _run(root, "INSERT INTO mailbox_projections VALUES (78, 1, 'msg-20200101T000000Z-00000000000000000000', 0, 0)")
    return {"projection-row-orphan": 1}


def projection_row_wrong(root: Path) -> Expected:
    _run(root, "UPDATE mailbox_projections SET internal_date = 5 WHERE message_id ="
         " (SELECT message_id FROM messages WHERE subject = 'Note 1')")  # fmt: skip
    return {"projection-row-wrong": 1}


def expunged_forgotten(root: Path) -> Expected:
    _run(root, "DELETE FROM expunged")
    return {"expunged-wrong": 1}


def thread_unread(root: Path) -> Expected:
    _run(root, "UPDATE thread_summaries SET unread = 7 WHERE thread_id ="
         " (SELECT thread_id FROM messages WHERE subject = 'Note 2')")  # fmt: skip
    return {"threads-stale": 1}


def cache_wrong(root: Path) -> Expected:
    _run(root, "UPDATE cache_messages SET envelope = x'00' WHERE message_id ="
         " (SELECT message_id FROM messages WHERE subject = 'Message 3')")  # fmt: skip
    return {"cache-stale": 1}


# --- files -----------------------------------------------------------------------------------------------------------


def message_deleted(root: Path) -> Expected:
    _message(root, "Note 1")[0].unlink()
    return {"message-lost": 1}


def message_overwritten(root: Path) -> Expected:
    file, _ = _message(root, "Note 2")
    raw = file.read_bytes()
    file.chmod(0o644)
    file.write_bytes(raw.replace(b"Hello", b"Hullo"))
    return {"message-corrupt": 1}


def message_misfiled(root: Path) -> Expected:
    file, _ = _message(root, "Old")
    other = file.parent.parent / "2001-01-01"
    other.mkdir(exist_ok=True)
    file.rename(other / file.name)
    return {"message-misfiled": 1}


def message_copied(root: Path) -> Expected:
    file, _ = _message(root, "Message 0")
    other = file.parent.parent / "2001-01-02"
    other.mkdir(exist_ok=True)
    shutil.copy(file, other / file.name)
    return {"message-duplicate": 1}


def stray_file(root: Path) -> Expected:
    (_message(root, "Message 0")[0].parent / "notes.txt").write_text("mine")
    return {"message-stray": 1}


def _blob(root: Path, subject: str) -> Path:
    (sha256,) = _one(root, "SELECT sha256 FROM message_attachments JOIN messages USING (message_id)"
                     f" WHERE subject = '{subject}' LIMIT 1")  # fmt: skip
    return path(root, *layout.blob_directory(sha256), sha256)


def blob_deleted(root: Path) -> Expected:
    _blob(root, "Message 1").unlink()
    return {"blob-missing": 1}


def blob_overwritten(root: Path) -> Expected:
    blob = _blob(root, "Message 4")
    blob.chmod(0o644)
    blob.write_bytes(b"rotten")
    return {"blob-corrupt": 1}


def blob_orphan(root: Path) -> Expected:
    where = path(root, *layout.blob_directory("ab" * 32))
    where.mkdir(exist_ok=True)
    (where / ("ab" * 32)).write_bytes(b"whose?")
    return {"blob-orphan": 1}


def link_removed(root: Path) -> Expected:
    _links(_folder(root, BOB, "INBOX"))[0].unlink()
    return {"projection-missing": 1}


def link_turned(root: Path) -> Expected:
    link = _links(_folder(root, BOB, "INBOX"))[1]
    link.unlink()
    link.symlink_to("../../../messages/nowhere.md")
    return {"projection-wrong-target": 1}


def link_orphan(root: Path) -> Expected:
    _, message_id = _message(root, "Message 4")
    link = _folder(root, BOB, "Junk") / layout.projection_name(9, message_id)
    link.symlink_to(layout.projection_target(message_id))
    return {"projection-orphan": 1}


def link_dangling(root: Path) -> Expected:
    gone = "msg-20200101T000000Z-" + "1" * 20
    (_folder(root, BOB, "Trash") / layout.projection_name(3, gone)).symlink_to(layout.projection_target(gone))
    return {"projection-dangling": 1}


def link_same_uid(root: Path) -> Expected:
    folder = _folder(root, ADA, "INBOX")
    first = _links(folder)[0]
    _, message_id = _message(root, "Message 4")
    uid = int(first.name.partition("-")[0])
    (folder / layout.projection_name(uid, message_id)).symlink_to(layout.projection_target(message_id))
    return {"projection-duplicate-uid": 1}


def folder_directory_gone(root: Path) -> Expected:
    shutil.rmtree(_folder(root, ADA, "Projects"))
    return {"folder-row-without-path": 1}


def folder_copied(root: Path) -> Expected:
    shutil.copytree(_folder(root, ADA, "Projects/Engine"), _folder(root, ADA, "Copy"), symlinks=True)
    return {"folder-id-at-two-paths": 1}


def folder_identity_forged(root: Path) -> Expected:
    place = _folder(root, BOB, "Sent") / layout.IDENTITY_FILE
    known = identity.decode(place.read_bytes())
    assert known is not None
    place.unlink()
    place.write_bytes(identity.Identity(12345, known.registration, 42, known.special_use).encode())
    return {"folder-two-ids": 1}


def folder_identity_torn(root: Path) -> Expected:
    place = _folder(root, BOB, "Archive") / layout.IDENTITY_FILE
    place.chmod(0o644)
    place.write_bytes(place.read_bytes()[:40])
    return {"folder-identity-damaged": 1}


def stray_mailbox(root: Path) -> Expected:
    path(root, *layout.mailbox_directory("half@made.test")).mkdir()
    return {"registration-directory-orphan": 1}


def staging_leftover(root: Path) -> Expected:
    place = path(root, *layout.staging_directory("1-dead"))
    place.mkdir(parents=True, exist_ok=True)
    (place / "00000001").write_bytes(b"half")
    return {"staging-leftover": 1}


def journal_torn(root: Path) -> Expected:
    segment = sorted(path(root, *layout.JOURNAL).glob("*.jsonl"))[-1]
    with segment.open("ab") as file:
        file.write(b'{"seq":99999,"at":1,"op":"deli')
    return {"journal-torn": 1}


CATALOGUE: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        # files first: several injectors look into the index for what to damage
        message_deleted, message_overwritten, message_misfiled, message_copied, stray_file, blob_deleted,
        blob_overwritten, blob_orphan, link_removed, link_turned, link_orphan, link_dangling, link_same_uid,
        folder_directory_gone, folder_copied, folder_identity_forged, folder_identity_torn, stray_mailbox,
        staging_leftover, journal_torn, cache_wrong, flags_changed, state_lost, state_invented, uidnext_lowered,
        counters_off, folder_renamed_in_index, folder_row_lost, folder_row_invented, subscription_lost,
        recipient_changed, attachment_renamed, projection_row_lost, projection_row_invented, projection_row_wrong,
        expunged_forgotten, thread_unread, message_row_lost, message_row_wrong, message_row_invented,
        registration_row_lost, registration_status, registration_invented,
    )
}  # fmt: skip
