"""The rows of a message that only its canonical file tells of."""

from __future__ import annotations

import calendar
import contextlib
import os
import sqlite3
import time
from typing import Any

import orjson

from adapter.maintenance.expected import tables
from adapter.maintenance.repair.index_state import State
from adapter.maintenance.scan import message_check
from adapter.maintenance.scan.rows import FILES_DIRECTORY, parquet_rows, part_directory
from adapter.store import disk, layout
from adapter.store.effects import AddContent, Attachment, MarkDamaged, Recipient, StagedFile
from protocol.errors import MailError


class Descriptions:
    """What the executors wrote down of messages that perhaps only their files tell of, by id."""

    def __init__(self, scratch: str) -> None:
        self._scratch = scratch
        self._list: sqlite3.Connection | None = None

    def close(self) -> None:
        if self._list is not None:
            self._list.close()

    def get(self, message_id: str) -> bytes | None:
        if self._list is None:  # not many repairs need them
            self._list = self._read()
        row = self._list.execute("SELECT meta FROM described WHERE id = ?", (message_id,)).fetchone()
        return row[0] if row else None

    def _read(self) -> sqlite3.Connection:
        found = tables.private(tables.create(f"{self._scratch}/described.sqlite"))
        found.execute("CREATE TABLE described (id TEXT PRIMARY KEY, meta BLOB) WITHOUT ROWID")
        found.execute("BEGIN")
        for row in parquet_rows(f"{self._scratch}/{part_directory(FILES_DIRECTORY, 'message')}", ["id", "meta"]):
            if row["meta"] is not None:
                found.execute("INSERT OR IGNORE INTO described VALUES (?, ?)", (row["id"], row["meta"]))
        found.execute("COMMIT")
        return found


def describe(state: State, message_id: str, meta: bytes | None) -> dict[str, Any] | None:
    """What a canonical file tells, and of a damaged one what is left of it. None if there is no such file.

    ``meta``: what an executor wrote down of it. ``damaged`` is the digest of the file if it is.
    """
    try:
        if meta is None:
            blobs = message_check.BlobFiles(state.directories)
            with state.directories.open(layout.message_directory(message_id)) as directory:
                file = disk.read_file(directory, layout.message_name(message_id))
            if message_check.check_message(file, message_id, blobs).problem:
                return (
                    None
                    if message_check.has_other_id(file, message_id)
                    else message_check.describe_damaged_message(file, blobs)
                )
            meta = message_check.describe_message(file, blobs)
        told: dict[str, Any] = orjson.loads(meta)
    except (OSError, ValueError, MailError):
        return None
    return {**told, "damaged": ""}


def damage_effects(message_id: str, told: dict[str, Any]) -> list[MarkDamaged]:
    """The mark of a message that was adopted with a damaged file."""
    return [MarkDamaged(message_id, "", told["damaged"])] if told["damaged"] else []


def is_unreadable(state: State, message_id: str) -> bool:
    """Whether there may be a canonical file that cannot be read now."""
    try:
        with state.directories.open(layout.message_directory(message_id)) as directory:
            disk.read_file(directory, layout.message_name(message_id))
    except OSError as error:
        return disk.is_unreadable(error)
    except ValueError:
        pass
    return False


def content_effect(state: State, message_id: str, told: dict[str, Any]) -> AddContent:
    """The rows of a message as its canonical file tells them. Parts that are not there are findings by themselves."""
    known = {
        address
        for address in {*told["to"], *told["cc"]}
        if state.connection.execute(
            "SELECT 1 FROM mailbox_registrations WHERE address = ? AND status <> 'purged'", (address.casefold(),)
        ).fetchone()
    }
    recipients = {address.casefold(): "cc" for address in told["cc"] if address in known}
    recipients |= {address.casefold(): "to" for address in told["to"] if address in known}
    attachments = [Attachment(*each) for each in told["attachments"]]
    for sha256 in told["parts"]:
        size = 0
        with contextlib.suppress(OSError), state.directories.open(layout.blob_directory(sha256)) as directory:
            size = os.stat(sha256, dir_fd=directory).st_size
        attachments.append(Attachment(sha256, "part", "", "", size))
    return AddContent(
        message_id,
        arrived=arrived(message_id),
        sender=told["from"],
        header_from=told["from"],
        subject=told["subject"],
        header_id=told["header_id"],
        thread=told["thread"] or message_id,
        size=told["size"],
        wire_sha256=told["wire"],
        file_sha256=told["file"],
        staged=StagedFile("", None),
        attachments=tuple(attachments),
        recipients=tuple(Recipient(address, kind) for address, kind in recipients.items()),
    )


def arrived(message_id: str) -> int:
    """When a message came, by its id; 0 if that names no day there ever was."""
    try:
        return calendar.timegm(time.strptime(message_id[4:20], "%Y%m%dT%H%M%SZ"))
    except ValueError:
        return 0
