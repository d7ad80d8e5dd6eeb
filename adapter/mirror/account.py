"""A whole account of the other server: all its folders, one after the other."""

from __future__ import annotations

import asyncio
import contextlib

from adapter.config.schema import UpstreamSettings
from adapter.mirror import naming, sync_state
from adapter.mirror.blocking import to_end
from adapter.mirror.client import Refused
from adapter.mirror.folder_sync import FolderSync, Pulled
from adapter.mirror.limits import Limits
from adapter.mirror.replies import Examined, Listed
from adapter.mirror.session import News, Session
from adapter.mirror.sync_state import Ledger
from adapter.store import names
from adapter.store.queries import bookmarks as bookmark_queries
from adapter.store.queries import mailboxes
from adapter.store.queries.mailboxes import Folder
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError

_LONGEST_IDLE = 25 * 60.0  # RFC 2177 wants it begun anew every 29 minutes


class Mirror:
    """Brings one upstream account here, over one connection; ``done`` tells what it did so far."""

    def __init__(
        self, transport: Transport, name: str, settings: UpstreamSettings, session: Session, limits: Limits
    ) -> None:
        self._transport = transport
        self._name = name
        self._settings = settings
        self._session = session
        self._limits = limits
        self._address = names.normalise_address(settings.account)
        self._inbox: Listed | None = None
        self._seen: dict[str, Examined] = {}  # what folders were like when last looked at, by their spelling
        self.done = Pulled()

    async def pull(self, *, thorough: bool = True) -> None:
        """All folders. A server that cannot tell which flags changed is asked for all of them if ``thorough``."""
        listed = await self._session.mailboxes()
        for remote in listed:
            name = naming.readable(remote.levels)
            if name == names.INBOX:
                self._inbox = remote
            if naming.is_skipped(name, self._settings):
                continue
            here = naming.folder_here(name, self._settings)
            if here is None:
                self._fail(f"folder {name}: there can be none of that name here")
                continue
            try:
                await self._folder(remote, here, thorough=thorough)
            except Refused as error:
                self._fail(f"folder {name}: {error}")
        if self._inbox is not None:
            await self._drop_vanished({remote.spelling for remote in listed})

    async def pull_inbox(self) -> None:
        if self._inbox is not None and (here := naming.folder_here(names.INBOX, self._settings)) is not None:
            await self._folder(self._inbox, here, thorough=True)

    async def wait(self, seconds: float) -> News:
        """Until something happens in INBOX or, where the server can tell, elsewhere; or the time is up."""
        if self._inbox is None or not self._session.has_idle or naming.is_skipped(names.INBOX, self._settings):
            await asyncio.sleep(seconds)
            return ""
        # What happened since the last look is not told any more; what happens from here on is.
        seen = await self._session.examine(self._inbox.spelling)
        if seen != self._seen.get(self._inbox.spelling):
            return "here"
        return await self._session.idle(min(seconds, _LONGEST_IDLE), self._seen)

    # --- one folder --------------------------------------------------------------------------------------------------

    async def _folder(self, remote: Listed, here: str, *, thorough: bool) -> None:
        owner = sync_state.owner(self._name, await to_end(self._registration), remote.spelling)
        self.done.folders.add(here)
        seen = await to_end(sync_state.load_state, self._transport, owner)
        quick = seen.uidvalidity and (seen.modseq or not thorough)
        if not quick or await self._session.status(remote.spelling) != seen:
            known = await to_end(sync_state.load, self._transport, owner)
            target = await self._target(known, here)
            sync = FolderSync(self._transport, self._session, self._address, self._limits, self.done)
            seen = await sync.run(remote, target, known)
        self._seen[remote.spelling] = seen

    def _registration(self) -> str:
        with self._transport.reading() as connection:
            return mailboxes.active_registration(connection, self._address).id

    def _find(self, known: Ledger, name: str) -> Folder | None:
        """The folder it went to so far, whatever that is called now; else the one of that name."""
        with self._transport.reading() as connection:
            registration = mailboxes.active_registration(connection, self._address).id
            found = mailboxes.folder_by_id(connection, known.folder) if known.folder else None
            if found is not None and found.registration == registration:
                return found
            return mailboxes.active_folder(connection, self._address, name)

    async def _target(self, known: Ledger, name: str) -> Folder:
        found = await to_end(self._find, known, name)
        if found is not None:
            return found
        made = await self._transport.commit(op.CreateFolder(self._address, name))
        await self._transport.commit(op.Subscribe(self._address, name))
        return made

    # --- folders that are no more ------------------------------------------------------------------------------------

    async def _drop_vanished(self, listed: set[str]) -> None:
        prefix = sync_state.owner(self._name, await to_end(self._registration))
        for owner in await to_end(self._owners, prefix):
            spelling = owner.removeprefix(prefix)
            if spelling in listed:
                continue
            try:
                await self._session.status(spelling)  # it may be there, and only not listed
            except Refused as error:
                if error.is_lasting:
                    await self._drop(await to_end(sync_state.load, self._transport, owner))
                else:
                    self._fail(f"folder {spelling}: it is not listed, and {error}")

    def _owners(self, prefix: str) -> list[str]:
        with self._transport.reading() as connection:
            return bookmark_queries.owners(connection, prefix)

    async def _drop(self, known: Ledger) -> None:
        """Its messages go, and the folder itself if that leaves nothing in it."""
        bookmarks = [sync_state.bookmark(*key) for key in known.places]
        notes: dict[str, str | None] = {sync_state.STATE: None, sync_state.FOLDER: None}
        updated = await self._transport.commit(op.UpdateMirror(self._address, known.owner, (), bookmarks, notes))
        self.done.removed += updated.removed
        leaf = await to_end(self._empty_leaf, known.folder)
        if leaf is not None and leaf.name not in names.STANDARD_FOLDERS:
            with contextlib.suppress(MailError):  # somebody put something there, or took it away
                await self._transport.commit(op.DeleteFolder(self._address, leaf.name))
                await self._transport.commit(op.Subscribe(self._address, leaf.name, on=False))

    def _empty_leaf(self, folder_id: int) -> Folder | None:
        with self._transport.reading() as connection:
            folder = mailboxes.folder_by_id(connection, folder_id)
            return folder if folder is not None and sync_state.is_empty_leaf(connection, folder) else None

    def _fail(self, line: str) -> None:
        if line not in self.done.failed:
            self.done.failed.append(line)
