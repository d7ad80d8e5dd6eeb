"""Index entries of a message that is known only from its canonical file."""

from __future__ import annotations

import calendar
import contextlib
import os
import sqlite3
import time

import msgspec

from adapter.maintenance.expected import tables
from adapter.maintenance.repair.target import RepairTarget
from adapter.maintenance.scan import message_check
from adapter.maintenance.scan.message_check import IndexEntries
from adapter.maintenance.scan.rows import FILES_DIRECTORY, parquet_rows, part_directory
from adapter.store import disk, layout
from adapter.store.effects import AddContent, Attachment, MarkDamaged, Recipient, StagedFile
from protocol.errors import MailError


class MessageDescriptions:
    """The index entries that executors extracted from canonical files, by message id."""

    def __init__(self, scratch: str) -> None:
        self._scratch = scratch
        self._list: sqlite3.Connection | None = None

    def close(self) -> None:
        if self._list is not None:
            self._list.close()

    def get(self, message_id: str) -> bytes | None:
        if self._list is None:  # few repairs need them
            self._list = self._read()
        row = self._list.execute("SELECT meta FROM described WHERE id = ?", (message_id,)).fetchone()
        return row[0] if row else None

    def _read(self) -> sqlite3.Connection:
        database = tables.private(tables.create(f"{self._scratch}/described.sqlite"))
        database.execute("CREATE TABLE described (id TEXT PRIMARY KEY, meta BLOB) WITHOUT ROWID")
        database.execute("BEGIN")
        for row in parquet_rows(f"{self._scratch}/{part_directory(FILES_DIRECTORY, 'message')}", ["id", "meta"]):
            if row["meta"] is not None:
                database.execute("INSERT OR IGNORE INTO described VALUES (?, ?)", (row["id"], row["meta"]))
        database.execute("COMMIT")
        return database


def describe(target: RepairTarget, message_id: str, meta: bytes | None) -> IndexEntries | None:
    """The index entries of a message from its canonical file, as far as readable; None if there is no such file.

    ``meta``: the encoded entries, if an executor extracted them.
    """
    if meta is not None:
        return msgspec.json.decode(meta, type=IndexEntries)
    try:
        blobs = message_check.BlobFiles(target.directories)
        with target.directories.open(layout.message_directory(message_id)) as directory:
            file = disk.read_file(directory, layout.message_name(message_id))
        if not message_check.check_message(file, message_id, blobs).problem:
            return message_check.describe_message(file, blobs)
        if message_check.has_other_id(file, message_id):
            return None
        return message_check.describe_damaged_message(file, blobs)
    except (OSError, ValueError, MailError):
        return None


def damage_effects(message_id: str, entries: IndexEntries) -> list[MarkDamaged]:
    """The effect that marks a message adopted with a damaged file."""
    return [MarkDamaged(message_id, "", entries.damaged)] if entries.damaged else []


def is_unreadable(target: RepairTarget, message_id: str) -> bool:
    """True if there may be a canonical file that cannot be read now."""
    try:
        with target.directories.open(layout.message_directory(message_id)) as directory:
            disk.read_file(directory, layout.message_name(message_id))
    except OSError as error:
        return disk.is_unreadable(error)
    except ValueError:
        pass
    return False


def content_effect(target: RepairTarget, message_id: str, entries: IndexEntries) -> AddContent:
    """The effect that indexes a message by the entries of its file. Missing parts are separate findings."""
    registered = {
        address
        for address in {*entries.to, *entries.cc}
        if target.connection.execute(
            "SELECT 1 FROM mailbox_registrations WHERE address = ? AND status <> 'purged'", (address.casefold(),)
        ).fetchone()
    }
    recipients = {address.casefold(): "cc" for address in entries.cc if address in registered}
    recipients |= {address.casefold(): "to" for address in entries.to if address in registered}
    attachments = [*entries.attachments]
    for sha256 in entries.parts:
        size = 0
        with contextlib.suppress(OSError), target.directories.open(layout.blob_directory(sha256)) as directory:
            size = os.stat(sha256, dir_fd=directory).st_size
        attachments.append(Attachment(sha256, "part", "", "", size))
    return AddContent(
        message_id,
        arrived=arrived(message_id),
        sender=entries.sender,
        header_from=entries.sender,
        subject=entries.subject,
        header_id=entries.header_id,
        thread=entries.thread or message_id,
        size=entries.size,
        wire_sha256=entries.wire_sha256,
        file_sha256=entries.file_sha256,
        staged=StagedFile("", None),
        attachments=tuple(attachments),
        recipients=tuple(Recipient(address, kind) for address, kind in recipients.items()),
    )


def arrived(message_id: str) -> int:
    """The arrival time in a message id; 0 if it is not a valid date."""
    try:
        return calendar.timegm(time.strptime(message_id[4:20], "%Y%m%dT%H%M%SZ"))
    except ValueError:
        return 0
