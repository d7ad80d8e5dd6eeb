"""Messages on their way into folders: the rows of many are changed together, then their links are made.

Whoever dies in between leaves rows without links, which the next look finds.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import structs

from adapter.maintenance.scan.message_rows import arrived
from adapter.store import disk, folder_identity, layout
from adapter.store.effects import Effect, Project, ProjectedRow
from adapter.store.flags import Flag
from adapter.store.queries import mailboxes
from adapter.store.queries.mailboxes import Folder
from adapter.transport.apply import folders
from adapter.transport.operations.base import MAX_UID

if TYPE_CHECKING:
    from adapter.maintenance.repair.folders import Mender

_TOGETHER = 1000  # messages of one record


@dataclass(slots=True)
class _Waiting:
    """What a folder is about to show: UID -> message, and the UID that its link has so far."""

    folder: Folder
    next_uid: int
    messages: dict[int, tuple[str, int]] = field(default_factory=dict)


class Placing:
    def __init__(self, mender: Mender) -> None:
        self._mender = mender
        self._contents: list[Effect] = []
        self._folders: dict[int, _Waiting] = {}
        self._size = 0

    def content(self, effect: Effect) -> None:
        """The rows of a message that is to be placed."""
        self._contents.append(effect)

    def project(self, folder: Folder, message_id: str, wanted: int) -> None:
        """Show a message in a folder, under ``wanted`` if that UID is free and was never given out."""
        place = self._folders.get(folder.id)
        if place is None:
            place = self._folders[folder.id] = _Waiting(folder, folder.uidnext)
        floor = self._mender.floor(folder)
        taken = wanted in place.messages or self._mender.query(
            "SELECT 1 FROM mailbox_projections WHERE folder_id = ? AND uid = ?", folder.id, wanted
        )
        known = floor <= wanted <= MAX_UID or self._mender.set_aside.item(folder.id, wanted, message_id) is not None
        above = max(place.next_uid, wanted + 1 if wanted < MAX_UID else 0)  # the name of a link may say more
        uid = wanted if known and not taken else above
        place.next_uid = max(place.next_uid, uid + 1)
        place.messages[uid] = message_id, wanted
        self._size += 1

    @property
    def is_full(self) -> bool:
        return self._size >= _TOGETHER

    def flush(self) -> None:
        """All that waits is in place afterwards."""
        changes = list(self._contents)
        for place in self._folders.values():
            changes += self._effects(place)
        self._mender.state.commit(changes)
        for place in self._folders.values():
            self._links(place)
        self._contents, self._folders, self._size = [], {}, 0

    def _effects(self, place: _Waiting) -> list[Effect]:
        connection = self._mender.state.connection
        folder = mailboxes.folder_by_id(connection, place.folder.id) or place.folder
        rows = [
            self._row(folder, uid, message_id, wanted) for uid, (message_id, wanted) in sorted(place.messages.items())
        ]
        return [*project(connection, folder, folder.highestmodseq + 1, rows)]

    def _row(self, folder: Folder, uid: int, message_id: str, wanted: int) -> ProjectedRow:
        known = self._mender.set_aside.item(folder.id, wanted, message_id)
        return structs.replace(known, uid=uid) if known else new_row(folder, uid, message_id)

    def _links(self, place: _Waiting) -> None:
        where = layout.folder_directory(place.folder.directory, place.folder.name)
        mark = folder_identity.mark(max(place.messages) + 1)
        if mark > folder_identity.mark(place.folder.uidnext):
            folders.raise_mark(self._mender.state.directories, where, place.folder.id, mark)
        with self._mender.state.directories.open(where) as directory:
            for uid, (message_id, wanted) in place.messages.items():
                name, old = layout.projection_name(uid, message_id), layout.projection_name(wanted, message_id)
                if disk.exists(directory, name):
                    continue
                if uid != wanted and disk.exists(directory, old):
                    disk.rename(directory, old, directory, name)
                else:
                    disk.symlink(directory, name, layout.projection_target(message_id))


def new_row(folder: Folder, uid: int, message_id: str) -> ProjectedRow:
    """A message of which nothing tells when it came to the folder and which flags it had."""
    at = arrived(message_id)
    flags = int(Flag.ARCHIVED) if folder.special_use == "\\Archive" else 0
    return ProjectedRow(uid, message_id, at, at, flags, "")


def project(connection: sqlite3.Connection, folder: Folder, modseq: int, rows: list[ProjectedRow]) -> list[Project]:
    """The effects that show messages, by ascending UID, in a folder; each has a mod-sequence of its own.

    An effect counts everything from its first UID to its last: no other message may lie between them.
    """
    between = "SELECT 1 FROM mailbox_projections WHERE folder_id = ? AND uid BETWEEN ? AND ? LIMIT 1"
    if connection.execute(between, (folder.id, rows[0].uid, rows[-1].uid)).fetchone():
        return [Project.into(folder, modseq + number, (row,)) for number, row in enumerate(rows)]
    return [Project.into(folder, modseq, tuple(rows))]
