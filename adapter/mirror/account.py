"""Mirror one upstream account: synchronise its folders one after the other."""

from __future__ import annotations

import asyncio
import contextlib

from adapter.config.schema import UpstreamSettings
from adapter.mirror import naming, sync_state
from adapter.mirror.client import Refused, run_blocking
from adapter.mirror.folder_sync import ACTOR, FolderSync, PullResult
from adapter.mirror.limits import MirrorLimits
from adapter.mirror.replies import MailboxState, RemoteMailbox
from adapter.mirror.session import News, UpstreamSession
from adapter.mirror.sync_state import SyncState
from adapter.store import names
from adapter.store.queries import bookmarks as bookmark_queries
from adapter.store.queries import mailboxes
from adapter.store.queries.mailboxes import Folder
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError

_MAX_IDLE_SECONDS = 25 * 60.0  # RFC 2177: restart IDLE at least every 29 minutes


class Mirror:
    """Mirrors one upstream account over one connection; ``result`` has what was done so far."""

    def __init__(
        self,
        transport: Transport,
        name: str,
        settings: UpstreamSettings,
        session: UpstreamSession,
        limits: MirrorLimits,
    ) -> None:
        self._transport = transport
        self._name = name
        self._settings = settings
        self._session = session
        self._limits = limits
        self._address = names.normalise_address(settings.account)
        self._inbox: RemoteMailbox | None = None
        self._states: dict[str, MailboxState] = {}  # after the last sync, by name on the wire
        self.result = PullResult()

    async def pull(self, *, thorough: bool = True) -> None:
        """Synchronise all folders. With ``thorough``, flags are compared even if the server has no CONDSTORE."""
        listed = await self._session.mailboxes()
        for remote in listed:
            name = naming.folder_name(remote.levels)
            if name == names.INBOX:
                self._inbox = remote
            if naming.is_skipped(name, self._settings):
                continue
            target = naming.target_folder(name, self._settings)
            if target is None:
                self._fail(f"folder {name}: not a valid folder name here")
                continue
            try:
                await self._sync_folder(remote, target, thorough=thorough)
            except Refused as error:
                self._fail(f"folder {name}: {error}")
        if self._inbox is not None:
            await self._drop_deleted({remote.name for remote in listed})

    async def pull_inbox(self) -> None:
        """Synchronise INBOX only."""
        if self._inbox is not None and (target := naming.target_folder(names.INBOX, self._settings)) is not None:
            await self._sync_folder(self._inbox, target, thorough=True)

    async def wait(self, seconds: float) -> News:
        """Wait for a change in INBOX or, with NOTIFY, in any mailbox; or until the time is up."""
        if self._inbox is None or not self._session.has_idle or naming.is_skipped(names.INBOX, self._settings):
            await asyncio.sleep(seconds)
            return ""
        # IDLE does not report changes from before its start.
        state = await self._session.examine(self._inbox.name)
        if state != self._states.get(self._inbox.name):
            return "here"
        return await self._session.idle(min(seconds, _MAX_IDLE_SECONDS), self._states)

    # --- one folder --------------------------------------------------------------------------------------------------

    async def _sync_folder(self, remote: RemoteMailbox, name: str, *, thorough: bool) -> None:
        owner = sync_state.owner(self._name, await run_blocking(self._registration), remote.name)
        self.result.folders.add(name)
        state = await run_blocking(sync_state.load_mailbox, self._transport, owner)
        can_compare = state.uidvalidity and (state.modseq or not thorough)
        if not can_compare or await self._session.status(remote.name) != state:
            saved = await run_blocking(sync_state.load, self._transport, owner)
            target = await self._ensure_target(saved, name)
            sync = FolderSync(self._transport, self._session, self._address, self._limits, self.result)
            state = await sync.run(remote, target, saved)
        self._states[remote.name] = state

    def _registration(self) -> str:
        with self._transport.reading() as connection:
            return mailboxes.active_registration(connection, self._address).id

    def _find_target(self, saved: SyncState, name: str) -> Folder | None:
        """Return the folder it was mirrored to, even if renamed since; else the folder of that name."""
        with self._transport.reading() as connection:
            registration = mailboxes.active_registration(connection, self._address).id
            previous = mailboxes.folder_by_id(connection, saved.folder) if saved.folder else None
            if previous is not None and previous.registration == registration:
                return previous
            return mailboxes.active_folder(connection, self._address, name)

    async def _ensure_target(self, saved: SyncState, name: str) -> Folder:
        existing = await run_blocking(self._find_target, saved, name)
        if existing is not None:
            return existing
        created = await self._transport.commit(op.CreateFolder(self._address, name), ACTOR)
        await self._transport.commit(op.Subscribe(self._address, name), ACTOR)
        return created

    # --- deleted folders ---------------------------------------------------------------------------------------------

    async def _drop_deleted(self, listed: set[str]) -> None:
        prefix = sync_state.owner(self._name, await run_blocking(self._registration))
        for owner in await run_blocking(self._owners, prefix):
            name = owner.removeprefix(prefix)
            if name in listed:
                continue
            try:
                await self._session.status(name)  # it may exist although it is not listed
            except Refused as error:
                if error.is_permanent:
                    await self._drop(await run_blocking(sync_state.load, self._transport, owner))
                else:
                    self._fail(f"folder {name}: not listed, and {error}")

    def _owners(self, prefix: str) -> list[str]:
        with self._transport.reading() as connection:
            return bookmark_queries.owners(connection, prefix)

    async def _drop(self, saved: SyncState) -> None:
        """Remove the messages of a deleted folder, and the folder itself if that leaves it empty."""
        bookmarks = [sync_state.bookmark(*key) for key in saved.places]
        changes: dict[str, str | None] = {sync_state.STATE: None, sync_state.FOLDER: None}
        updated = await self._transport.commit(
            op.UpdateMirror(self._address, saved.owner, (), bookmarks, changes), ACTOR
        )
        self.result.removed += updated.removed
        leaf = await run_blocking(self._empty_leaf, saved.folder)
        if leaf is not None and leaf.name not in names.STANDARD_FOLDERS:
            with contextlib.suppress(MailError):  # changed by another client since
                await self._transport.commit(op.DeleteFolder(self._address, leaf.name), ACTOR)
                await self._transport.commit(op.Subscribe(self._address, leaf.name, on=False), ACTOR)

    def _empty_leaf(self, folder_id: int) -> Folder | None:
        with self._transport.reading() as connection:
            folder = mailboxes.folder_by_id(connection, folder_id)
            if folder is None:
                return None
            folders = mailboxes.folders(connection, folder.registration)
        return folder if sync_state.is_empty_leaf(folder, folders) else None

    def _fail(self, line: str) -> None:
        if line not in self.result.failed:
            self.result.failed.append(line)
