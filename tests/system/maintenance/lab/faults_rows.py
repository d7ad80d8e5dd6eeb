"""Faults in the rows of the index, and in the index as a whole."""

from __future__ import annotations

import shutil
from contextlib import closing

from adapter.store import index, layout, snapshots
from adapter.store.disk import Directories
from adapter.store.journal import Journal, without_aborted
from adapter.transport import apply
from tests.system.maintenance.lab.faults import fault
from tests.system.maintenance.lab.victims import Unfit, Victims, records, write_records

_UNKNOWN = "msg-20200101T000000Z-00000000000000000000"


@fault("rows", "state-wrong")
def flags_changed(v: Victims) -> None:
    row = v.take("state", v.shown)
    v.run(
        "UPDATE mailbox_state SET flags = 31 - (flags & 31), keywords = 'forged' WHERE folder_id = ? AND uid = ?",
        *row[:2],
    )


@fault("rows", "state-missing")
def state_lost(v: Victims) -> None:
    row = v.take("state", v.shown)
    v.run("DELETE FROM mailbox_state WHERE folder_id = ? AND uid = ?", *row[:2])


@fault("rows", "loss-record-wrong")
def loss_invented(v: Victims) -> None:
    v.run("INSERT INTO damaged_parts VALUES (?, ?, '')", v.take("loss record", v.kept), "cd" * 32)


@fault("rows", "state-orphan")
def state_invented(v: Victims) -> None:
    v.run("INSERT INTO mailbox_state (folder_id, uid, flags, keywords, modseq) VALUES (77, 1, 0, '', 1)")


@fault("rows", "uidnext-too-low")
def uidnext_lowered(v: Victims) -> None:
    place = v.take("folder", v.folders, lambda each: each.uidnext > 1)
    v.run("UPDATE folders SET uidnext = 1 WHERE folder_id = ?", place.id)


@fault("rows", "counters-stale")
def counters_off(v: Victims) -> None:
    place = v.take("folder", v.folders)
    v.run("UPDATE folders SET messages = messages + 9, size = size + 1 WHERE folder_id = ?", place.id)


@fault("rows", "folder-mismatched")
def modseq_lowered(v: Victims) -> None:
    place = v.take("folder", v.folders)
    v.run("UPDATE folders SET highestmodseq = 0, uidnext = uidnext + 1 WHERE folder_id = ?", place.id)


@fault("rows", "index-meta-wrong")
def meta_lowered(v: Victims) -> None:
    """Used UIDVALIDITYs would be assigned again."""
    v.run("UPDATE meta SET value = 1 WHERE key = 'last_uidvalidity'")


@fault("rows", "folder-mismatched")
def folder_renamed_in_index(v: Victims) -> None:
    place = v.take("folder", v.folders)
    v.run("UPDATE folders SET name = 'Elsewhere' WHERE folder_id = ?", place.id)


@fault("rows", "folder-path-without-row")
def folder_row_lost(v: Victims) -> None:
    place = v.take("folder", v.folders)
    v.run("DELETE FROM folders WHERE folder_id = ?", place.id)


@fault("rows", "folder-row-orphan")
def folder_row_invented(v: Victims) -> None:
    v.run(
        "INSERT INTO folders (folder_id, registration_id, name, special_use, uidvalidity, uidnext, highestmodseq)"
        " VALUES (99, 'reg-0000000000000000', 'Ghost', '', 5, 1, 1)"
    )


@fault("rows", "registration-missing")
def registration_row_lost(v: Victims) -> None:
    account = v.take("registration", v.accounts)
    v.run("DELETE FROM mailbox_registrations WHERE registration_id = ?", account[0])


@fault("rows", "registration-mismatched")
def registration_status(v: Victims) -> None:
    account = v.take("registration", v.accounts)
    v.run("UPDATE mailbox_registrations SET status = 'inactive' WHERE registration_id = ?", account[0])


@fault("rows", "registration-orphan")
def registration_invented(v: Victims) -> None:
    v.run("INSERT INTO mailbox_registrations VALUES ('reg-1', 'eve@x.test', 'active', 'eve@x.test', 1, 1)")


@fault("rows", "subscription-wrong")
def subscription_lost(v: Victims) -> None:
    row = v.take("subscription", v.subscriptions)
    v.run("DELETE FROM subscriptions WHERE registration_id = ? AND name = ?", *row)


@fault("rows", "message-not-indexed")
def message_row_lost(v: Victims) -> None:
    v.run("DELETE FROM messages WHERE message_id = ?", v.take("message", v.kept))


@fault("rows", "message-row-wrong")
def message_row_wrong(v: Victims) -> None:
    v.run("UPDATE messages SET thread_id = 'thr-wrong' WHERE message_id = ?", v.take("message", v.kept))


@fault("rows", "message-row-orphan")
def message_row_invented(v: Victims) -> None:
    v.run(f"INSERT INTO messages VALUES ('{_UNKNOWN}', 0, '', '', 'forged', '', 't', 1, '', '', NULL)")


@fault("rows", "recipients-wrong")
def recipient_changed(v: Victims) -> None:
    row = v.take("recipient", v.recipients)
    v.run(
        "UPDATE message_recipients SET kind = iif(kind = 'bcc', 'to', 'bcc') WHERE message_id = ? AND address = ?", *row
    )


@fault("rows", "attachments-wrong")
def attachment_renamed(v: Victims) -> None:
    message, sha256 = v.take("attachment", v.parts)
    v.run("UPDATE message_attachments SET name = 'virus.exe' WHERE message_id = ? AND sha256 = ?", message, sha256)


@fault("rows", "projection-row-missing")
def projection_row_lost(v: Victims) -> None:
    row = v.take("projection", v.shown)
    v.run("DELETE FROM mailbox_projections WHERE folder_id = ? AND uid = ?", *row[:2])


@fault("rows", "projection-row-orphan")
def projection_row_invented(v: Victims) -> None:
    v.run(f"INSERT INTO mailbox_projections VALUES (78, 1, '{_UNKNOWN}', 0, 0)")


@fault("rows", "projection-row-wrong")
def projection_row_wrong(v: Victims) -> None:
    row = v.take("projection", v.shown)
    v.run("UPDATE mailbox_projections SET internal_date = 5 WHERE folder_id = ? AND uid = ?", *row[:2])


@fault("rows", "expunged-wrong")
def expunged_forgotten(v: Victims) -> None:
    v.run("DELETE FROM expunged WHERE folder_id = ? AND modseq = ?", *v.take("expunged", v.expunged))


@fault("rows", "threads-stale")
def thread_unread(v: Victims) -> None:
    row = v.take("thread", v.threads)
    v.run("UPDATE thread_summaries SET unread = unread + 7 WHERE registration_id = ? AND thread_id = ?", *row)


@fault("rows", "outbox-wrong")
def outbox_turned(v: Victims) -> None:
    v.run("UPDATE outbox SET recipient = 'eve@x.test' WHERE queue_id = ?", v.take("queue", v.queued))


@fault("rows", "bookmark-wrong")
def bookmark_invented(v: Victims) -> None:
    v.run("INSERT INTO bookmarks VALUES ('nobody', 'nothing', '0')")


@fault("rows", "dsn-request-wrong")
def dsn_request_invented(v: Victims) -> None:
    v.run(f"INSERT INTO dsn_requests VALUES ('{_UNKNOWN}', 'eve@x.test', 'SUCCESS', NULL, NULL, 'forged')")


@fault("rows", "cache-stale")
def cache_wrong(v: Victims) -> None:
    message_id = v.take("content", v.cached, lambda each: each in v.kept)  # a damaged file has no cache row
    v.run("UPDATE cache_messages SET envelope = x'00' WHERE message_id = ?", message_id)


# --- the index -------------------------------------------------------------------------------------------------------


@fault("index", "index-missing")
def index_removed(v: Victims) -> None:
    v.path(layout.INDEX_FILE).unlink()


@fault("index", "index-unreadable")
def index_overwritten(v: Victims) -> None:
    place = v.path(layout.INDEX_FILE)
    raw = bytearray(place.read_bytes())
    for page in range(4096, len(raw), 4096):  # the header of every page except the first, so that SQLite detects it
        raw[page : page + 64] = v.chance.randbytes(64)
    place.write_bytes(raw)


@fault("index", "index-schema-wrong")
def index_schema_changed(v: Victims) -> None:
    with closing(v.connect()) as connection:
        sql = "SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL ORDER BY 1"
        for (name,) in connection.execute(sql).fetchall():
            connection.execute(f"DROP INDEX {name}")
        connection.execute(
            "CREATE TRIGGER forged AFTER UPDATE ON folders BEGIN UPDATE mailbox_state SET flags = 0; END"
        )
        connection.execute("CREATE VIEW forged_view AS SELECT * FROM folders")
        connection.execute("ALTER TABLE outbox ADD COLUMN forged TEXT")


@fault("index", "index-foreign")
def index_of_another_store(v: Victims) -> None:
    shutil.copy(v.other_store() / layout.INDEX_FILE, v.path(layout.INDEX_FILE))


@fault("index", "index-diverged")
def index_of_another_history(v: Victims) -> None:
    """A diverged copy of this store, with other rows."""
    v.run("DELETE FROM mailbox_projections")
    v.run("UPDATE meta SET value = 'ffffffff' WHERE key = 'applied_checksum'")


@fault("index", "index-outdated")
def index_of_yesterday(v: Victims) -> None:
    """An older copy, which the journal brings up to date."""
    place = v.path("older.sqlite")
    whole = [line for line in records(v.own_segments()[-1])[1:] if line.endswith(b"\n")]
    last = int(whole[-1][7 : whole[-1].index(b",")]) - 2 if whole else 0
    with (
        closing(Directories(str(v.root))) as directories,
        closing(Journal(directories, v.store)) as journal,
        closing(index.create(str(place), v.store)) as connection,
    ):
        start = snapshots.load_latest(directories, connection)
        if last <= start:
            place.unlink()
            raise Unfit
        for record in without_aborted(journal.records(start, last)):
            for effect in record.effects:
                apply.apply_index(effect, connection, record.at)
        index.set_applied(connection, last, journal.checksum_at(last) or "")
    place.rename(v.path(layout.INDEX_FILE))


@fault("journal", "journal-damaged")
def journal_overwritten(v: Victims) -> None:
    """Damage a record without content; its effects are in index and files."""
    candidates = [
        (segment, number)
        for segment in v.own_segments()
        for number, line in enumerate(records(segment)[:-1])
        if number and b'"do":"content"' not in line
    ]
    if not candidates:
        raise Unfit
    segment, number = v.chance.choice(candidates)
    lines = records(segment)
    lines[number] = lines[number].replace(b'"', b"'", 1)
    write_records(segment, lines)
