"""Filter of a hook: the accounts and folders that its section of the configuration names."""

from __future__ import annotations

from typing import NamedTuple

from adapter.config.schema import ALL_FOLDERS, HookSettings
from adapter.read_model.stored_messages import StoredMessages
from adapter.store import names
from adapter.transport.changes import Arrival

_BATCH_MESSAGES = 100


class WatchedFolder(NamedTuple):
    """A folder that the filter accepts."""

    id: int
    registration: str
    name: str


class Filter:
    """Selects new mail by account and folder."""

    def __init__(self, reader: StoredMessages, settings: HookSettings) -> None:
        self._reader = reader
        self._accounts = {names.normalise_address(address) for address in settings.accounts}
        self._folders = {names.normalise_folder(folder) for folder in settings.folders}
        self._addresses: dict[str, str] = {}  # by registration

    async def accepts(self, arrival: Arrival) -> bool:
        return await self._accepts(arrival.registration, arrival.folder_name)

    async def _accepts(self, registration: str, folder: str) -> bool:
        if ALL_FOLDERS not in self._folders and folder not in self._folders:
            return False
        return not self._accounts or await self.address(registration) in self._accounts

    async def address(self, registration: str) -> str | None:
        """Return the address of a registration of any status, or None."""
        if registration not in self._addresses:
            self._addresses = {each.id: each.address for each in await self._reader.registrations()}
        return self._addresses.get(registration)

    async def folders(self) -> list[WatchedFolder]:
        """Return the folders of active accounts that the filter accepts."""
        watched = []
        for registration in await self._reader.registrations():
            if registration.status != "active":
                continue
            account = await self._reader.account_of(registration)
            for folder in account.folders.values():
                if await self._accepts(registration.id, folder.name):
                    watched.append(WatchedFolder(folder.id, registration.id, folder.name))
        return watched

    async def since(self, folder: WatchedFolder, after: int, moment: int) -> list[Arrival]:
        """Return a batch of the messages saved since a moment (seconds) with UIDs greater than ``after``."""
        rows = await self._reader.rows(folder.id, after + 1, saved_since=moment, limit=_BATCH_MESSAGES)
        return [Arrival(folder.registration, folder.id, folder.name, row.uid, row.message_id) for row in rows]
