"""Synchronise one upstream folder.

Load the saved state, list the upstream messages, and commit the difference: new messages, changed flags, removed
messages. Every message is committed with its bookmark, so an interrupted sync continues where it stopped. The state of
the mailbox is saved last.

A message without bookmark is first matched by content with unclaimed messages of the folder, so that nothing is
duplicated after a change of the UIDVALIDITY, or where the same mail was imported before.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from adapter.mirror import naming, sync_state
from adapter.mirror.client import run_blocking
from adapter.mirror.limits import MirrorLimits, Room
from adapter.mirror.replies import FetchedMessage, MailboxState, RemoteMailbox
from adapter.mirror.session import SMALL_BYTES, UpstreamError, UpstreamSession
from adapter.mirror.sync_state import SyncState, Unclaimed
from adapter.store.effects import Actor
from adapter.store.queries.mailboxes import Folder
from adapter.transport import operations as op
from adapter.transport.operations.mirror import Place
from adapter.transport.staging import Staged
from adapter.transport.transport import Transport
from protocol.errors import MailError

_log = logging.getLogger(__name__)

#: In the journal, of everything that mirroring changes.
ACTOR = Actor("", "mirror")

Item = TypeVar("Item")

_MAX_CHANGES = 500
_GROUP_MESSAGES = 50
_GROUP_BYTES = 1 << 20
_MAX_PENDING_MESSAGES = 128
_MAX_PENDING_BYTES = 16 << 20


@dataclass(slots=True)
class PullResult:
    """Counters and failures of a pull so far."""

    messages: int = 0
    octets: int = 0
    claimed: int = 0  # messages that the store already had
    flagged: int = 0
    removed: int = 0
    folders: set[str] = field(default_factory=set)  # synchronised
    failed: list[str] = field(default_factory=list)  # messages and folders not mirrored, with the reason


class FolderSync:
    """One sync of one folder."""

    def __init__(
        self, transport: Transport, session: UpstreamSession, address: str, limits: MirrorLimits, result: PullResult
    ) -> None:
        self._transport = transport
        self._session = session
        self._address = address
        self._message_size = limits.message_size
        self._quota = limits.quotas.of(address)
        self._result = result
        self._pending: deque[tuple[Staged, Future[Any]]] = deque()
        self._pending_bytes = 0
        self._room: Room
        self._claimed: list[op.MirrorChange] = []
        self._over_quota = 0  # messages without room
        self._is_complete = True  # nothing is left for the next sync

    async def run(self, remote: RemoteMailbox, target: Folder, saved: SyncState) -> MailboxState:
        """Synchronise; return the state of the mailbox. Raises :class:`UpstreamError`, :class:`MailError`."""
        state = await self._session.examine(remote.name)
        current = saved.generation(state.uidvalidity)
        listed, removed = await self._list_changes(state, saved.mailbox, current)
        await self._apply_changes(saved.owner, state.uidvalidity, current, listed, removed)
        new = [each for uid, each in sorted(listed.items()) if uid not in current]
        older = saved.older(state.uidvalidity)
        if new:
            # After a complete sync, a new upstream message is new in the store as well.
            is_complete = saved.mailbox.uidvalidity == state.uidvalidity and not older
            unclaimed = Unclaimed()
            if not is_complete:
                unclaimed = await run_blocking(Unclaimed.of_folder, self._transport, target.id, older)
            self._room = await run_blocking(Room, self._transport, self._address, self._quota)
            try:
                await self._mirror_new(saved.owner, state.uidvalidity, target, new, unclaimed)
            finally:
                while self._pending:
                    await self._await_commit()
            await self._claim_all(saved.owner)
            if self._over_quota:
                self._is_complete = False
                count = f"{self._over_quota} message{'s' if self._over_quota > 1 else ''}"
                self._result.failed.append(f"{count} for {target.name}: no room in {self._address}, tried again later")
        if self._is_complete:
            stale = older.keys()
            if older and new:
                stale = (
                    (await run_blocking(sync_state.load, self._transport, saved.owner)).older(state.uidvalidity).keys()
                )
            bookmarks = {sync_state.STATE: sync_state.encode_mailbox(state), sync_state.FOLDER: f"{target.id:x}"}
            await self._update(op.UpdateMirror(self._address, saved.owner, gone=sorted(stale), bookmarks=bookmarks))
        return state

    # --- changes -----------------------------------------------------------------------------------------------------

    async def _list_changes(
        self, state: MailboxState, before: MailboxState, current: Mapping[int, Place]
    ) -> tuple[dict[int, FetchedMessage], list[int]]:
        """Return the messages that are new or may have changed, by UID, and the UIDs of removed ones."""
        session = self._session
        if before.uidvalidity != state.uidvalidity or not before.modseq or not state.modseq:
            listed = {each.uid: each async for each in session.all_messages(state.messages)}
            if len(listed) < state.messages:
                raise UpstreamError("incomplete list of messages")
            return listed, [uid for uid in current if uid not in listed]
        changed = await session.changed_since(before.modseq, state.messages)
        present = await session.uids_from(before.uidnext, state.messages)
        removed: list[int] = []
        if len(current.keys() | present) != state.messages:  # some were removed: list all to find out which
            present = await session.uids_from(1, state.messages)
            # Fewer than expected: some were removed just now, or the response is incomplete. Leave it to the next sync.
            self._is_complete = len(present) >= state.messages
            removed = [uid for uid in current if uid not in present] if self._is_complete else []
        uids = sorted((present - current.keys()) | (current.keys() & set(changed)))
        return {each.uid: each async for each in session.messages(uids)}, removed

    async def _apply_changes(
        self,
        owner: str,
        uidvalidity: int,
        current: Mapping[int, Place],
        listed: Mapping[int, FetchedMessage],
        removed: list[int],
    ) -> None:
        """Commit changed flags and removed messages."""
        changes = []
        for uid, each in listed.items():
            if uid in current and each.flags is not None:
                flags, keywords = naming.convert_flags(each.flags)
                place = current[uid]
                if flags != place.flags or set(keywords) != set(place.keywords.split()):
                    changes.append(op.MirrorChange(sync_state.bookmark(uidvalidity, uid), flags, keywords))
        for batch in _batches(changes):
            await self._update(op.UpdateMirror(self._address, owner, batch))
        for uids in _batches(removed):
            bookmarks = [sync_state.bookmark(uidvalidity, uid) for uid in uids]
            await self._update(op.UpdateMirror(self._address, owner, gone=bookmarks))

    async def _update(self, operation: op.UpdateMirror) -> None:
        updated = await self._transport.commit(operation, ACTOR)
        self._result.flagged += updated.flagged
        self._result.removed += updated.removed

    # --- new messages ------------------------------------------------------------------------------------------------

    async def _mirror_new(
        self, owner: str, uidvalidity: int, target: Folder, new: list[FetchedMessage], unclaimed: Unclaimed
    ) -> None:
        small: dict[int, FetchedMessage] = {}
        for each in new:
            size = each.size or 0
            if size > self._message_size:
                self._fail(target, each, f"{size} octets exceed limits.message_size")
                continue
            pending = sum(one.size or 0 for one in small.values())
            if not unclaimed.may_hold(size) and not self._room.has_room(pending + size, len(small) + 1):
                self._over_quota += 1
                continue
            if size and size <= SMALL_BYTES:
                small[each.uid] = each
            if small and (size > SMALL_BYTES or len(small) >= _GROUP_MESSAGES or pending + size >= _GROUP_BYTES):
                await self._mirror_small(owner, uidvalidity, target, small, unclaimed)
                small = {}
            if each.uid not in small and (not size or size > SMALL_BYTES):
                await self._mirror_large(owner, uidvalidity, target, each, unclaimed)
        if small:
            await self._mirror_small(owner, uidvalidity, target, small, unclaimed)

    async def _mirror_small(
        self, owner: str, uidvalidity: int, target: Folder, messages: Mapping[int, FetchedMessage], unclaimed: Unclaimed
    ) -> None:
        bodies = await self._session.small_bodies({uid: each.size or 0 for uid, each in messages.items()})
        for uid, each in messages.items():
            octets = bodies.get(uid)
            if octets is None:
                await self._mirror_large(owner, uidvalidity, target, each, unclaimed)
                continue
            bookmark = sync_state.bookmark(uidvalidity, uid)
            digest = hashlib.sha256(octets).hexdigest() if unclaimed else ""
            if not await self._claims(owner, bookmark, target, each, unclaimed.take(digest)):
                staged = await run_blocking(self._transport.stage, octets, _arrived(each.date))
                await self._submit(owner, bookmark, target, each, staged)

    async def _mirror_large(
        self, owner: str, uidvalidity: int, target: Folder, each: FetchedMessage, unclaimed: Unclaimed
    ) -> None:
        spool = self._transport.spool()
        with spool:
            if not await self._session.large_body(each.uid, each.size or 0, self._message_size, spool.write):
                return  # removed upstream during the sync
            staged = await run_blocking(spool.stage, _arrived(each.date))
        bookmark = sync_state.bookmark(uidvalidity, each.uid)
        if await self._claims(owner, bookmark, target, each, unclaimed.take(staged.content.wire_sha256)):
            self._transport.discard(staged)
        else:
            await self._submit(owner, bookmark, target, each, staged)

    async def _claims(
        self, owner: str, bookmark: str, target: Folder, each: FetchedMessage, match: tuple[int, str] | None
    ) -> bool:
        if match is None:
            return False
        uid, before = match
        flags, keywords = naming.convert_flags(each.flags or ())
        self._claimed.append(op.MirrorChange(bookmark, flags, keywords, (target.id, uid), before))
        if len(self._claimed) >= _MAX_CHANGES:
            await self._claim_all(owner)
        return True

    async def _claim_all(self, owner: str) -> None:
        changes, self._claimed = self._claimed, []
        if changes:
            await self._update(op.UpdateMirror(self._address, owner, changes))
            self._result.claimed += len(changes)

    async def _submit(self, owner: str, bookmark: str, target: Folder, each: FetchedMessage, staged: Staged) -> None:
        if not self._room.reserve(staged.content.size):
            self._over_quota += 1
            self._transport.discard(staged)
            return
        flags, keywords = naming.convert_flags(each.flags or ())
        item = op.AppendItem(staged, flags, keywords, each.date)
        future = self._transport.submit(op.MirrorAppend(self._address, target.id, item, owner, bookmark), ACTOR)
        self._pending.append((staged, future))
        self._pending_bytes += staged.content.size
        while len(self._pending) > _MAX_PENDING_MESSAGES or self._pending_bytes > _MAX_PENDING_BYTES:
            await self._await_commit()

    async def _await_commit(self) -> None:
        staged, future = self._pending.popleft()
        self._pending_bytes -= staged.content.size
        try:
            placed = await asyncio.shield(asyncio.wrap_future(future))
        except MailError as error:
            if error.temporary:
                raise
            self._is_complete = False
            self._result.failed.append(f"{staged.content.message_id or 'a message'}: {error}")
            return
        if placed is not None:
            self._result.messages += 1
            self._result.octets += staged.content.size

    def _fail(self, target: Folder, each: FetchedMessage, reason: str) -> None:
        self._result.failed.append(f"UID {each.uid} for {target.name}: {reason}")


def _arrived(date: int | None) -> int | None:
    """Return the internal date as arrival time, so that the message is filed under that day."""
    return date * 1_000_000 if date is not None and 0 <= date <= time.time() else None


def _batches(items: list[Item]) -> Iterator[list[Item]]:
    iterator = iter(items)
    while batch := list(islice(iterator, _MAX_CHANGES)):
        yield batch
