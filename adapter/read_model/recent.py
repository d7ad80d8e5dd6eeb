r"""``\Recent`` (RFC 3501 2.3.2): messages that were not announced to any session before.

The marks of the store decide atomically for the sessions of all workers. They are read and written on the event loop:
that takes microseconds, waits at most 50 milliseconds for another process, and happens only when there is new mail. If
the marks are unusable no message is recent.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING

from adapter.store.queries import messages, recent_marks

if TYPE_CHECKING:
    from adapter.read_model.cached_folder import CachedFolder
    from adapter.transport.transport import Transport

_log = logging.getLogger(__name__)


class RecentMarks:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open the marks. Blocking."""
        try:
            self._connection = recent_marks.open_marks(self._transport.root, self._folders)
            recent_marks.prune(self._connection, self._folders())
        except (sqlite3.Error, OSError) as error:
            _log.warning("recent marks: open failed (%s); no message is recent", error)

    def _folders(self) -> list[recent_marks.Mark]:
        return self._transport.index.ask(messages.uid_marks)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def claim(self, folder: CachedFolder, before: int) -> int:
        """Return the first UID below ``before`` that is recent to the caller, and from now on to no other session."""
        if folder.announced_uid >= before:
            return before
        first = self._ask(recent_marks.claim, folder.id, folder.uidvalidity, before)
        folder.announced_uid = before
        return first

    def peek(self, folder_id: int, uidvalidity: int, before: int) -> int:
        """Return the first UID below ``before`` that was not announced; ``before`` if there is none."""
        return self._ask(recent_marks.peek, folder_id, uidvalidity, before)

    def _ask(
        self,
        question: Callable[[sqlite3.Connection, int, int, int], int],
        folder_id: int,
        uidvalidity: int,
        before: int,
    ) -> int:
        if self._connection is None:
            return before
        try:
            return question(self._connection, folder_id, uidvalidity, before)
        except sqlite3.Error as error:
            _log.warning("recent marks: not usable (%s); no message is recent", error)
            return before
