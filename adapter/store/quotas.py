"""Mailbox quotas: limits from the settings, compared with the counters of the index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from adapter.store import names
from adapter.store.queries.mailboxes import Folder
from protocol.errors import MailError, Reason

if TYPE_CHECKING:
    from adapter.config.schema import OverQuota, Settings


class Quota(NamedTuple):
    """Limits of one account; 0: none."""

    storage: int = 0
    messages: int = 0
    over: OverQuota = "later"

    @property
    def limited(self) -> bool:
        return bool(self.storage or self.messages)

    @property
    def reason(self) -> Reason:
        """The reason reported to senders of mail that exceeds the quota."""
        return Reason.OVER_QUOTA_SOFT if self.over == "later" else Reason.OVER_QUOTA

    def holds(self, octets: int, messages: int) -> bool:
        """True if the usage is within the limits."""
        return not ((self.storage and octets > self.storage) or (self.messages and messages > self.messages))

    def has_room(self, folders: Sequence[Folder], size: int, messages: int = 1) -> bool:
        """True if so many more octets and messages fit."""
        used, count = usage(folders)
        return self.holds(used + size, count + messages)

    def check(self, folders: Sequence[Folder], size: int, messages: int) -> None:
        """Raise ``OVER_QUOTA`` if they do not fit."""
        if not self.has_room(folders, size, messages):
            raise MailError(Reason.OVER_QUOTA)


class Quotas:
    """Every account's limits. Raises MailError for an account that is not an address."""

    def __init__(self, settings: Settings) -> None:
        self._default = Quota(settings.quota.storage, settings.quota.messages, settings.quota.over)
        self._by_account: dict[str, Quota] = {}
        for address, account in settings.account.items():
            self._by_account[names.normalise_address(address)] = Quota(
                self._default.storage if account.storage is None else account.storage,
                self._default.messages if account.messages is None else account.messages,
                account.over or self._default.over,
            )

    def of(self, address: str) -> Quota:
        return self._by_account.get(address, self._default)


def usage(folders: Sequence[Folder]) -> tuple[int, int]:
    """Octets and messages in use."""
    return sum(folder.size for folder in folders), sum(folder.messages for folder in folders)
