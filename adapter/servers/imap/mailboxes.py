"""What the IMAP edge knows of the store: one :class:`Mailboxes` per process, shared by all sessions.

    mailboxes = Mailboxes(transport, commits, CacheLimits())
    await mailboxes.start()                                     # on the loop all sessions run on

    account = await mailboxes.account("ada@example.test")       # folders and subscriptions, no query when warm
    state = await mailboxes.folder(account.folders["INBOX"].id) # columns of the folder, microseconds when warm
    watch = state.subscribe(session)                            # session.folder_changed(changes) / .folder_removed()
    done = await mailboxes.commit(op.ChangeFlags(…))            # the cache shows it when this returns
    async for chunk in mailboxes.fetch(state, rows, items, dialect).chunks(): write(chunk)
    uids = await mailboxes.search(state, program)
    watch.close()

Everything here belongs to the event loop's thread; what blocks is done on threads of its own. All methods that read
raise :class:`~protocol.errors.MailError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from adapter.servers.commits import Commits
from adapter.servers.imap.fetching import Fetch
from adapter.servers.imap.folder_cache import FolderState
from adapter.store.queries import Folder
from adapter.transport.operations.base import Operation
from adapter.transport.transport import Transport
from protocol.imap.fetch_items import FetchItem
from protocol.imap.lexer import Dialect
from protocol.imap.search_program import Program
from protocol.imap.sort import SortCriterion
from protocol.imap.thread import Forest
from protocol.imap.view import Rows

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Memory, in octets, that the caches of one process may use."""

    folders: int = 64 << 20  # columns and encoded pieces; folders that are selected keep their columns
    bodies: int = 32 << 20  # octets of small messages, read lately or ahead
    texts: int = 16 << 20  # folded texts that the text index does not have yet
    idle: float = 120.0  # seconds without use after which pieces, bodies and texts are let go


@dataclass(frozen=True, slots=True)
class Account:
    """The folders of an address that is registered now. A snapshot: ask again for each command."""

    address: str
    registration: str
    folders: Mapping[str, Folder]  # by name; identities are exact, counters are those of the time of loading
    subscriptions: frozenset[str]


class Mailboxes:
    def __init__(self, transport: Transport, commits: Commits, limits: CacheLimits | None = None) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Follow the change feed, begin to fill the text index. Call once, on the loop of all sessions."""
        raise NotImplementedError

    async def close(self) -> None:
        """Stop all of that. Sessions must be gone."""
        raise NotImplementedError

    # --- accounts --------------------------------------------------------------------------------------------------

    async def account(self, address: str) -> Account:
        """Folders and subscriptions of an active address. Raises ``NO_SUCH_ADDRESS`` or ``INACTIVE_ADDRESS``."""
        raise NotImplementedError

    async def status(self, address: str) -> Mapping[str, Folder]:
        """The same folders with exact counters, for STATUS and LIST-STATUS: one query after a change, else none."""
        raise NotImplementedError

    async def folder(self, folder_id: int) -> FolderState:
        """The state of a folder, loaded if it has to be. Raises ``NO_SUCH_FOLDER``.

        It is kept up to date while somebody subscribes to it: subscribe before the next ``await``.
        """
        raise NotImplementedError

    async def vanished(self, folder_id: int, modseq: int) -> list[str]:
        """UIDs expunged after a mod-sequence (RFC 7162 3.2.5), as sequence sets, oldest first."""
        raise NotImplementedError

    # --- changes ---------------------------------------------------------------------------------------------------

    async def commit(self, operation: Operation[Result]) -> Result:
        """Run an operation; when this returns, accounts and folders show it and listeners were told."""
        raise NotImplementedError

    async def commit_staged(self, prepare: Callable[[], Operation[Result]]) -> Result:
        """The same for the operation that ``prepare`` makes on a thread (APPEND: staging takes time)."""
        raise NotImplementedError

    # --- reading ---------------------------------------------------------------------------------------------------

    def fetch(self, state: FolderState, rows: Rows, items: Sequence[FetchItem], dialect: Dialect) -> Fetch:
        """The FETCH responses of these messages, see :class:`Fetch`."""
        raise NotImplementedError

    async def search(self, state: FolderState, program: Program) -> Sequence[int]:
        """UIDs that match, ascending; ``view.visible`` leaves out what the session does not know yet."""
        raise NotImplementedError

    async def sort(self, state: FolderState, criteria: Sequence[SortCriterion], uids: Sequence[int]) -> list[int]:
        """``uids`` (ascending, as a search gives them) in the order asked for (RFC 5256, RFC 5957)."""
        raise NotImplementedError

    async def thread(self, state: FolderState, algorithm: bytes, uids: Sequence[int], numbers: Sequence[int]) -> Forest:
        """The threads of ``uids`` by ``b"REFERENCES"`` or ``b"ORDEREDSUBJECT"``; the forest shows ``numbers``."""
        raise NotImplementedError
