"""The :class:`~adapter.read_model.interface.MailboxWriter` over the operations of a store."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from adapter.read_model.interface import NewMessage
from adapter.store import names
from adapter.store.effects import Actor, FlagChange
from adapter.store.queries.mailboxes import Folder
from adapter.store.quotas import Quota
from adapter.transport import operations as op
from adapter.transport.sent_copy import Fingerprint, fingerprint_of
from adapter.transport.staging import SPOOL_MEMORY, Spool, Staged
from protocol.errors import MailError

if TYPE_CHECKING:
    from adapter.read_model.mailboxes import MailboxCache
    from adapter.read_model.thread_pool import ThreadPool
    from adapter.transport.sent_copy import SentCopies
    from adapter.transport.transport import Transport

Result = TypeVar("Result")

_SENT_NAME = "Sent"
_, _SENT_USE = names.STANDARD_FOLDERS[_SENT_NAME]


class SpooledUpload:
    """A message on its way in. Large ones are spooled to disk, by a thread.

    A spool is never closed while a thread writes to it, whenever the connection is lost.
    """

    def __init__(self, spool: Spool, threads: ThreadPool) -> None:
        self.spool = spool
        self._threads = threads
        self._lock = threading.Lock()
        self._is_closed = False
        self._on_thread = False

    @property
    def size(self) -> int:
        return self.spool.size

    async def write(self, octets: bytes) -> None:
        if self.spool.size + len(octets) <= SPOOL_MEMORY:
            self._write(octets)
            return
        self._on_thread = True  # and stays so if this is cancelled: the thread goes on
        try:
            await self._threads.run(self._write, octets)
        except MailError:
            self._on_thread = False
            raise
        self._on_thread = False

    def close(self) -> None:
        if self._on_thread:
            self._threads.start(self._close)
        else:
            self._close()

    def _write(self, octets: bytes) -> None:
        with self._lock:
            if not self._is_closed:
                self.spool.write(octets)

    def _close(self) -> None:
        with self._lock:
            self._is_closed = True
            self.spool.close()


class AccountWriter:
    """Commits the operations of one account and lets the caches of this process show them at once."""

    def __init__(self, cache: MailboxCache, address: str, via: str, sent_copies: SentCopies | None = None) -> None:
        """``via``: the protocol or program, for the journal's audit trail."""
        self._cache = cache
        self._transport = cache.transport
        self._sent_copies = sent_copies
        self.address = address
        self._actor = Actor(address, via)

    @property
    def _quota(self) -> Quota | None:
        """None if the account has no limits."""
        quota = self._cache.quotas.of(self.address) if self._cache.quotas is not None else Quota()
        return quota if quota.limited else None

    async def _commit(self, operation: op.Operation[Result]) -> Result:
        return await self._cache.commit(operation, self._actor)

    # --- messages --------------------------------------------------------------------------------------------------

    def upload(self) -> SpooledUpload:
        return SpooledUpload(self._transport.spool(), self._cache.upload_threads)

    async def check_quota(self, octets: int, messages: int) -> None:
        quota = self._quota
        if quota is not None:
            quota.check(list((await self._cache.status(self.address)).values()), octets, messages)

    async def append(
        self, folder: Folder, messages: Sequence[NewMessage], replaced: tuple[int, Sequence[int]] | None = None
    ) -> Sequence[op.Placed]:
        spools = [_spool_of(message) for message in messages]
        # Submission may have put the same message there, or be about to.
        is_sent_folder = folder.special_use == _SENT_USE or folder.name == _SENT_NAME
        may_have_twin = is_sent_folder and len(messages) == 1 and replaced is None
        quota = self._quota

        def prepare() -> op.Append:
            fingerprint = _fingerprint(spools[0]) if may_have_twin else None
            staged = _stage_all(self._transport, spools)
            copies = self._sent_copies
            find_twin = copies.finder(staged[0].content.id, fingerprint) if copies is not None else None
            items = [
                op.AppendItem(each, int(message.flags), message.keywords, message.internal_date)
                for each, message in zip(staged, messages, strict=True)
            ]
            return op.Append(self.address, folder.name, items, replaced, quota, find_twin)

        return await self._cache.commit_staged(prepare, sum(spool.size for spool in spools), self._actor)

    async def change_flags(
        self,
        folder_id: int,
        uids: Sequence[int],
        how: FlagChange,
        flags: int = 0,
        keywords: Sequence[str] = (),
        unchanged_since: int | None = None,
    ) -> op.FlagsChanged:
        return await self._commit(
            op.ChangeFlags(self.address, folder_id, uids, how, int(flags), keywords, unchanged_since)
        )

    async def copy(self, folder_id: int, uids: Sequence[int], destination: str) -> op.Copied:
        return await self._commit(op.Copy(self.address, folder_id, uids, destination, self._quota))

    async def move(self, folder_id: int, uids: Sequence[int], destination: str) -> op.Copied:
        return await self._commit(op.Move(self.address, folder_id, uids, destination))

    async def expunge(self, folder_id: int, uids: Sequence[int] | None = None) -> op.Expunged:
        return await self._commit(op.Expunge(self.address, folder_id, uids))

    async def send(self, octets: bytes, recipients: Sequence[str]) -> op.Delivery:
        def prepare() -> op.Deliver:
            return op.Deliver(self._transport.stage(octets), self.address, recipients, keep_sent=True)

        return await self._cache.commit_staged(prepare, len(octets), self._actor)

    # --- folders ---------------------------------------------------------------------------------------------------

    async def create_folder(self, name: str, special_use: str = "") -> Folder:
        return await self._commit(op.CreateFolder(self.address, name, special_use))

    async def rename_folder(self, name: str, new_name: str) -> Folder:
        return await self._commit(op.RenameFolder(self.address, name, new_name))

    async def delete_folder(self, name: str) -> None:
        await self._commit(op.DeleteFolder(self.address, name))

    async def subscribe(self, name: str) -> bool:
        return await self._commit(op.Subscribe(self.address, name, on=True))

    async def unsubscribe(self, name: str) -> bool:
        return await self._commit(op.Subscribe(self.address, name, on=False))


def _spool_of(message: NewMessage) -> Spool:
    upload = message.upload
    if not isinstance(upload, SpooledUpload):
        raise TypeError("not an upload of this writer")
    return upload.spool


def _fingerprint(spool: Spool) -> Fingerprint:
    try:
        with spool.reading() as octets:
            return fingerprint_of(octets)
    except BaseException:
        spool.close()
        raise


def _stage_all(transport: Transport, spools: Sequence[Spool]) -> list[Staged]:
    """Stage all messages, or none: those staged before a failure are discarded."""
    staged: list[Staged] = []
    try:
        for spool in spools:
            staged.append(spool.stage())
    except BaseException:
        for each in staged:
            transport.discard(each)
        for spool in spools:
            spool.close()
        raise
    return staged
