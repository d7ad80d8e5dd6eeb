"""The selected mailbox of one session: its view, and the state it looks at.

Changes are given to the view as they come, but for those the session makes itself and does not want to hear of
(``.SILENT``): while it commits, they wait until it is known which of them is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from adapter.transport.operations.base import Operation
from protocol.imap.session_view import Emission, FolderChange, Report, Rows, View

if TYPE_CHECKING:
    from adapter.read_model.folder_cache import FolderState
    from adapter.read_model.mailboxes import Mailboxes
    from adapter.read_model.recent import RecentMarks
    from protocol.imap.sequence_set import SequenceSet
    from protocol.imap.wire.lexer import Dialect

Result = TypeVar("Result")


class MailboxListener(Protocol):
    """The session that has selected the mailbox."""

    def changed(self) -> None: ...

    def mailbox_deleted(self) -> None: ...


class Selected:
    """Listens to its folder until it is closed."""

    __slots__ = ("_held", "_listener", "_news", "_recent", "_watch", "read_only", "state", "view")

    def __init__(
        self,
        state: FolderState,
        dialect: Dialect,
        listener: MailboxListener,
        recent: RecentMarks,
        *,
        read_only: bool,
    ) -> None:
        self.state = state
        self._recent = recent
        self.read_only = read_only
        self.view = View(state.uids, state.modseq, state.flags, dialect, read_only=read_only)
        self._listener = listener
        self._held: list[FolderChange] | None = None
        self._news = False  # there may be something to tell
        self._watch = state.subscribe(self)
        self._take_recent(state.uids[-1] if state.uids else 0)

    def close(self) -> None:
        self._watch.close()

    # --- what happens ----------------------------------------------------------------------------------------------

    def folder_changed(self, changes: Sequence[FolderChange]) -> None:
        if self._held is not None:
            self._held += changes
            return
        self._news = True
        for change in changes:
            self.view.apply(change)
        self._listener.changed()

    def folder_removed(self) -> None:
        """All its messages were reported as expunged; what is done to it from now on fails."""
        self._listener.mailbox_deleted()

    async def commit_silently(
        self, mailboxes: Mailboxes, operation: Operation[Result], modseq_of: Callable[[Result], int | None]
    ) -> Result:
        """Commit a change whose flags the client knows already. ``modseq_of``: of the change, if there was one."""
        self._held = []
        own: int | None = None
        try:
            result = await mailboxes.commit(operation)
            own = modseq_of(result)
        finally:
            held, self._held = self._held, None
            self._news = True
            for change in held:
                self.view.apply(change, Report.SILENT if change.modseq == own else Report.FLAGS)
        return result

    # --- what the client is told -----------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        return self._news

    def touch(self, uids: Iterable[int]) -> None:
        """Report these messages though nothing may have changed (RFC 3501 6.4.6)."""
        self._news = True
        self.view.touch(uids)

    def flush(
        self, point: Emission, *, modseq_sent: bool = False, exists_first: bool = False, buried: bool = False
    ) -> bytes:
        if not self._news:
            return b""
        if self.view.arrived:
            self._take_recent(self.view.arrived)
        told = self.view.flush(point, self.state, modseq_sent=modseq_sent, exists_first=exists_first, buried=buried)
        self._news = self.view.pending
        return told

    # RFC 3501 2.3.2; 6.3.2: EXAMINE leaves messages recent for the session that selects the mailbox next
    def _take_recent(self, last: int) -> None:
        """Up to the UID ``last``: what no other session was told of is recent to this one."""
        if not last or self.view.dialect.rev2:
            return
        if self.read_only:
            first = self._recent.peek(self.state.id, self.state.uidvalidity, last + 1)
        else:
            first = self._recent.claim(self.state, last + 1)
        self.view.add_recent(first, last)

    # --- what the client means -------------------------------------------------------------------------------------

    def rows(self, messages: SequenceSet, *, uid: bool) -> Rows:
        """Raises ProtocolError for a number that no message has."""
        return self.view.by_uid(messages) if uid else self.view.by_number(messages)
