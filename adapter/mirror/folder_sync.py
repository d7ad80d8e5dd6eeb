"""One folder of the other server, made the same here.

What is known of it is looked up, what it holds is listed, and the difference is committed: messages that are new, flags
that changed, messages that are gone. Every message is committed with its bookmark, so that it does not matter where
this stops. How the folder was is remembered last, when everything else is.

A message without bookmark is first looked for by its content among those that lie here and belong to no other: after
the UIDVALIDITY changed, or where the same mail was imported before, nothing comes twice.
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
from adapter.mirror.blocking import to_end
from adapter.mirror.limits import Limits, Room
from adapter.mirror.replies import Examined, Fetched, Listed
from adapter.mirror.session import SMALL, Session, UpstreamError
from adapter.mirror.sync_state import Ledger, Unclaimed
from adapter.store.queries.mailboxes import Folder
from adapter.transport import operations as op
from adapter.transport.operations.mirror import Place
from adapter.transport.staging import Staged
from adapter.transport.transport import Transport
from protocol.errors import MailError

_log = logging.getLogger(__name__)

Item = TypeVar("Item")

_CHANGES_AT_ONCE = 500
_GROUP_MESSAGES = 50
_GROUP_OCTETS = 1 << 20
_WAITING_MESSAGES = 128
_WAITING_OCTETS = 16 << 20


@dataclass(slots=True)
class Pulled:
    """What was done so far."""

    messages: int = 0
    octets: int = 0
    claimed: int = 0  # messages that lay here already
    flagged: int = 0
    removed: int = 0
    folders: set[str] = field(default_factory=set)  # looked at
    failed: list[str] = field(default_factory=list)  # what could not be taken, and why


class FolderSync:
    def __init__(self, transport: Transport, session: Session, address: str, limits: Limits, done: Pulled) -> None:
        self._transport = transport
        self._session = session
        self._address = address
        self._message_size = limits.message_size
        self._quota = limits.quotas.of(address)
        self._done = done
        self._waiting: deque[tuple[Staged, Future[Any]]] = deque()
        self._waiting_octets = 0
        self._room: Room
        self._claimed: list[op.MirrorChange] = []
        self._homeless = 0  # messages there is no room for
        self._whole = True  # nothing is left for the next time

    async def run(self, remote: Listed, target: Folder, known: Ledger) -> Examined:
        """How the folder was. Raises :class:`UpstreamError`, and :class:`MailError` where the store cannot go on."""
        seen = await self._session.examine(remote.spelling)
        current = known.generation(seen.uidvalidity)
        listed, gone = await self._look(seen, known.state, current)
        await self._follow(known.owner, seen.uidvalidity, current, listed, gone)
        new = [each for uid, each in sorted(listed.items()) if uid not in current]
        older = known.older(seen.uidvalidity)
        if new:
            # Once the folder was brought whole, what is new there is new here.
            fresh = known.state.uidvalidity == seen.uidvalidity and not older
            unclaimed = Unclaimed()
            if not fresh:
                unclaimed = await to_end(Unclaimed.of_folder, self._transport, target.id, older)
            self._room = await to_end(Room, self._transport, self._address, self._quota)
            try:
                await self._bring(known.owner, seen.uidvalidity, target, new, unclaimed)
            finally:
                while self._waiting:
                    await self._settle()
            await self._claim_all(known.owner)
            if self._homeless:
                self._whole = False
                count = f"{self._homeless} message{'s' if self._homeless > 1 else ''}"
                self._done.failed.append(f"{count} for {target.name}: no room in {self._address}, tried again later")
        if self._whole:
            left = older.keys()
            if older and new:
                left = (await to_end(sync_state.load, self._transport, known.owner)).older(seen.uidvalidity).keys()
            notes = {sync_state.STATE: sync_state.encode_state(seen), sync_state.FOLDER: f"{target.id:x}"}
            await self._update(op.UpdateMirror(self._address, known.owner, gone=sorted(left), bookmarks=notes))
        return seen

    # --- what is there -----------------------------------------------------------------------------------------------

    async def _look(
        self, seen: Examined, before: Examined, current: Mapping[int, Place]
    ) -> tuple[dict[int, Fetched], list[int]]:
        """Messages that are new or may have other flags, by UID; and the UIDs of those that are gone."""
        session = self._session
        if before.uidvalidity != seen.uidvalidity or not before.modseq or not seen.modseq:
            listed = {each.uid: each async for each in session.all_messages(seen.messages)}
            if len(listed) < seen.messages:
                raise UpstreamError("it does not list all messages of a mailbox")
            return listed, [uid for uid in current if uid not in listed]
        changed = await session.changed_since(before.modseq, seen.messages)
        present = await session.uids_from(before.uidnext, seen.messages)
        gone: list[int] = []
        if len(current.keys() | present) != seen.messages:  # something went: which, only all of them tell
            present = await session.uids_from(1, seen.messages)
            # With fewer than there were something went just now, or the answer was not whole: the next look will tell.
            self._whole = len(present) >= seen.messages
            gone = [uid for uid in current if uid not in present] if self._whole else []
        wanted = sorted((present - current.keys()) | (current.keys() & set(changed)))
        return {each.uid: each async for each in session.messages(wanted)}, gone

    async def _follow(
        self,
        owner: str,
        uidvalidity: int,
        current: Mapping[int, Place],
        listed: Mapping[int, Fetched],
        gone: list[int],
    ) -> None:
        """Flags that changed, messages that are gone."""
        changes = []
        for uid, each in listed.items():
            if uid in current and each.flags is not None:
                flags, keywords = naming.flags_here(each.flags)
                place = current[uid]
                if flags != place.flags or set(keywords) != set(place.keywords.split()):
                    changes.append(op.MirrorChange(sync_state.bookmark(uidvalidity, uid), flags, keywords))
        for some in _portions(changes):
            await self._update(op.UpdateMirror(self._address, owner, some))
        for uids in _portions(gone):
            bookmarks = [sync_state.bookmark(uidvalidity, uid) for uid in uids]
            await self._update(op.UpdateMirror(self._address, owner, gone=bookmarks))

    async def _update(self, operation: op.UpdateMirror) -> None:
        updated = await self._transport.commit(operation)
        self._done.flagged += updated.flagged
        self._done.removed += updated.removed

    # --- what is new -------------------------------------------------------------------------------------------------

    async def _bring(
        self, owner: str, uidvalidity: int, target: Folder, new: list[Fetched], unclaimed: Unclaimed
    ) -> None:
        small: dict[int, Fetched] = {}
        for each in new:
            size = each.size or 0
            if size > self._message_size:
                self._fail(target, each, f"{size} octets are more than limits.message_size")
                continue
            waiting = sum(one.size or 0 for one in small.values())
            if not unclaimed.may_hold(size) and not self._room.has(waiting + size, len(small) + 1):
                self._homeless += 1
                continue
            if size and size <= SMALL:
                small[each.uid] = each
            if small and (size > SMALL or len(small) >= _GROUP_MESSAGES or waiting + size >= _GROUP_OCTETS):
                await self._bring_small(owner, uidvalidity, target, small, unclaimed)
                small = {}
            if each.uid not in small and (not size or size > SMALL):
                await self._bring_large(owner, uidvalidity, target, each, unclaimed)
        if small:
            await self._bring_small(owner, uidvalidity, target, small, unclaimed)

    async def _bring_small(
        self, owner: str, uidvalidity: int, target: Folder, wanted: Mapping[int, Fetched], unclaimed: Unclaimed
    ) -> None:
        bodies = await self._session.small_bodies({uid: each.size or 0 for uid, each in wanted.items()})
        for uid, each in wanted.items():
            octets = bodies.get(uid)
            if octets is None:
                await self._bring_large(owner, uidvalidity, target, each, unclaimed)
                continue
            bookmark = sync_state.bookmark(uidvalidity, uid)
            digest = hashlib.sha256(octets).hexdigest() if unclaimed else ""
            if not await self._claims(owner, bookmark, target, each, unclaimed.take(digest)):
                staged = await to_end(self._transport.stage, octets, _arrived(each.date))
                await self._submit(owner, bookmark, target, each, staged)

    async def _bring_large(
        self, owner: str, uidvalidity: int, target: Folder, each: Fetched, unclaimed: Unclaimed
    ) -> None:
        spool = self._transport.spool()
        with spool:
            if not await self._session.large_body(each.uid, each.size or 0, self._message_size, spool.write):
                return  # it went meanwhile
            staged = await to_end(spool.stage, _arrived(each.date))
        bookmark = sync_state.bookmark(uidvalidity, each.uid)
        if await self._claims(owner, bookmark, target, each, unclaimed.take(staged.content.wire_sha256)):
            self._transport.discard(staged)
        else:
            await self._submit(owner, bookmark, target, each, staged)

    async def _claims(
        self, owner: str, bookmark: str, target: Folder, each: Fetched, here: tuple[int, str] | None
    ) -> bool:
        if here is None:
            return False
        uid, before = here
        flags, keywords = naming.flags_here(each.flags or ())
        self._claimed.append(op.MirrorChange(bookmark, flags, keywords, (target.id, uid), before))
        if len(self._claimed) >= _CHANGES_AT_ONCE:
            await self._claim_all(owner)
        return True

    async def _claim_all(self, owner: str) -> None:
        changes, self._claimed = self._claimed, []
        if changes:
            await self._update(op.UpdateMirror(self._address, owner, changes))
            self._done.claimed += len(changes)

    async def _submit(self, owner: str, bookmark: str, target: Folder, each: Fetched, staged: Staged) -> None:
        if not self._room.take(staged.content.size):
            self._homeless += 1
            self._transport.discard(staged)
            return
        flags, keywords = naming.flags_here(each.flags or ())
        item = op.AppendItem(staged, flags, keywords, each.date)
        future = self._transport.submit(op.MirrorAppend(self._address, target.id, item, owner, bookmark))
        self._waiting.append((staged, future))
        self._waiting_octets += staged.content.size
        while len(self._waiting) > _WAITING_MESSAGES or self._waiting_octets > _WAITING_OCTETS:
            await self._settle()

    async def _settle(self) -> None:
        staged, future = self._waiting.popleft()
        self._waiting_octets -= staged.content.size
        try:
            placed = await asyncio.shield(asyncio.wrap_future(future))
        except MailError as error:
            if error.temporary:
                raise
            self._whole = False
            self._done.failed.append(f"{staged.content.message_id or 'a message'}: {error}")
            return
        if placed is not None:
            self._done.messages += 1
            self._done.octets += staged.content.size

    def _fail(self, target: Folder, each: Fetched, why: str) -> None:
        self._done.failed.append(f"UID {each.uid} for {target.name}: {why}")


def _arrived(date: int | None) -> int | None:
    """Filed under the day it arrived, which the internal date tells better than the clock."""
    return date * 1_000_000 if date is not None and 0 <= date <= time.time() else None


def _portions(items: list[Item]) -> Iterator[list[Item]]:
    iterator = iter(items)
    while some := list(islice(iterator, _CHANGES_AT_ONCE)):
        yield some
