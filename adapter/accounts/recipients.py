"""Who an address is: local domains, exact addresses, aliases, ``+detail``, catch-all, and whether there is room.

The registered addresses are kept in memory and read again after a change of theirs, of which the change feed tells; so
RCPT costs no query. Before an address is refused the feed is asked to catch up; an address that was deactivated a
moment ago is noticed when the message is committed.

Invariants: an address leads to each mailbox once at most; aliases may point to aliases but never go round in circles;
an address nobody has is told from one that is deactivated and from one of a domain that is not ours.
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

_PATIENCE_SECONDS = 5.0


class Target(NamedTuple):
    """A mailbox, and the folder wanted in it; None: the inbox."""

    address: str
    folder: str | None = None


@functools.lru_cache(8192)
def _normalise(address: str) -> str | None:
    try:
        return names.normalise_address(address)
    except MailError:
        return None


class Recipients:
    """Questions are answered from memory unless they say that they block."""

    def __init__(self, settings: Settings, transport: Transport) -> None:
        self._transport = transport
        self._reading = threading.Lock()
        self._is_stale = True  # the registrations changed since they were read
        self._known: dict[str, bool] = {}  # registered address -> active
        self._by_age: list[str] = []  # the active ones, the oldest first
        self._domains: frozenset[str] = frozenset()
        self._more_domains: Callable[[], frozenset[str]] = frozenset
        self._foreign_domains: frozenset[str] = frozenset()
        self._rules = _Rules(settings)
        transport.changes.subscribe(self._heard, None, self._missed)  # ends with the store
        self.refresh()

    def know_domains(self, of_users: Callable[[], frozenset[str]]) -> None:
        """Domains of users kept elsewhere are ours as well; ``of_users`` may block. Blocks."""
        self._more_domains = of_users
        self.refresh()

    def apply(self, settings: Settings) -> None:
        """Go by these settings from now on. Raises ConfigError."""
        self._rules = _Rules(settings)
        self._domains = self._domains_of(self._known)

    def _domains_of(self, known: Iterable[str]) -> frozenset[str]:
        return frozenset(
            {address.rpartition("@")[2] for address in known} | self._rules.domains | self._foreign_domains
        )

    # --- the registered addresses ----------------------------------------------------------------------------------

    def _heard(self, records: list[Record]) -> None:
        """On the feed's thread."""
        if any(isinstance(effect, SetRegistration) for record in records for effect in record.effects):
            self._is_stale = True

    def _missed(self, after: int, upto: int) -> None:
        self._is_stale = True

    def refresh(self) -> None:
        """Read the registrations again, if there was a change. Blocks."""
        foreign = self._more_domains()
        if foreign != self._foreign_domains:
            self._foreign_domains = foreign
            self._domains = self._domains_of(self._known)
        is_current = self._transport.changes.catch_up(_PATIENCE_SECONDS)
        # A caller that arrives during a read waits for it: nothing is stale any more, but the result is not there yet.
        with self._reading:
            if not is_current or self._is_stale:
                self._read()

    def _read(self) -> None:
        self._is_stale = False  # before the reading: a change that comes now counts
        try:
            with self._transport.reading() as connection:
                found = mailboxes.registrations(connection)
        except BaseException:
            self._is_stale = True
            raise
        known: dict[str, bool] = {}
        for registration in found:
            if registration.status in ("active", "inactive"):
                known[registration.address] = known.get(registration.address, False) or registration.status == "active"
        active = [registration for registration in found if registration.status == "active"]
        self._by_age = [each.address for each in sorted(active, key=lambda each: (each.created_at, each.address))]
        self._known = known
        self._domains = self._domains_of(known)

    def is_active(self, address: str) -> bool:
        """Whether a normalised address is registered and active, by the index itself. Blocks."""
        with self._transport.reading() as connection:
            try:
                mailboxes.active_registration(connection, address)
            except MailError:
                return False
        return True

    # --- who an address is -----------------------------------------------------------------------------------------

    def is_local(self, domain: str) -> bool:
        return domain in self._domains

    def find(self, path: Path) -> tuple[Target, ...] | None:
        """The mailboxes an address stands for; None if its domain is not ours.

        Raises ``NO_SUCH_ADDRESS``, ``INACTIVE_ADDRESS`` or ``BAD_ADDRESS``.
        """
        address = self._spelled(path)
        if not self.is_local(address.rpartition("@")[2]):
            return None
        targets: dict[str, Target] = {}
        for target in self._resolve(address, path.local):
            targets.setdefault(target.address, target)
        if targets:
            return tuple(targets.values())
        raise MailError(Reason.INACTIVE_ADDRESS if self._was_known(address) else Reason.NO_SUCH_ADDRESS, address)

    def is_certain(self, path: Path) -> bool:
        """Whether nobody who registered a moment ago could get this mail instead: memory knows this very address."""
        return bool(self._known.get(self._spelled(path)))

    def find_again(self, path: Path) -> tuple[Target, ...] | None:
        """The same by the index itself, for addresses registered a moment ago. Blocks."""
        self.refresh()
        return self.find(path)

    def is_stranger(self, address: str) -> bool:
        """Whether nobody has, or had until it was deactivated, this normalised address."""
        return address not in self._known

    def strangers(self, path: Path) -> list[str]:
        """Addresses of ours that a recipient could stand for if somebody had them."""
        try:
            address = self._spelled(path)
        except MailError:
            return []
        return [
            name
            for name in self._rules.names_of(address, self._known)
            if self.is_stranger(name) and name not in self._rules.aliases and self.is_local(name.rpartition("@")[2])
        ]

    def owns(self, account: str, address: str) -> bool:
        """Whether mail for ``address`` comes to ``account`` by name, so that it may speak under it."""
        spelled = _normalise(address)
        return spelled is not None and any(
            target.address == account for target in self._named(self._in_our_form(spelled), "")
        )

    def _spelled(self, path: Path) -> str:
        if not path.domain:  # RFC 5321 4.5.1: <postmaster>
            return self._postmaster()
        address = _normalise(path.address)
        if address is None:
            raise MailError(Reason.BAD_ADDRESS, "a recipient that cannot be an address here")
        return self._in_our_form(address)

    def _in_our_form(self, address: str) -> str:
        """RFC 5890 2.3.2.1: the two forms of an international domain are one domain; ours may be either."""
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
        found = list(self._named(address, local))
        name, _, domain = address.rpartition("@")
        others: list[str | None] = []
        if name == "postmaster":  # RFC 5321 4.5.1: every domain has one, even where its mailbox was deactivated
            others = [self._rules.postmaster, self._rules.catch_all.get(domain), self._first_account(domain)]
        elif not self._was_known(address):
            others = [self._rules.catch_all.get(domain)]
        for other in filter(None, others):
            found = found or list(self._named(other, other.rpartition("@")[0]))
        return iter(found)

    def _first_account(self, domain: str) -> str | None:
        """Return the oldest active account of the domain, else of the store."""
        of_domain = (address for address in self._by_age if address.rpartition("@")[2] == domain)
        return next(of_domain, None) or next(iter(self._by_age), None)

    def _was_known(self, address: str) -> bool:
        """Whether it is, or leads to, the address of a mailbox."""
        return any(name in self._known for name in self._rules.names_of(address, self._known))

    def _named(self, address: str, local: str) -> Iterator[Target]:
        """By exact address, else by alias, else without the detail. ``local`` keeps the spelling of the detail."""
        if self._known.get(address):
            yield Target(address)
            return
        separator = self._rules.detail
        spelled = local.partition(separator)[2] if separator and address not in self._rules.aliases else ""
        for name, detail in self._rules.names_of(address, self._known).items():
            if self._known.get(name):
                yield self._with_detail(Target(name), spelled if spelled.lower() == detail else detail)
            elif address in self._rules.aliases and not self.is_local(name.rpartition("@")[2]):
                _log.warning("%s gets nothing by the alias %s: mail is not passed on to other domains", name, address)

    def _with_detail(self, target: Target, detail: str) -> Target:
        account = self._rules.accounts.get(target.address)
        if not detail or account is None or not account.detail_folders:
            return target
        try:
            return Target(target.address, names.normalise_folder(detail))
        except MailError:
            return target

    # --- what needs a query ----------------------------------------------------------------------------------------

    def needs_query(self, target: Target) -> bool:
        """Whether :meth:`check` has anything to look at."""
        return target.folder is not None or self.quota(target.address).limited

    def check(self, target: Target, size: int) -> Target:
        """The target with its folder as it is really spelled. Raises if ``size`` more octets have no room. Blocks."""
        quota = self.quota(target.address)
        with self._transport.reading() as connection:
            registration = mailboxes.active_registration(connection, target.address)
            folders = mailboxes.folders(connection, registration.id)
        if not quota.has_room(folders, size):
            raise MailError(quota.reason, target.address)
        if target.folder is None:
            return target
        wanted = _folded(target.folder)
        spelled = [folder.name for folder in folders if _folded(folder.name) == wanted]
        exact = target.folder if target.folder in spelled else next(iter(spelled), None)
        return Target(target.address, exact)

    def quota(self, address: str) -> Quota:
        """What a mailbox may hold."""
        return self._rules.quotas.of(address)

    def wants_html(self, account: str) -> bool:
        """Whether Markdown this account submits gains an HTML alternative."""
        chosen = self._rules.accounts.get(account)
        return chosen is not None and chosen.html_alternative


class _Rules:
    """What the settings say of addresses. Raises ConfigError. Replaced whole, so that no question sees half of it."""

    def __init__(self, settings: Settings) -> None:
        self.aliases = {
            _checked(alias, "aliases"): tuple(_checked(member, "aliases") for member in members)
            for alias, members in settings.aliases.items()
        }
        self.catch_all = {
            domain.lower(): _checked(address, "domains.catch_all")
            for domain, address in settings.domains.catch_all.items()
        }
        #: Those that are ours whoever is registered.
        self.domains = {domain.lower() for domain in settings.domains.local} | set(self.catch_all)
        self.domains |= {alias.rpartition("@")[2] for alias in self.aliases}
        self.postmaster = _checked(settings.domains.postmaster, "domains") if settings.domains.postmaster else None
        self.accounts = {_checked(address, "account"): account for address, account in settings.account.items()}
        self.detail = settings.domains.detail
        self.quotas = Quotas(settings)

    def names_of(self, address: str, known: Mapping[str, bool]) -> dict[str, str]:
        """The address and all that it leads to, by alias or without its detail, each once however they are nested;
        with the detail that was taken off last.

        One that has a mailbox, which is what ``known`` says, leads no further.
        """
        found: dict[str, str] = {}
        waiting = [(address, "")]
        while waiting:
            name, detail = waiting.pop()
            if name in found:
                continue
            found[name] = detail
            if known.get(name):
                continue
            if name in self.aliases:
                waiting += reversed([(member, "") for member in self.aliases[name]])
            elif (parts := self._without_detail(name)) is not None:
                waiting.append(parts)
        return found

    def _without_detail(self, address: str) -> tuple[str, str] | None:
        """The address that a detail was added to, and that; None if there is none."""
        name, _, domain = address.rpartition("@")
        base, separator, detail = name.partition(self.detail) if self.detail else ("", "", "")
        return (f"{base}@{domain}", detail) if base and separator and domain else None


def _folded(folder: str) -> str:
    return unicodedata.normalize("NFC", folder).casefold()


def _checked(address: str, where: str) -> str:
    normalised = _normalise(address)
    if normalised is None:
        raise ConfigError(f"{where}: {address!r} is not an address")
    return normalised
