"""Delivery (one message, many recipients) and append (messages put into a folder by its owner)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from adapter.store import disk, layout, names
from adapter.store.effects import Project, ProjectedRow, Recipient, SetFlags
from adapter.store.flags import SETTABLE, Flag, change_keywords, join_keywords
from adapter.store.queries import content_rows, mailboxes
from adapter.store.queries.mailboxes import Folder
from adapter.store.quotas import Quota
from adapter.transport import ids
from adapter.transport.operations.base import MAX_UID, Operation, Plan
from adapter.transport.operations.envelopes import DsnRequests, RelayEnvelope, RelayRecipient
from adapter.transport.operations.messages import remove_messages
from adapter.transport.staging import Staged
from protocol.errors import MailError, Reason
from protocol.smtp.paths import parse_path

_SENT_NAME = "Sent"
_, _SENT_USE = names.STANDARD_FOLDERS[_SENT_NAME]
_NOTIFY = frozenset({"SUCCESS", "FAILURE", "DELAY"})
_PARAMETER = re.compile(r"[A-Za-z0-9-]+;[!-~]+")


@dataclass(frozen=True, slots=True)
class Placed:
    """The folder and UID that a message got."""

    address: str
    folder: int
    folder_name: str
    uidvalidity: int
    uid: int
    modseq: int


@dataclass(frozen=True, slots=True)
class Twin:
    """A stored copy of the message that is about to be placed; it ``yields`` if the new one has more fields."""

    uid: int
    yields: bool


#: Searches a folder for a copy of the message that the operation places, inside its plan.
FindTwin = Callable[[Plan, Folder], Twin | None]


@dataclass(frozen=True, slots=True)
class Delivery:
    """The outcome for each recipient; ``sent`` is the sender's own projection, if the sender lives here."""

    message_id: str
    recipients: Mapping[str, Placed | MailError]
    sent: Placed | None
    queued: Mapping[str, str] = field(default_factory=dict)  # remote recipient -> queue id


@dataclass(frozen=True, slots=True)
class Deliver(Operation[Delivery]):
    """Deliver a staged message. Recipients that fail do not keep the others from getting it."""

    name = "deliver"
    staged: Staged
    sender: str  # envelope sender as given; "" is the null sender
    recipients: Sequence[str]  # normalised addresses, or (through ``folders``) other folders than INBOX
    folders: Mapping[str, str] = field(default_factory=dict)
    keep_sent: bool = False  # the sender is local and authenticated: project into its Sent folder
    account: str = ""  # owner of that Sent folder, if the sender is an alias of the account
    relay: Sequence[RelayRecipient] = ()  # recipients elsewhere: queued in the same commit
    envelope: RelayEnvelope | None = None  # for those
    quotas: Mapping[str, Quota] = field(default_factory=dict)  # of addresses that have one
    lenient: Collection[str] = ()  # addresses that may exceed their quota by one message
    requests: DsnRequests | None = None  # the sender's requests for reports on local recipients
    find_twin: FindTwin | None = None  # searches Sent for the copy that the mail client put there first

    def addresses(self) -> Iterable[str]:
        return {*self.recipients, self._owner} if self.keep_sent else set(self.recipients)

    def staged_content(self) -> Iterable[Staged]:
        return (self.staged,)

    @property
    def _owner(self) -> str:
        return self.account or self.sender

    def plan(self, plan: Plan) -> Delivery:
        outcome: dict[str, Placed | MailError] = {}
        folders: dict[str, Folder] = {}
        for address in self.recipients:
            try:
                folder = self._folder(plan, address)
                self._check_room(plan, address, folder)
                folders[address] = folder
            except MailError as error:
                outcome[address] = error
        if self.relay:
            check_relay(self.sender, self.relay)
        elsewhere = {item.address: item for item in self.relay}
        if not folders and not elsewhere:
            return Delivery(self.staged.content.id, outcome, None)  # nothing was sent
        sent_folder = self._sent_folder(plan) if self.keep_sent else None
        twin = self.find_twin(plan, sent_folder) if self.find_twin and sent_folder else None
        if twin is None and self._owner in self.quotas:
            self._check_room(plan, self._owner, sent_folder)
        emit_content(plan, self.staged, self.sender, self._history({**folders, **elsewhere}))
        for address, folder in folders.items():
            outcome[address] = place(plan, address, folder, self.staged, 0, "")
        if self.requests is not None:
            self._keep_requests(plan, self.requests, folders)
        sent = None
        if sent_folder is not None:
            sent_folder = plan.folder_by_id(self._owner, sent_folder.id)  # read again: it may have just got a message
            sent = place_once(plan, self._owner, sent_folder, AppendItem(self.staged, int(Flag.READ)), twin)
        queued = {address: ids.queue_id(plan.now) for address in elsewhere}
        if elsewhere:
            items = [(queued[address], item) for address, item in elsewhere.items()]
            envelope = self.envelope or RelayEnvelope()
            plan.emit(envelope.enqueue(self.staged.content.id, self.sender, items, plan.seconds))
        return Delivery(self.staged.content.id, outcome, sent, queued)

    def _folder(self, plan: Plan, address: str) -> Folder:
        name = self.folders.get(address, names.INBOX)
        try:
            return plan.folder(address, name)
        except MailError as error:
            if name == names.INBOX or error.reason is not Reason.NO_SUCH_FOLDER:
                raise
        return plan.folder(address, names.INBOX)

    def _check_room(self, plan: Plan, address: str, folder: Folder | None) -> None:
        """With the lock held: deliveries at the same time cannot overshoot together."""
        quota = self.quotas.get(address)
        if quota is not None and folder is not None:
            size = 1 if address in self.lenient else self.staged.content.size
            if not quota.has_room(mailboxes.folders(plan.connection, folder.registration), size):
                raise MailError(quota.reason, address)

    def _sent_folder(self, plan: Plan) -> Folder | None:
        """By its use, since its owner may have renamed it, or by its name; None if the owner wants none."""
        own = mailboxes.folders(plan.connection, plan.registration(self._owner).id)
        by_use = (folder for folder in own if folder.special_use == _SENT_USE)
        by_name = (folder for folder in own if folder.name == _SENT_NAME)
        return next(by_use, None) or next(by_name, None)

    def _keep_requests(self, plan: Plan, requests: DsnRequests, delivered: Collection[str]) -> None:
        """Keep the requests for accepted recipients; refused ones are repeated by the client."""
        kept = [each for each in requests.recipients if any(mailbox in delivered for mailbox in each.mailboxes)]
        if kept:
            plan.emit(requests.effect(self.staged.content.id, kept))

    def _history(self, folders: Iterable[str]) -> tuple[Recipient, ...]:
        named = {address.casefold(): kind for kind, address in reversed(self.staged.content.recipients)}
        return tuple(Recipient(address, named.get(address.casefold(), "bcc")) for address in folders)


@dataclass(frozen=True, slots=True)
class AppendItem:
    staged: Staged
    flags: int = 0
    keywords: Sequence[str] = ()
    internal_date: int | None = None  # seconds; None: now


@dataclass(frozen=True, slots=True)
class Append(Operation[list[Placed]]):
    """Put messages into a folder, all or none. ``replaces`` are UIDs of a folder that go in the same commit."""

    name = "append"
    address: str
    folder: str
    items: Sequence[AppendItem]
    replaces: tuple[int, Sequence[int]] | None = None
    quota: Quota | None = None
    find_twin: FindTwin | None = None  # for a single message: searches for the copy that submission put there first

    def addresses(self) -> Iterable[str]:
        return (self.address,)

    def staged_content(self) -> Iterable[Staged]:
        return [item.staged for item in self.items]

    def plan(self, plan: Plan) -> list[Placed]:
        placed = []
        twin = self.find_twin(plan, plan.folder(self.address, self.folder)) if self.find_twin else None
        if self.quota is not None:
            self._check_room(plan, self.quota, twin)
        for item in self.items:
            folder = plan.folder(self.address, self.folder)
            if twin is None or twin.yields:
                emit_content(plan, item.staged, "", ())
            placed.append(place_once(plan, self.address, folder, item, twin))
        if self.replaces is not None:
            remove_messages(plan, plan.folder_by_id(self.address, self.replaces[0]), self.replaces[1])
        return placed

    def _check_room(self, plan: Plan, quota: Quota, twin: Twin | None) -> None:
        """With the lock held; what goes makes room for what comes (RFC 8508 3.4)."""
        if twin is not None and not twin.yields:
            return
        going = mailboxes.rows_of(plan.connection, *self.replaces) if self.replaces is not None else []
        if twin is not None:
            going += mailboxes.rows_of(plan.connection, plan.folder(self.address, self.folder).id, [twin.uid])
        size = sum(item.staged.content.size for item in self.items) - sum(row.size for row in going)
        own = mailboxes.folders(plan.connection, plan.registration(self.address).id)
        quota.check(own, size, len(self.items) - len(going))


def check_relay(sender: str, recipients: Sequence[RelayRecipient]) -> None:
    """These values go into SMTP commands: each must be one path, or one parameter. Raises ``BAD_ADDRESS``."""
    for item in recipients:
        if not (item.orcpt is None or _PARAMETER.fullmatch(item.orcpt)) or not _NOTIFY.issuperset(item.notify or ()):
            raise MailError(Reason.BAD_ADDRESS, f"not parameters that can be passed on: {item!r}")
    for address in (*([sender] if sender else []), *(item.address for item in recipients)):
        parsed = parse_path(f"<{address}>")
        if parsed is None or parsed[1] or not parsed[0].domain or address.startswith("@"):
            raise MailError(Reason.BAD_ADDRESS, f"not an address that mail can be passed on for: {address!r}")


def emit_content(plan: Plan, staged: Staged, sender: str, recipients: tuple[Recipient, ...]) -> None:
    for blob in staged.blobs:
        if blob.name is None:
            with plan.directories.stable(layout.blob_directory(blob.sha256), create=True) as directory:
                # The index as well: a collection planned before in this batch has yet to remove the file.
                there = disk.is_file(directory, blob.sha256, blob.size)
                if not (there and content_rows.has_blob(plan.connection, blob.sha256)):
                    raise MailError(Reason.UNKNOWN, f"blob {blob.sha256} was collected while the message was staged")
    plan.emit(staged.effect(sender, recipients))
    plan.cache(staged.content)


def place_once(plan: Plan, address: str, folder: Folder, item: AppendItem, twin: Twin | None) -> Placed:
    """Place a message with emitted content, unless its twin stays; a twin that yields is removed.

    Flags and keywords of both are kept.
    """
    flags, keywords = item.flags & SETTABLE, join_keywords(item.keywords)
    if twin is None:
        return place(plan, address, folder, item.staged, flags, keywords, item.internal_date)
    (row,) = mailboxes.rows_of(plan.connection, folder.id, [twin.uid])
    if twin.yields:
        date = row.internal_date if item.internal_date is None else item.internal_date
        words = join_keywords([*item.keywords, *row.keywords.split()])
        placed = place(plan, address, folder, item.staged, flags | row.flags & SETTABLE, words, date)
        remove_messages(plan, plan.folder_by_id(address, folder.id), [twin.uid])
        return placed
    modseq = folder.highestmodseq
    if flags & ~row.flags or change_keywords(row.keywords, "add", item.keywords) != row.keywords:
        modseq += 1
        plan.emit(SetFlags.on(folder, modseq, [twin.uid], "add", flags, item.keywords))
    return Placed(address, folder.id, folder.name, folder.uidvalidity, twin.uid, modseq)


def place(
    plan: Plan,
    address: str,
    folder: Folder,
    staged: Staged,
    flags: int,
    keywords: str,
    internal_date: int | None = None,
) -> Placed:
    uid, modseq = folder.uidnext, folder.highestmodseq + 1
    if uid > MAX_UID:
        raise MailError(Reason.LIMIT, f"{folder.name} has used up its UIDs")
    if folder.special_use == "\\Archive":
        flags |= Flag.ARCHIVED
    date = plan.seconds if internal_date is None else internal_date
    row = ProjectedRow(uid, staged.content.id, date, plan.seconds, int(flags), keywords)
    plan.emit(Project.into(folder, modseq, (row,)))
    return Placed(address, folder.id, folder.name, folder.uidvalidity, uid, modseq)
