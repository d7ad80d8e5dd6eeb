r"""``\Recent`` (RFC 3501 2.3.2): which session is told first of the messages of a folder.

The marks of the store decide, atomically, for the sessions of all workers. They are read and written on the event loop:
that takes microseconds, waits at most 50 milliseconds for another process, and happens only when there is new mail. If
the marks cannot be used nothing is recent, and everything else goes on.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING

from adapter.store.queries import recent_marks

if TYPE_CHECKING:
    from adapter.read_model.folder_cache import FolderState
    from adapter.transport.transport import Transport

_log = logging.getLogger(__name__)

_FOLDERS = "SELECT folder_id, uidvalidity, uidnext FROM folders"


class RecentMarks:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Blocks: not on the event loop."""
        try:
            self._connection = recent_marks.open_marks(self._transport.root, self._folders)
            recent_marks.prune(self._connection, self._folders())
        except (sqlite3.Error, OSError) as error:
            _log.warning("marks of recent messages cannot be opened (%s); nothing is recent", error)

    def _folders(self) -> list[recent_marks.Mark]:
        return [(folder, validity, uid) for folder, validity, uid in self._transport.index.query(_FOLDERS)]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def claim(self, state: FolderState, upto: int) -> int:
        """The first UID below ``upto`` that is recent to the caller, and to no other session from now on."""
        if state.announced >= upto:
            return upto
        first = self._ask(recent_marks.claim, state.id, state.uidvalidity, upto)
        state.announced = upto
        return first

    def peek(self, folder_id: int, uidvalidity: int, upto: int) -> int:
        """The first UID below ``upto`` that no session was told of as recent; ``upto`` if there is none."""
        return self._ask(recent_marks.peek, folder_id, uidvalidity, upto)

    def _ask(
        self, question: Callable[[sqlite3.Connection, int, int, int], int], folder_id: int, uidvalidity: int, upto: int
    ) -> int:
        if self._connection is None:
            return upto
        try:
            return question(self._connection, folder_id, uidvalidity, upto)
        except sqlite3.Error as error:
            _log.warning("marks of recent messages cannot be used: %s", error)
            return upto
