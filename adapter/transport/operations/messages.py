"""Operations on messages in folders: flags, copy, move, expunge, and the collection of content that no folder shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from adapter.store.effects import DropContent, FlagChange, Project, ProjectedRow, SetFlags, Unproject, UnprojectedRow
from adapter.store.flags import SETTABLE, Flag, change_keywords, flag_masks
from adapter.store.queries import content_rows, mailboxes
from adapter.store.queries.mailboxes import Folder
from adapter.store.quotas import Quota
from adapter.transport.operations.base import MAX_UID, Operation, Plan
from protocol.errors import MailError, Reason


@dataclass(frozen=True, slots=True)
class FlagsChanged:
    """``changed`` are (uid, flags, keywords) after the change; ``modified`` failed the UNCHANGEDSINCE test."""

    modseq: int
    changed: list[tuple[int, int, str]]
    unchanged: list[tuple[int, int, str]]
    modified: list[int]


@dataclass(frozen=True, slots=True)
class ChangeFlags(Operation[FlagsChanged]):
    """Add, remove or set flags and keywords (RFC 3501 6.4.6, RFC 7162 3.1.3)."""

    name = "flags"
    address: str
    folder: int
    uids: Sequence[int]
    how: FlagChange
    flags: int = 0
    keywords: Sequence[str] = ()
    unchanged_since: int | None = None

    def addresses(self) -> Iterable[str]:
        return (self.address,)

    def plan(self, plan: Plan) -> FlagsChanged:
        folder = plan.folder_by_id(self.address, self.folder)
        keep, give = flag_masks(self.how, self.flags & SETTABLE)
        changed: list[tuple[int, int, str]] = []
        unchanged: list[tuple[int, int, str]] = []
        modified: list[int] = []
        new_keywords: dict[str, str] = {}
        for uid, before, words, at in mailboxes.states_of(plan.connection, folder.id, self.uids):
            if self.unchanged_since is not None and at > self.unchanged_since:
                modified.append(uid)
                continue
            flags = before & keep | give
            keywords = new_keywords.get(words)
            if keywords is None:
                keywords = new_keywords[words] = change_keywords(words, self.how, self.keywords)
            (unchanged if flags == before and keywords == words else changed).append((uid, flags, keywords))
        modseq = folder.highestmodseq
        if changed:
            modseq += 1
            uids = [uid for uid, _, _ in changed]
            plan.emit(SetFlags.on(folder, modseq, uids, self.how, self.flags & SETTABLE, self.keywords))
        return FlagsChanged(modseq, changed, unchanged, modified)


@dataclass(frozen=True, slots=True)
class Copied:
    """``uids`` pairs source and destination UIDs of the messages that existed."""

    uidvalidity: int
    uids: list[tuple[int, int]]
    modseq: int
    folder: int
    expunged_modseq: int | None = None  # of the source, when messages were moved


@dataclass(frozen=True, slots=True)
class Copy(Operation[Copied]):
    """Copy messages to another folder of the account: all that exist, in one commit (RFC 3501 6.4.7)."""

    name = "copy"
    address: str
    folder: int
    uids: Sequence[int]
    to: str
    quota: Quota | None = None

    def addresses(self) -> Iterable[str]:
        return (self.address,)

    def plan(self, plan: Plan) -> Copied:
        source = plan.folder_by_id(self.address, self.folder)
        if self.quota is not None:
            rows = mailboxes.rows_of(plan.connection, source.id, self.uids)
            own = mailboxes.folders(plan.connection, source.registration)
            self.quota.check(own, sum(row.size for row in rows), len(rows))
        copied, _ = _copy(plan, self.address, source, self.uids, self.to)
        return copied


@dataclass(frozen=True, slots=True)
class Move(Operation[Copied]):
    """Copy, and remove from the source, in one commit (RFC 6851)."""

    name = "move"
    address: str
    folder: int
    uids: Sequence[int]
    to: str

    def addresses(self) -> Iterable[str]:
        return (self.address,)

    def plan(self, plan: Plan) -> Copied:
        source = plan.folder_by_id(self.address, self.folder)
        return move_messages(plan, self.address, source, self.uids, self.to)


@dataclass(frozen=True, slots=True)
class Expunged:
    modseq: int
    uids: list[int]


@dataclass(frozen=True, slots=True)
class Expunge(Operation[Expunged]):
    """Remove the messages flagged deleted; with ``uids``, only those among them (RFC 3501 6.4.3, RFC 4315 2.1)."""

    name = "expunge"
    address: str
    folder: int
    uids: Sequence[int] | None = None

    def addresses(self) -> Iterable[str]:
        return (self.address,)

    def plan(self, plan: Plan) -> Expunged:
        folder = plan.folder_by_id(self.address, self.folder)
        rows = (
            mailboxes.rows(plan.connection, folder.id)
            if self.uids is None
            else mailboxes.rows_of(plan.connection, folder.id, self.uids)
        )
        deleted = int(Flag.DELETED)
        return _remove(
            plan, folder, tuple(UnprojectedRow(row.uid, row.message_id) for row in rows if row.flags & deleted)
        )


@dataclass(frozen=True, slots=True)
class Expire(Operation[int]):
    """Delete messages that came to a folder before ``before`` (seconds), oldest first. Returns how many."""

    name = "expire"
    address: str
    folder: int
    before: int
    limit: int = 1000

    def addresses(self) -> Iterable[str]:
        return (self.address,)

    def plan(self, plan: Plan) -> int:
        folder = plan.folder_by_id(self.address, self.folder)
        # UIDs and dates of arrival in the folder ascend together: the first rows are the oldest.
        oldest = mailboxes.oldest_rows(plan.connection, folder.id, self.limit)
        expired = tuple(
            UnprojectedRow(uid, message_id)
            for uid, message_id, _ in takewhile(lambda row: row[2] < self.before, oldest)
        )
        return len(_remove(plan, folder, expired).uids)


@dataclass(frozen=True, slots=True)
class Collect(Operation[int]):
    """Remove the content of messages no folder shows since ``before`` (seconds). Returns how many went."""

    name = "collect"
    before: int
    limit: int = 1000

    def addresses(self) -> Iterable[str]:
        return ()

    def plan(self, plan: Plan) -> int:
        message_ids = content_rows.unlinked(plan.connection, self.before, self.limit)
        if message_ids:
            drop_content(plan, message_ids)
        return len(message_ids)


def drop_content(plan: Plan, message_ids: Sequence[str]) -> None:
    """Remove the content of these messages, which no folder shows, and the blobs that only they need."""
    plan.emit(DropContent(tuple(message_ids), tuple(content_rows.blobs_only_in(plan.connection, set(message_ids)))))


def _copy(
    plan: Plan, address: str, source: Folder, uids: Sequence[int], to: str
) -> tuple[Copied, tuple[UnprojectedRow, ...]]:
    rows = mailboxes.rows_of(plan.connection, source.id, uids)
    target = plan.folder(address, to)
    if not rows:
        return Copied(target.uidvalidity, [], target.highestmodseq, target.id), ()
    first, modseq = target.uidnext, target.highestmodseq + 1
    if first + len(rows) > MAX_UID:
        raise MailError(Reason.LIMIT, f"{target.name} has used up its UIDs")
    archived = int(Flag.ARCHIVED) if target.special_use == "\\Archive" else 0
    keep = ~int(Flag.ARCHIVED)
    copies = tuple(
        ProjectedRow(uid, row.message_id, row.internal_date, plan.seconds, row.flags & keep | archived, row.keywords)
        for uid, row in enumerate(rows, first)
    )
    plan.emit(Project.into(target, modseq, copies))
    pairs = [(row.uid, uid) for uid, row in enumerate(rows, first)]
    originals = tuple(UnprojectedRow(row.uid, row.message_id) for row in rows)
    return Copied(target.uidvalidity, pairs, modseq, target.id), originals


def move_messages(plan: Plan, address: str, source: Folder, uids: Sequence[int], to: str) -> Copied:
    copied, gone = _copy(plan, address, source, uids, to)
    if not gone:
        return copied
    removed = _remove(plan, plan.folder_by_id(address, source.id), gone)  # read again: it may be the target as well
    return Copied(copied.uidvalidity, copied.uids, copied.modseq, copied.folder, removed.modseq)


def remove_messages(plan: Plan, folder: Folder, uids: Sequence[int]) -> Expunged:
    rows = mailboxes.rows_of(plan.connection, folder.id, uids)
    return _remove(plan, folder, tuple(UnprojectedRow(row.uid, row.message_id) for row in rows))


def _remove(plan: Plan, folder: Folder, items: tuple[UnprojectedRow, ...]) -> Expunged:
    if not items:
        return Expunged(folder.highestmodseq, [])
    modseq = folder.highestmodseq + 1
    plan.emit(Unproject.out_of(folder, modseq, items))
    return Expunged(modseq, [item.uid for item in items])
