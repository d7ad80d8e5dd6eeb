"""Which mail a hook is told of."""

from __future__ import annotations

from typing import NamedTuple

from adapter.config.schema import ALL_FOLDERS, HookSettings
from adapter.store import names
from adapter.store.queries import mailboxes
from adapter.transport.changes import Arrival
from adapter.transport.transport import Transport

_AT_ONCE = 100
_SINCE = """
SELECT uid, message_id FROM mailbox_projections WHERE folder_id = ? AND uid > ? AND saved_at >= ?
ORDER BY uid LIMIT ?
"""


class WantedFolder(NamedTuple):
    id: int
    registration: str
    name: str


class Filter:
    """All of it blocks."""

    def __init__(self, transport: Transport, settings: HookSettings) -> None:
        self._transport = transport
        self._accounts = {names.normalise_address(address) for address in settings.accounts}
        self._folders = {names.normalise_folder(folder) for folder in settings.folders}
        self._addresses: dict[str, str] = {}  # of registrations

    def wants(self, arrival: Arrival) -> bool:
        return self._wants(arrival.registration, arrival.folder_name)

    def _wants(self, registration: str, folder: str) -> bool:
        if ALL_FOLDERS not in self._folders and folder not in self._folders:
            return False
        return not self._accounts or self._address(registration) in self._accounts

    def _address(self, registration: str) -> str | None:
        if registration not in self._addresses:
            with self._transport.reading() as connection:
                self._addresses = {each.id: each.address for each in mailboxes.registrations(connection)}
        return self._addresses.get(registration)

    def folders(self) -> list[WantedFolder]:
        """Those of active accounts, as they are now."""
        with self._transport.reading() as connection:
            active = [each for each in mailboxes.registrations(connection) if each.status == "active"]
            found = [folder for each in active for folder in mailboxes.folders(connection, each.id)]
        return [
            WantedFolder(folder.id, folder.registration, folder.name)
            for folder in found
            if self._wants(folder.registration, folder.name)
        ]

    def since(self, folder: WantedFolder, after: int, moment: int) -> list[Arrival]:
        """Some of what came into a folder since a moment (seconds), with UIDs greater than ``after``."""
        rows = self._transport.index.query(_SINCE, (folder.id, after, moment, _AT_ONCE))
        return [Arrival(folder.registration, folder.id, folder.name, uid, message_id) for uid, message_id in rows]
