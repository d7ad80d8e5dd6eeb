"""Effects: the primitive changes that every operation on the store is made of.

An effect is a value. It says completely what changes, and needs nothing but the state that the records before it led
to. :mod:`adapter.transport.apply` carries effects out; recovery, replay, the change feed and the caches match on their
types. In the journal an effect is a JSON object: ``do`` names its kind, the other keys are the fields below. The items
of an effect are written as arrays (``array_like``), since one effect may carry thousands of them.

Every kind needs a case wherever effects are matched: mypy names the places that lack one (``assert_never``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from adapter.store import folder_identity
from adapter.store.flags import format_uids
from adapter.store.queries.mailboxes import Folder

FlagChange = Literal["add", "remove", "set"]
#: The result of a row that left the outbox.
Ending = Literal["relayed", "failed", "dropped"]

OPERATOR: Final = "operator"


class Actor(Struct, frozen=True, gc=False):
    """The cause of a record, for the audit trail. Applying a record does not depend on it.

    ``account`` is the authenticated address, or ``operator`` for a command of the operator. It is empty where there is
    neither: for a peer that delivers mail and for jobs of the server. ``via`` names the protocol (``imap``), the job
    (``retention``) or the command (``markpost repair``).
    """

    account: str
    via: str


class Octets:
    """Octets in a record; base64 in the journal. The journal's coder is faster than msgspec's for ``bytes``."""

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Octets) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"Octets({self.raw!r})"


# --- items of effects ------------------------------------------------------------------------------------------------


class StagedFile(Struct, frozen=True, array_like=True, gc=False):
    """The name of a canonical file in staging; None for a file that was never staged."""

    session: str
    name: str | None


class Blob(Struct, frozen=True, array_like=True):
    """A part of a message. ``data``: None for one too large for the journal; ``staged``: None for one in the store."""

    sha256: str
    size: int
    data: Octets | None
    staged: str | None


class Attachment(Struct, frozen=True, array_like=True, gc=False):
    """``kind`` is ``attachment``, or ``part`` for a blob that is not offered as one; that has neither name nor type."""

    sha256: str
    kind: str
    name: str
    type: str
    size: int


class Recipient(Struct, frozen=True, array_like=True, gc=False):
    address: str
    kind: str  # to, cc, bcc


class ProjectedRow(Struct, frozen=True, array_like=True, gc=False):
    uid: int
    message_id: str
    internal_date: int  # seconds
    saved_at: int  # seconds
    flags: int
    keywords: str


class UnprojectedRow(Struct, frozen=True, array_like=True, gc=False):
    uid: int
    message_id: str


class LostPlace(Struct, frozen=True, array_like=True, gc=False):
    """The folder, UID and state of a message when its content was lost."""

    folder: int
    uid: int
    internal_date: int  # seconds
    saved_at: int  # seconds
    flags: int
    keywords: str


class QueuedRow(Struct, frozen=True, array_like=True, gc=False):
    queue_id: str
    recipient: str
    notify: str | None  # RFC 3461 4.1, as it is passed on
    orcpt: str | None  # RFC 3461 4.2, encoded as it is passed on


class RequeuedRow(Struct, frozen=True, array_like=True, gc=False):
    queue_id: str
    attempts: int
    next_attempt_at: int  # seconds
    last_status: str
    delay_warned: bool


class DequeuedRow(Struct, frozen=True, array_like=True, gc=False):
    queue_id: str
    message_id: str
    recipient: str
    ending: Ending
    status: str  # of the last reply


class Bookmark(Struct, frozen=True, array_like=True, gc=False):
    item: str
    value: str | None  # None: removed


class DsnRecipient(Struct, frozen=True, array_like=True, gc=False):
    address: str
    notify: str | None  # RFC 3461 4.1
    orcpt: str | None  # RFC 3461 4.2


# --- effects ---------------------------------------------------------------------------------------------------------


class _Effect(Struct, frozen=True, tag_field="do", omit_defaults=True):
    pass


class AddContent(_Effect, frozen=True, tag="content"):
    """A canonical file, the blobs it names, and the rows of the message."""

    message_id: str
    arrived: int  # seconds
    sender: str  # of the envelope
    header_from: str
    subject: str
    header_id: str
    thread: str
    size: int
    wire_sha256: str
    file_sha256: str
    staged: StagedFile
    file: str | None = None  # the canonical file; None: too large for the journal, or not from staging
    blobs: tuple[Blob, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    recipients: tuple[Recipient, ...] = ()


class DropContent(_Effect, frozen=True, tag="drop"):
    """Remove the content of messages that no folder shows, and the blobs that only they need."""

    message_ids: tuple[str, ...]
    blobs: tuple[str, ...]


class Project(_Effect, frozen=True, tag="project"):
    """Show messages in a folder. ``rows`` by ascending UID, without other messages between the first and the last."""

    folder: int
    registration: str
    directory: str  # of the mailbox
    name: str
    modseq: int
    rows: tuple[ProjectedRow, ...]
    uids_below: int | None = None  # the folder's new high-water mark, where the rows reach it

    @classmethod
    def into(cls, folder: Folder, modseq: int, rows: tuple[ProjectedRow, ...]) -> Project:
        mark = folder_identity.mark(rows[-1].uid + 1)
        raised = mark if mark > folder_identity.mark(folder.uidnext) else None
        return cls(folder.id, folder.registration, folder.directory, folder.name, modseq, rows, raised)


class Unproject(_Effect, frozen=True, tag="unproject"):
    """Remove messages from a folder; ``rows`` by ascending UID."""

    folder: int
    registration: str
    directory: str
    name: str
    modseq: int
    rows: tuple[UnprojectedRow, ...]

    @classmethod
    def out_of(cls, folder: Folder, modseq: int, rows: tuple[UnprojectedRow, ...]) -> Unproject:
        return cls(folder.id, folder.registration, folder.directory, folder.name, modseq, rows)


class SetFlags(_Effect, frozen=True, tag="flags"):
    """Change flags and keywords of the messages ``uids`` (written by :func:`~adapter.store.flags.format_uids`)."""

    folder: int
    registration: str
    modseq: int
    uids: str
    how: FlagChange
    flags: int
    keywords: tuple[str, ...]  # in the order given: of two spellings of one keyword the order decides

    @classmethod
    def on(
        cls, folder: Folder, modseq: int, uids: Sequence[int], how: FlagChange, flags: int, keywords: Iterable[str]
    ) -> SetFlags:
        """``uids`` ascend and are exactly those that change."""
        return cls(folder.id, folder.registration, modseq, format_uids(uids), how, flags, tuple(keywords))


class CreateFolder(_Effect, frozen=True, tag="folder"):
    folder: int
    registration: str
    directory: str
    name: str
    special_use: str
    uidvalidity: int

    @classmethod
    def of(cls, folder: Folder) -> CreateFolder:
        return cls(
            folder.id, folder.registration, folder.directory, folder.name, folder.special_use, folder.uidvalidity
        )


class RenameFolder(_Effect, frozen=True, tag="rename-folder"):
    folder: int
    registration: str
    directory: str
    name: str
    new_name: str

    @classmethod
    def of(cls, folder: Folder, new_name: str) -> RenameFolder:
        return cls(folder.id, folder.registration, folder.directory, folder.name, new_name)


class RemoveFolder(_Effect, frozen=True, tag="remove-folder"):
    """Remove an empty folder; its messages are removed before, in the same record."""

    folder: int
    registration: str
    directory: str
    name: str

    @classmethod
    def of(cls, folder: Folder) -> RemoveFolder:
        return cls(folder.id, folder.registration, folder.directory, folder.name)


class Subscribe(_Effect, frozen=True, tag="subscribe"):
    """Subscribe to a folder, which need not exist; ``on`` False: unsubscribe."""

    registration: str
    name: str
    on: bool


class RaiseUidFloor(_Effect, frozen=True, tag="uid-floor"):
    """Repair: UIDs below ``uidnext`` may have been assigned; with ``uidvalidity``, those of another numbering."""

    folder: int
    uidnext: int
    uidvalidity: int | None = None


class SetRegistration(_Effect, frozen=True, tag="registration"):
    """``moved_from`` is the directory of the mailbox until now, where the change moves it (stash and back)."""

    registration: str
    address: str
    status: str  # active, inactive, stashed, purged
    directory: str
    moved_from: str | None = None


class Enqueue(_Effect, frozen=True, tag="enqueue"):
    """Put recipients at other hosts into the outbox. ``ret``, ``envid``, ``body``: as SMTP passes them on."""

    message_id: str
    sender: str
    return_to: str
    ret: str | None
    envid: str | None
    body: str
    smtputf8: bool
    requiretls: bool
    created_at: int  # seconds
    expires_at: int  # seconds
    rows: tuple[QueuedRow, ...]


class Requeue(_Effect, frozen=True, tag="queue-update"):
    """Set when rows of the outbox are tried next."""

    rows: tuple[RequeuedRow, ...]


class Dequeue(_Effect, frozen=True, tag="dequeue"):
    """Remove rows of the outbox; the journal keeps the result of each."""

    rows: tuple[DequeuedRow, ...]


class SetBookmarks(_Effect, frozen=True, tag="bookmark"):
    """Set or remove what a follower of the store, or a source of mail, has to remember.

    A bookmark about a message is set in the record that brings the message: neither exists without the other.
    """

    owner: str
    bookmarks: tuple[Bookmark, ...]


class RequestDsn(_Effect, frozen=True, tag="dsn-request"):
    """Keep with the message what the sender asked of its delivery (RFC 3461); ``recipients`` differ in address."""

    message_id: str
    ret: str | None
    envid: str | None
    recipients: tuple[DsnRecipient, ...]


class MarkDamaged(_Effect, frozen=True, tag="damage"):
    """A lost blob (``part``: its SHA-256), or a damaged canonical file (``part`` empty; ``observed``: its SHA-256)."""

    message_id: str
    part: str
    observed: str = ""


class ClearDamage(_Effect, frozen=True, tag="heal"):
    """These parts are as they should be again."""

    message_id: str
    parts: tuple[str, ...]


class MarkLost(_Effect, frozen=True, tag="lose"):
    """Nothing of the message is left; its blobs stay in case it comes back. It leaves ``places`` in the same record."""

    message_id: str
    places: tuple[LostPlace, ...]


class RestoreLost(_Effect, frozen=True, tag="return"):
    """The canonical file of a lost message exists again."""

    message_id: str
    file_sha256: str


Effect: TypeAlias = (
    AddContent
    | DropContent
    | Project
    | Unproject
    | SetFlags
    | CreateFolder
    | RenameFolder
    | RemoveFolder
    | Subscribe
    | RaiseUidFloor
    | SetRegistration
    | Enqueue
    | Requeue
    | Dequeue
    | SetBookmarks
    | RequestDsn
    | MarkDamaged
    | ClearDamage
    | MarkLost
    | RestoreLost
)
