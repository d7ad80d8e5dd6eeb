"""Operations, and the plan that each makes under the locks.

An operation names the addresses it touches, and then, with the locks held, plans: it reads the index inside the open
transaction, decides UIDs and mod-sequences, and emits effects. Nothing else happens in a plan: the writer journals the
effects, changes the files and commits. A plan that raises leaves no trace.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Generic, TypeVar

from adapter.content.ingest import Ingested
from adapter.store import names
from adapter.store.disk import Directories
from adapter.store.effects import Effect
from adapter.store.queries import content_rows, folders, mailboxes
from adapter.store.queries.content_rows import CacheRow
from adapter.store.queries.mailboxes import Folder, Registration
from adapter.transport import apply, ids
from adapter.transport.staging import Staged
from protocol.errors import MailError, Reason

Result = TypeVar("Result")

MAX_UID = 0xFFFFFFFF


class Plan:
    """Collects the effects of one operation; each is visible to the queries that follow it."""

    def __init__(self, connection: sqlite3.Connection, directories: Directories, now: int) -> None:
        self.connection = connection
        self.directories = directories
        self.now = now
        self.effects: list[Effect] = []

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)  # first: an effect that fails half-way has changed the index too
        apply.apply_index(effect, self.connection, self.now)

    def cache(self, ingested: Ingested) -> None:
        """Keep what was computed at staging; no effect, since it can be computed again."""
        row = CacheRow(
            ingested.id,
            ingested.recipe.encode(),
            ingested.envelope,
            ingested.structure,
            ingested.outline,
            ingested.preview,
        )
        content_rows.cache(self.connection, row)

    @property
    def seconds(self) -> int:
        return self.now // 1_000_000

    def registration(self, address: str) -> Registration:
        return mailboxes.active_registration(self.connection, address)

    def folder(self, address: str, name: str) -> Folder:
        name = names.normalise_folder(name)
        folder = mailboxes.active_folder(self.connection, address, name)
        return folder or mailboxes.folder(self.connection, self.registration(address).id, name)

    def folder_by_id(self, address: str, folder_id: int) -> Folder:
        """A folder of this address. Folders of other addresses are refused: their locks are not held."""
        folder = mailboxes.folder_by_id(self.connection, folder_id)
        if folder is None or folder.registration != self.registration(address).id:
            raise MailError(Reason.NO_SUCH_FOLDER, ids.folder_label(folder_id))
        return folder

    def next_uidvalidity(self) -> int:
        """Greater than any assigned before, so that a folder that is created again has another one."""
        return max(self.seconds, folders.last_uidvalidity(self.connection) + 1)


class Operation(ABC, Generic[Result]):
    name: ClassVar[str]

    @abstractmethod
    def addresses(self) -> Iterable[str]:
        """Normalised addresses; the operation runs under their locks."""

    @abstractmethod
    def plan(self, plan: Plan) -> Result: ...

    def staged_content(self) -> Iterable[Staged]:
        """Staged content of the operation; released when it ends, committed or not."""
        return ()

    def committed(self, seq: int) -> None:
        """The operation is durable as this record; called before its future ends, on the writer's thread."""


AnyOperation = Operation[Any]
