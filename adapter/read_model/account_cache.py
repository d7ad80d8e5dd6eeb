"""Accounts in memory: which folders an address has, which it subscribes to, and the counters of its folders.

Identities and subscriptions are read again after a change of theirs, counters after any change of a message: a change
only marks what it makes stale, so a busy account costs nothing until somebody asks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from adapter.read_model.thread_pool import Threads
from adapter.store import effects
from adapter.store.effects import Effect
from adapter.store.queries import mailboxes
from adapter.store.queries.mailboxes import Folder
from adapter.transport.transport import Transport

_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Account:
    """The folders of an address that is registered now. A snapshot: ask again for each command."""

    address: str
    registration: str
    folders: Mapping[str, Folder]  # by name; identities are exact, counters those of when they were read
    subscriptions: frozenset[str]


class _Entry:
    __slots__ = ("account", "counted", "exact")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.exact = True  # nothing changed since the account was read
        self.counted = True  # nor did any message


class AccountCache:
    """All of it belongs to the loop's thread."""

    def __init__(self, transport: Transport, threads: Threads) -> None:
        self._transport = transport
        self._threads = threads
        self._accounts: OrderedDict[str, _Entry] = OrderedDict()  # by address, least recently used first
        self._addresses: dict[str, str] = {}  # of registrations in memory
        self._readings: list[set[str]] = []  # for each reading under way: registrations that changed meanwhile

    async def get(self, address: str, *, counted: bool = False) -> Account:
        """The account as it is now; with ``counted`` the counters of its folders are exact, too."""
        entry = self._accounts.get(address)
        if entry is not None and entry.exact and (entry.counted or not counted):
            self._accounts.move_to_end(address)
            return entry.account
        changed: set[str] = set()
        self._readings.append(changed)
        try:
            account = await self._threads.run(self._read, address)
            known = any(reading is changed for reading in self._readings)
        finally:
            self._readings = [reading for reading in self._readings if reading is not changed]
        if known and account.registration not in changed:
            self._keep(account)
        return account

    def note(self, effect: Effect) -> None:
        """A committed effect of any kind."""
        match effect:
            case effects.Project() | effects.Unproject() | effects.SetFlags():
                self._invalidate(effect.registration, self._addresses.get(effect.registration, ""), exact=True)
            case effects.CreateFolder() | effects.RenameFolder() | effects.RemoveFolder() | effects.Subscribe():
                self._invalidate(effect.registration, self._addresses.get(effect.registration, ""), exact=False)
            case effects.SetRegistration():
                self._invalidate(effect.registration, effect.address, exact=False)
            case (
                effects.AddContent()
                | effects.DropContent()
                | effects.RaiseUidFloor()
                | effects.Enqueue()
                | effects.Requeue()
                | effects.Dequeue()
                | effects.SetBookmarks()
                | effects.RequestDsn()
                | effects.MarkDamaged()
                | effects.ClearDamage()
                | effects.MarkLost()
                | effects.RestoreLost()
            ):
                pass  # no folder changes
            case _:
                assert_never(effect)

    def _invalidate(self, registration: str, address: str, *, exact: bool) -> None:
        """Counters are read again, and identities too unless they are still ``exact``."""
        for reading in self._readings:
            reading.add(registration)
        entry = self._accounts.get(address)
        if entry is not None:
            entry.counted = False
            entry.exact = entry.exact and exact

    def forget(self) -> None:
        """Nobody can tell what changed: all are read again."""
        self._accounts.clear()
        self._addresses.clear()
        self._readings = []

    def _keep(self, account: Account) -> None:
        self._drop(account.address)
        self._accounts[account.address] = _Entry(account)
        self._addresses[account.registration] = account.address
        if len(self._accounts) > _KEPT:
            self._drop(next(iter(self._accounts)))

    def _drop(self, address: str) -> None:
        entry = self._accounts.pop(address, None)
        if entry is not None:
            self._addresses.pop(entry.account.registration, None)

    def _read(self, address: str) -> Account:
        with self._transport.reading() as connection:
            registration = mailboxes.active_registration(connection, address)
            folders = mailboxes.folders(connection, registration.id)
            subscriptions = mailboxes.subscriptions(connection, registration.id)
        by_name = {folder.name: folder for folder in folders}
        return Account(address, registration.id, by_name, frozenset(subscriptions))
