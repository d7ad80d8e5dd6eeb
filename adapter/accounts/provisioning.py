"""Users who are kept elsewhere get an account when they first log in, or when the first mail comes for them.

Invariant: an address that was ever deactivated here stays so until somebody brings it back, whoever knows it elsewhere.
"""

from __future__ import annotations

import asyncio
import logging

from adapter.accounts.dovecot.auth_socket import UnavailableError
from adapter.accounts.dovecot.lookup import ForeignUsers
from adapter.accounts.recipients import Recipients
from adapter.config.schema import Settings
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from protocol.smtp.paths import Path

_log = logging.getLogger(__name__)


class Provisioner:
    def __init__(self, settings: Settings, transport: Transport, recipients: Recipients) -> None:
        self._transport = transport
        self._recipients = recipients
        self.users = ForeignUsers(settings.dovecot)
        recipients.know_domains(self.users.domains)

    def apply(self, settings: Settings) -> None:
        self.users.apply(settings.dovecot)

    def close(self) -> None:
        self.users.close()

    async def look_for(self, path: Path) -> None:
        """Give accounts to those a recipient stands for. Raises MailError if nobody can tell now."""
        if not self.users.configured:
            return
        for address in self._recipients.strangers(path):
            try:
                known = await self.users.knows(address)
            except UnavailableError as error:
                raise MailError(Reason.UNKNOWN, f"users cannot be looked up: {error}") from None
            if known:
                await self.welcome(address)

    async def welcome(self, account: str) -> bool:
        """Give a user an account unless there is one; whether it can be used. Raises MailError."""
        return await asyncio.to_thread(self._welcome, account)

    def _welcome(self, account: str) -> bool:
        self._recipients.refresh()
        if self._recipients.is_stranger(account):
            try:
                self._transport.run(op.Register(account))
                _log.info("%s is new here: registered", account)
            except MailError as error:
                if error.reason is not Reason.ADDRESS_EXISTS:
                    raise
            self._recipients.refresh()
        return self._recipients.is_active(account)
