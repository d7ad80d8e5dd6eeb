"""Provisioning: register an account for a user of an external user database, at the first login or the first mail.

Invariant: an address that was deactivated here stays inactive until the operator reactivates it, even if the external
database has it.
"""

from __future__ import annotations

import asyncio
import logging

from adapter.accounts.dovecot.auth_socket import UnavailableError
from adapter.accounts.dovecot.lookup import DovecotUsers
from adapter.accounts.recipients import Recipients
from adapter.config.schema import Settings
from adapter.store.effects import Actor
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from protocol.smtp.paths import Path

_log = logging.getLogger(__name__)


class Provisioner:
    """Registers users of the external database that the settings name."""

    def __init__(self, settings: Settings, transport: Transport, recipients: Recipients) -> None:
        self._transport = transport
        self._recipients = recipients
        self.users = DovecotUsers(settings.dovecot)
        recipients.add_domains(self.users.domains)

    def apply(self, settings: Settings) -> None:
        self.users.apply(settings.dovecot)

    def close(self) -> None:
        self.users.close()

    async def provision_recipient(self, path: Path) -> None:
        """Ensure the accounts that a recipient could be delivered to. Raises MailError if the database is down."""
        if not self.users.configured:
            return
        for address in self._recipients.unregistered_addresses(path):
            try:
                has_user = await self.users.has_user(address)
            except UnavailableError as error:
                raise MailError(Reason.UNKNOWN, f"the external user database is unavailable: {error}") from None
            if has_user:
                await self.ensure_account(address)

    async def ensure_account(self, account: str) -> bool:
        """Register a user who has no account; return whether the account is active. Raises MailError."""
        return await asyncio.to_thread(self._ensure_account, account)

    def _ensure_account(self, account: str) -> bool:
        self._recipients.refresh()
        if self._recipients.is_unregistered(account):
            try:
                self._transport.run(op.Register(account), Actor(account, "provisioning"))
                _log.info("provisioned account %s", account)
            except MailError as error:
                if error.reason is not Reason.ADDRESS_EXISTS:
                    raise
            self._recipients.refresh()
        return self._recipients.is_active(account)
