"""Resolve an address: local domains, exact addresses, aliases, ``+detail``, catch-all, and the quota.

The registered addresses are kept in memory and reloaded when the change feed reports a registration, so RCPT costs no
query. Before an address is refused the feed catches up; an address deactivated a moment ago is noticed when the message
is committed.

Invariants: an address resolves to each mailbox at most once; aliases may lead to aliases, and cycles are harmless; an
unknown address, a deactivated one and one of a remote domain are different results.
"""

from __future__ import annotations

import functools
import logging
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from adapter.config.loader import ConfigError
from adapter.config.schema import Settings
from adapter.store import names
from adapter.store.effects import SetRegistration
from adapter.store.journal import Record
from adapter.store.queries import mailboxes
from adapter.store.quotas import Quota, Quotas
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from protocol.idna import to_ascii, to_unicode
from protocol.smtp.paths import Path

_log = logging.getLogger(__name__)

_CATCH_UP_SECONDS = 5.0


class Target(NamedTuple):
    """A mailbox, and the folder to deliver to; None: the inbox."""

    address: str
    folder: str | None = None


@functools.lru_cache(8192)
def _normalise(address: str) -> str | None:
    try:
        return names.normalise_address(address)
    except MailError:
        return None


class Recipients:
    """Answers from memory; methods that query the index are marked as blocking."""

    def __init__(self, settings: Settings, transport: Transport) -> None:
        self._transport = transport
        self._read_lock = threading.Lock()
        self._is_stale = True  # the registrations have changed since the last read
        self._active_by_address: dict[str, bool] = {}  # of every registered address
        self._by_age: list[str] = []  # active addresses, the oldest first
        self._domains: frozenset[str] = frozenset()
        self._list_external_domains: Callable[[], frozenset[str]] = frozenset
        self._external_domains: frozenset[str] = frozenset()
        self._rules = _Rules(settings)
        transport.changes.subscribe(self._on_records, None, self._on_gap)  # until the store is closed
        self.refresh()

    def add_domains(self, list_domains: Callable[[], frozenset[str]]) -> None:
        """Treat the domains of an external user database as local; ``list_domains`` may block. Blocking."""
        self._list_external_domains = list_domains
        self.refresh()

    def apply(self, settings: Settings) -> None:
        """Apply new settings. Raises ConfigError."""
        self._rules = _Rules(settings)
        self._domains = self._domains_of(self._active_by_address)

    def _domains_of(self, addresses: Iterable[str]) -> frozenset[str]:
        return frozenset(
            {address.rpartition("@")[2] for address in addresses} | self._rules.domains | self._external_domains
        )

    # --- the registered addresses ------------------------------------------------------------------------------------

    def _on_records(self, records: list[Record]) -> None:
        """Runs on the thread of the change feed."""
        if any(isinstance(effect, SetRegistration) for record in records for effect in record.effects):
            self._is_stale = True

    def _on_gap(self, after: int, upto: int) -> None:
        self._is_stale = True

    def refresh(self) -> None:
        """Reload the registrations if they have changed. Blocking."""
        external = self._list_external_domains()
        if external != self._external_domains:
            self._external_domains = external
            self._domains = self._domains_of(self._active_by_address)
        is_current = self._transport.changes.catch_up(_CATCH_UP_SECONDS)
        # A caller that arrives during a read waits for it: the flag is cleared before the result is there.
        with self._read_lock:
            if not is_current or self._is_stale:
                self._read()

    def _read(self) -> None:
        self._is_stale = False  # before the read, so that a concurrent change sets it again
        try:
            with self._transport.reading() as connection:
                registrations = mailboxes.registrations(connection)
        except BaseException:
            self._is_stale = True
            raise
        is_active: dict[str, bool] = {}
        for each in registrations:
            if each.status in ("active", "inactive"):
                is_active[each.address] = is_active.get(each.address, False) or each.status == "active"
        active = [each for each in registrations if each.status == "active"]
        self._by_age = [each.address for each in sorted(active, key=lambda each: (each.created_at, each.address))]
        self._active_by_address = is_active
        self._domains = self._domains_of(is_active)

    def is_active(self, address: str) -> bool:
        """Return whether the index has an active registration of a normalised address. Blocking."""
        with self._transport.reading() as connection:
            try:
                mailboxes.active_registration(connection, address)
            except MailError:
                return False
        return True

    # --- resolution --------------------------------------------------------------------------------------------------

    def is_local(self, domain: str) -> bool:
        return domain in self._domains

    def resolve(self, path: Path) -> tuple[Target, ...] | None:
        """Return the mailboxes of an address; None if its domain is remote.

        Raises ``NO_SUCH_ADDRESS``, ``INACTIVE_ADDRESS`` or ``BAD_ADDRESS``.
        """
        address = self._address_of(path)
        if not self.is_local(address.rpartition("@")[2]):
            return None
        targets: dict[str, Target] = {}
        for target in self._resolve(address, path.local):
            targets.setdefault(target.address, target)
        if targets:
            return tuple(targets.values())
        raise MailError(Reason.INACTIVE_ADDRESS if self._leads_to_mailbox(address) else Reason.NO_SUCH_ADDRESS, address)

    def is_certain(self, path: Path) -> bool:
        """Return whether a registration made a moment ago cannot change the result: memory has this exact address."""
        return bool(self._active_by_address.get(self._address_of(path)))

    def resolve_fresh(self, path: Path) -> tuple[Target, ...] | None:
        """Resolve after a refresh, for addresses registered a moment ago. Blocking."""
        self.refresh()
        return self.resolve(path)

    def is_unregistered(self, address: str) -> bool:
        """Return whether a normalised address has no registration, active or inactive."""
        return address not in self._active_by_address

    def unregistered_addresses(self, path: Path) -> list[str]:
        """Return the local addresses without registration that a recipient could resolve to."""
        try:
            address = self._address_of(path)
        except MailError:
            return []
        return [
            name
            for name in self._rules.names_of(address, self._active_by_address)
            if self.is_unregistered(name) and name not in self._rules.aliases and self.is_local(name.rpartition("@")[2])
        ]

    def owns(self, account: str, address: str) -> bool:
        """Return whether mail for ``address`` is delivered to ``account``, which may therefore send as that address."""
        normalised = _normalise(address)
        return normalised is not None and any(
            target.address == account for target in self._named(self._with_local_domain(normalised), "")
        )

    def _address_of(self, path: Path) -> str:
        if not path.domain:  # RFC 5321 4.5.1: <postmaster>
            return self._postmaster()
        address = _normalise(path.address)
        if address is None:
            raise MailError(Reason.BAD_ADDRESS, "not an address that can be registered here")
        return self._with_local_domain(address)

    def _with_local_domain(self, address: str) -> str:
        """Use the local form of an international domain: its U-label and A-label are equal (RFC 5890 2.3.2.1)."""
        name, _, domain = address.rpartition("@")
        if (domain.isascii() and "xn--" not in domain) or self.is_local(domain):
            return address
        try:
            other = to_unicode(domain) if domain.isascii() else to_ascii(domain)
        except UnicodeError:
            return address
        return _normalise(f"{name}@{other}") or address if self.is_local(other.lower()) else address

    def _postmaster(self) -> str:
        """Return the configured address, else a postmaster of a local domain, else the first account."""
        of_domains = [f"postmaster@{domain}" for domain in sorted(self._domains)]
        for address in filter(None, [self._rules.postmaster, *of_domains, *self._by_age[:1]]):
            if any(self._named(address, "postmaster")):
                return address
        raise MailError(Reason.NO_SUCH_ADDRESS, "postmaster")

    def _resolve(self, address: str, local: str) -> Iterator[Target]:
        targets = list(self._named(address, local))
        name, _, domain = address.rpartition("@")
        fallbacks: list[str | None] = []
        if name == "postmaster":  # RFC 5321 4.5.1: every domain has one, even where its mailbox was deactivated
            fallbacks = [self._rules.postmaster, self._rules.catch_all.get(domain), self._first_account(domain)]
        elif not self._leads_to_mailbox(address):
            fallbacks = [self._rules.catch_all.get(domain)]
        for other in filter(None, fallbacks):
            targets = targets or list(self._named(other, other.rpartition("@")[0]))
        return iter(targets)

    def _first_account(self, domain: str) -> str | None:
        """Return the oldest active account of the domain, else of the store."""
        of_domain = (address for address in self._by_age if address.rpartition("@")[2] == domain)
        return next(of_domain, None) or next(iter(self._by_age), None)

    def _leads_to_mailbox(self, address: str) -> bool:
        """Return whether an address is, or leads to, that of a mailbox."""
        return any(name in self._active_by_address for name in self._rules.names_of(address, self._active_by_address))

    def _named(self, address: str, local: str) -> Iterator[Target]:
        """Resolve by exact address, else alias, else without the detail; ``local`` has the original spelling of it."""
        if self._active_by_address.get(address):
            yield Target(address)
            return
        separator = self._rules.detail
        original = local.partition(separator)[2] if separator and address not in self._rules.aliases else ""
        for name, detail in self._rules.names_of(address, self._active_by_address).items():
            if self._active_by_address.get(name):
                yield self._with_detail(Target(name), original if original.lower() == detail else detail)
            elif address in self._rules.aliases and not self.is_local(name.rpartition("@")[2]):
                _log.warning("alias %s: member %s is in a remote domain; not delivered to it", address, name)

    def _with_detail(self, target: Target, detail: str) -> Target:
        account = self._rules.accounts.get(target.address)
        if not detail or account is None or not account.detail_folders:
            return target
        try:
            return Target(target.address, names.normalise_folder(detail))
        except MailError:
            return target

    # --- queries -----------------------------------------------------------------------------------------------------

    def needs_query(self, target: Target) -> bool:
        """Return whether :meth:`check` is needed for a target."""
        return target.folder is not None or self.quota(target.address).limited

    def check(self, target: Target, size: int) -> Target:
        """Return the target with the stored spelling of its folder. Raises if it has no room for ``size``. Blocking."""
        quota = self.quota(target.address)
        with self._transport.reading() as connection:
            registration = mailboxes.active_registration(connection, target.address)
            folders = mailboxes.folders(connection, registration.id)
        if not quota.has_room(folders, size):
            raise MailError(quota.reason, target.address)
        if target.folder is None:
            return target
        key = _fold(target.folder)
        matches = [folder.name for folder in folders if _fold(folder.name) == key]
        exact = target.folder if target.folder in matches else next(iter(matches), None)
        return Target(target.address, exact)

    def quota(self, address: str) -> Quota:
        """Return the quota of a mailbox."""
        return self._rules.quotas.of(address)

    def adds_html(self, account: str) -> bool:
        """Return whether Markdown submitted by this account gets an HTML alternative."""
        settings = self._rules.accounts.get(account)
        return settings is not None and settings.html_alternative


class _Rules:
    """The address settings. Raises ConfigError. Replaced as a whole, so that no caller sees a mixture."""

    def __init__(self, settings: Settings) -> None:
        self.aliases = {
            _validated(alias, "aliases"): tuple(_validated(member, "aliases") for member in members)
            for alias, members in settings.aliases.items()
        }
        self.catch_all = {
            domain.lower(): _validated(address, "domains.catch_all")
            for domain, address in settings.domains.catch_all.items()
        }
        #: Local whether or not an account is registered in them.
        self.domains = {domain.lower() for domain in settings.domains.local} | set(self.catch_all)
        self.domains |= {alias.rpartition("@")[2] for alias in self.aliases}
        self.postmaster = _validated(settings.domains.postmaster, "domains") if settings.domains.postmaster else None
        self.accounts = {_validated(address, "account"): account for address, account in settings.account.items()}
        self.detail = settings.domains.detail
        self.quotas = Quotas(settings)

    def names_of(self, address: str, is_active: Mapping[str, bool]) -> dict[str, str]:
        """Return the address and all that it leads to by alias or without its detail, each once; with the last detail.

        An address with an active mailbox leads no further.
        """
        details: dict[str, str] = {}
        pending = [(address, "")]
        while pending:
            name, detail = pending.pop()
            if name in details:
                continue
            details[name] = detail
            if is_active.get(name):
                continue
            if name in self.aliases:
                pending += reversed([(member, "") for member in self.aliases[name]])
            elif (parts := self._without_detail(name)) is not None:
                pending.append(parts)
        return details

    def _without_detail(self, address: str) -> tuple[str, str] | None:
        """Split off the detail: the base address and the detail, or None without one."""
        name, _, domain = address.rpartition("@")
        base, separator, detail = name.partition(self.detail) if self.detail else ("", "", "")
        return (f"{base}@{domain}", detail) if base and separator and domain else None


def _fold(folder: str) -> str:
    return unicodedata.normalize("NFC", folder).casefold()


def _validated(address: str, where: str) -> str:
    normalised = _normalise(address)
    if normalised is None:
        raise ConfigError(f"{where}: {address!r} is not an address")
    return normalised
