"""Place messages in folders: the rows of many messages in one commit, then their links.

A crash in between leaves rows without links, which the next inspection finds.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import structs

from adapter.maintenance.repair.message_rows import arrived
from adapter.store import disk, folder_identity, layout
from adapter.store.effects import Effect, Project, ProjectedRow
from adapter.store.flags import Flag
from adapter.store.queries import mailboxes
from adapter.store.queries.mailboxes import Folder
from adapter.transport.apply import folders
from adapter.transport.operations.base import MAX_UID

if TYPE_CHECKING:
    from adapter.maintenance.repair.folders import FolderRepair

_BATCH_MESSAGES = 1000  # of one record


@dataclass(slots=True)
class _FolderBatch:
    """The messages to be placed in a folder: new UID -> message, and the UID of its present link."""

    folder: Folder
    next_uid: int
    messages: dict[int, tuple[str, int]] = field(default_factory=dict)


class LinkPlacement:
    """Batches messages to be placed in folders. UIDs that were never assigned are kept; others get a new UID."""

    def __init__(self, repair: FolderRepair) -> None:
        self._repair = repair
        self._contents: list[Effect] = []
        self._folders: dict[int, _FolderBatch] = {}
        self._size = 0

    def content(self, effect: Effect) -> None:
        """Add the rows of a message that will be placed."""
        self._contents.append(effect)

    def project(self, folder: Folder, message_id: str, link_uid: int) -> None:
        """Show a message in a folder, under the UID of its link if that is free and was never assigned."""
        batch = self._folders.get(folder.id)
        if batch is None:
            batch = self._folders[folder.id] = _FolderBatch(folder, folder.uidnext)
        floor = self._repair.floor(folder)
        is_taken = link_uid in batch.messages or self._repair.query(
            "SELECT 1 FROM mailbox_projections WHERE folder_id = ? AND uid = ?", folder.id, link_uid
        )
        is_valid = floor <= link_uid <= MAX_UID or self._is_set_aside(folder.id, link_uid, message_id)
        above = max(batch.next_uid, link_uid + 1 if link_uid < MAX_UID else 0)  # links may be beyond UIDNEXT
        uid = link_uid if is_valid and not is_taken else above
        batch.next_uid = max(batch.next_uid, uid + 1)
        batch.messages[uid] = message_id, link_uid
        self._size += 1

    def _is_set_aside(self, folder_id: int, uid: int, message_id: str) -> bool:
        return self._repair.set_aside.item(folder_id, uid, message_id) is not None

    @property
    def is_full(self) -> bool:
        return self._size >= _BATCH_MESSAGES

    def flush(self) -> None:
        """Commit the rows of the batch, then create its links."""
        changes = list(self._contents)
        for batch in self._folders.values():
            changes += self._effects(batch)
        self._repair.target.commit(changes)
        for batch in self._folders.values():
            self._links(batch)
        self._contents, self._folders, self._size = [], {}, 0

    def _effects(self, batch: _FolderBatch) -> list[Effect]:
        connection = self._repair.target.connection
        folder = mailboxes.folder_by_id(connection, batch.folder.id) or batch.folder
        rows = [
            self._row(folder, uid, message_id, link_uid)
            for uid, (message_id, link_uid) in sorted(batch.messages.items())
        ]
        return [*project(connection, folder, folder.highestmodseq + 1, rows)]

    def _row(self, folder: Folder, uid: int, message_id: str, link_uid: int) -> ProjectedRow:
        row = self._repair.set_aside.item(folder.id, link_uid, message_id)
        return structs.replace(row, uid=uid) if row else new_row(folder, uid, message_id)

    def _links(self, batch: _FolderBatch) -> None:
        where = layout.folder_directory(batch.folder.directory, batch.folder.name)
        mark = folder_identity.mark(max(batch.messages) + 1)
        if mark > folder_identity.mark(batch.folder.uidnext):
            folders.raise_mark(self._repair.target.directories, where, batch.folder.id, mark)
        with self._repair.target.directories.open(where) as directory:
            for uid, (message_id, link_uid) in batch.messages.items():
                name, old = layout.projection_name(uid, message_id), layout.projection_name(link_uid, message_id)
                if disk.exists(directory, name):
                    continue
                if uid != link_uid and disk.exists(directory, old):
                    disk.rename(directory, old, directory, name)
                else:
                    disk.symlink(directory, name, layout.projection_target(message_id))


def new_row(folder: Folder, uid: int, message_id: str) -> ProjectedRow:
    """A row for a message with unknown date and flags: its arrival date, and default flags."""
    at = arrived(message_id)
    flags = int(Flag.ARCHIVED) if folder.special_use == "\\Archive" else 0
    return ProjectedRow(uid, message_id, at, at, flags, "")


def project(connection: sqlite3.Connection, folder: Folder, modseq: int, rows: list[ProjectedRow]) -> list[Project]:
    """The effects that show messages, by ascending UID, in a folder; each has a mod-sequence of its own.

    An effect covers the range from its first to its last UID, which must not contain any other message.
    """
    between = "SELECT 1 FROM mailbox_projections WHERE folder_id = ? AND uid BETWEEN ? AND ? LIMIT 1"
    if connection.execute(between, (folder.id, rows[0].uid, rows[-1].uid)).fetchone():
        return [Project.into(folder, modseq + number, (row,)) for number, row in enumerate(rows)]
    return [Project.into(folder, modseq, tuple(rows))]
