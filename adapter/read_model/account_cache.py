"""Account cache: the folders of addresses, their counters, and subscriptions.

Identities and subscriptions are read again after they changed, counters after any change of a message. A change only
marks what it makes stale, so a busy account costs nothing until the next read.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import assert_never

from adapter.read_model.interface import Account
from adapter.read_model.stored_messages import read_account
from adapter.read_model.thread_pool import ThreadPool
from adapter.store import effects
from adapter.store.effects import Effect
from adapter.store.queries import mailboxes
from adapter.transport.transport import Transport

_MAX_ACCOUNTS = 4096


class _Entry:
    __slots__ = ("account", "is_counted", "is_exact")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.is_exact = True  # identities and subscriptions are current
        self.is_counted = True  # counters are current


class AccountCache:
    """Used from the loop's thread alone."""

    def __init__(self, transport: Transport, threads: ThreadPool) -> None:
        self._transport = transport
        self._threads = threads
        self._accounts: OrderedDict[str, _Entry] = OrderedDict()  # by address, least recently used first
        self._addresses: dict[str, str] = {}  # of registrations in memory
        self._reads: list[set[str]] = []  # for each read under way: registrations that changed since it began

    async def get(self, address: str, *, counted: bool = False) -> Account:
        """Return the account as it is now; with ``counted`` the counters of its folders are exact, too."""
        entry = self._accounts.get(address)
        if entry is not None and entry.is_exact and (entry.is_counted or not counted):
            self._accounts.move_to_end(address)
            return entry.account
        changed: set[str] = set()
        self._reads.append(changed)
        try:
            account = await self._threads.run(self._read, address)
            was_followed = any(read is changed for read in self._reads)
        finally:
            self._reads = [read for read in self._reads if read is not changed]
        if was_followed and account.registration not in changed:
            self._add(account)
        return account

    def apply(self, effect: Effect) -> None:
        """Invalidate what a committed effect changes."""
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
        """Mark counters as stale, and identities unless they are still ``exact``."""
        for read in self._reads:
            read.add(registration)
        entry = self._accounts.get(address)
        if entry is not None:
            entry.is_counted = False
            entry.is_exact = entry.is_exact and exact

    def forget(self) -> None:
        """Drop everything: changes may have been missed."""
        self._accounts.clear()
        self._addresses.clear()
        self._reads = []

    def _add(self, account: Account) -> None:
        self._drop(account.address)
        self._accounts[account.address] = _Entry(account)
        self._addresses[account.registration] = account.address
        if len(self._accounts) > _MAX_ACCOUNTS:
            self._drop(next(iter(self._accounts)))

    def _drop(self, address: str) -> None:
        entry = self._accounts.pop(address, None)
        if entry is not None:
            self._addresses.pop(entry.account.registration, None)

    def _read(self, address: str) -> Account:
        with self._transport.reading() as connection:
            return read_account(connection, mailboxes.active_registration(connection, address))
