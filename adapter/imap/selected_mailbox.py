"""The selected mailbox of one session: the client's view of it, and the folder it follows.

Changes are applied to the view as they come. While the session commits a ``.SILENT`` change they are held back until
it is known which of them is the session's own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from protocol.imap.session_view import Emission, FlagUpdate, FolderChange, Rows, View

if TYPE_CHECKING:
    from adapter.read_model.interface import MailboxReader, OpenFolder
    from protocol.imap.sequence_set import SequenceSet
    from protocol.imap.wire.lexer import Dialect

Result = TypeVar("Result")


class MailboxListener(Protocol):
    """The session that has selected the mailbox."""

    def mailbox_changed(self) -> None: ...

    def mailbox_deleted(self) -> None: ...


class SelectedMailbox:
    """A subscription to a folder, until it is closed."""

    __slots__ = ("_has_updates", "_held", "_listener", "_reader", "_subscription", "folder", "read_only", "view")

    def __init__(
        self,
        folder: OpenFolder,
        dialect: Dialect,
        listener: MailboxListener,
        reader: MailboxReader,
        *,
        read_only: bool,
    ) -> None:
        self.folder = folder
        self._reader = reader
        self.read_only = read_only
        self.view = View(folder.uids, folder.modseq, folder.flags, dialect, read_only=read_only)
        self._listener = listener
        self._held: list[FolderChange] | None = None  # while a silent change is committed
        self._has_updates = False  # the view may have something to announce
        self._subscription = folder.subscribe(self)
        self._claim_recent(folder.uids[-1] if folder.uids else 0)

    def close(self) -> None:
        self._subscription.close()

    # --- changes of the folder -------------------------------------------------------------------------------------

    def folder_changed(self, changes: Sequence[FolderChange]) -> None:
        if self._held is not None:
            self._held += changes
            return
        self._has_updates = True
        for change in changes:
            self.view.apply(change)
        self._listener.mailbox_changed()

    def folder_removed(self) -> None:
        """Handle the deletion of the folder. Its messages were reported as expunged before; later changes fail."""
        self._listener.mailbox_deleted()

    async def commit_silently(self, change: Awaitable[Result], modseq_of: Callable[[Result], int | None]) -> Result:
        """Commit a change of flags that is not announced. ``modseq_of``: of the result's change, if there was one."""
        self._held = []
        own: int | None = None
        try:
            result = await change
            own = modseq_of(result)
        finally:
            held, self._held = self._held, None
            self._has_updates = True
            for committed in held:
                self.view.apply(committed, FlagUpdate.SILENT if committed.modseq == own else FlagUpdate.FLAGS)
        return result

    # --- updates for the client ------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """There may be updates to announce."""
        return self._has_updates

    def touch(self, uids: Iterable[int]) -> None:
        """Announce these messages even if nothing has changed (RFC 3501 6.4.6)."""
        self._has_updates = True
        self.view.touch(uids)

    def flush(
        self, point: Emission, *, modseq_sent: bool = False, exists_first: bool = False, exists_overlooked: bool = False
    ) -> bytes:
        """Return the untagged responses that may be sent now; the options are those of ``View.flush``."""
        if not self._has_updates:
            return b""
        if self.view.last_new_uid:
            self._claim_recent(self.view.last_new_uid)
        updates = self.view.flush(
            point, self.folder, modseq_sent=modseq_sent, exists_first=exists_first, exists_overlooked=exists_overlooked
        )
        self._has_updates = self.view.pending
        return updates

    # RFC 3501 2.3.2; 6.3.2: EXAMINE leaves messages recent for the session that selects the mailbox next
    def _claim_recent(self, last: int) -> None:
        r"""Mark messages up to the UID ``last`` as ``\Recent`` here, unless another session has announced them."""
        if not last or self.view.dialect.rev2:
            return
        first = self._reader.first_recent(self.folder, last + 1, claim=not self.read_only)
        self.view.add_recent(first, last)

    # --- messages named by the client ------------------------------------------------------------------------------

    def rows(self, messages: SequenceSet, *, uid: bool) -> Rows:
        """Resolve a sequence set. Raises ProtocolError for a number that no message has."""
        return self.view.by_uid(messages) if uid else self.view.by_number(messages)
