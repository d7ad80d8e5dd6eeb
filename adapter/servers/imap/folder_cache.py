"""Folders in memory: immutable columns, kept up to date by what was committed, shared by all sessions.

Invariants:

* a change is applied exactly once and in the order of commits, whichever way it is learned of first: mod-sequences of
  a folder have no gaps, so a change is new if it is the next one, known if it is not above the folder's, and one that
  comes too early waits for those before it;
* ``uids`` and the other columns are replaced, never modified: whoever holds one may go on using it;
* a listener hears of every change after it subscribed, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from protocol.imap.flag_table import FlagTable
from protocol.imap.view import FolderChange, Uids


class FolderListener(Protocol):
    """Who is told of changes: called on the loop, must not block and not raise. Applying them can wait."""

    def folder_changed(self, changes: Sequence[FolderChange]) -> None:
        """For ``View.apply``, in this order. Each flag change and expunge comes by itself, with its own ``modseq``
        (so a session knows its own by the result of the operation); ``uids`` are those after all of them."""

    def folder_removed(self) -> None:
        """The folder was deleted, or its account is no longer active: no state is left to talk about."""


@dataclass(frozen=True, slots=True)
class Columns:
    """One value per message, by ascending UID. All of it is immutable."""

    uids: Uids
    masks: Sequence[int]  # of FolderState.flags
    modseqs: Sequence[int]
    internal_dates: Sequence[int]  # seconds since 1970
    save_dates: Sequence[int]
    sizes: Sequence[int]


class Watch:
    """A subscription; as long as it is open the state is kept up to date."""

    def close(self) -> None:
        raise NotImplementedError


class FolderState:
    """A folder now. Also the ``FolderState`` of :mod:`protocol.imap.view`."""

    id: int
    uidvalidity: int
    uidnext: int
    modseq: int  # HIGHESTMODSEQ
    flags: FlagTable
    columns: Columns

    @property
    def uids(self) -> Uids:
        raise NotImplementedError

    @property
    def removed(self) -> bool:
        """Deleted meanwhile: reading it gives what was there last."""
        raise NotImplementedError

    def subscribe(self, listener: FolderListener) -> Watch:
        raise NotImplementedError

    def masks(self, uids: Sequence[int]) -> Sequence[int]:
        """Flags of messages that exist; those of one that is gone are 0."""
        raise NotImplementedError

    def modseqs(self, uids: Sequence[int]) -> Sequence[int]:
        raise NotImplementedError

    def first_unseen(self) -> int:
        """Message number of the first unseen message; 0 if there is none (RFC 3501 6.3.1)."""
        raise NotImplementedError

    def unseen(self) -> int:
        raise NotImplementedError

    def flagged_since(self, modseq: int) -> list[int]:
        """UIDs whose mod-sequence is above, ascending (RFC 7162 3.1.4.1, 3.2.5)."""
        raise NotImplementedError
