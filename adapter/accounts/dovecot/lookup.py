"""Users who are kept elsewhere: in the passwd-file of a Dovecot, or behind the sockets of a running one.

A name without a domain stands for an address in the configured one. Where both are configured the file is asked first;
who is in it is not looked for anywhere else.

Invariant: trouble with a source is never an answer about a user.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from adapter.accounts.dovecot.auth_socket import AuthSocket, UnavailableError, UserdbSocket
from adapter.accounts.dovecot.passwd_file import PasswdFile, User
from adapter.config.schema import Dovecot
from adapter.store import names
from protocol.errors import MailError

_log = logging.getLogger(__name__)


#: Calls a function that takes its time, with its arguments, on a thread.
OnThread = Callable[..., Awaitable[bool]]


class Proven(NamedTuple):
    """The account somebody logged in to; ``lasting``: the same name and password will do so for a while."""

    account: str
    lasting: bool


class ForeignUsers:
    def __init__(self, settings: Dovecot) -> None:
        self._settings = Dovecot()
        self._file: PasswdFile | None = None
        self._auth: AuthSocket | None = None
        self._userdb: UserdbSocket | None = None
        self.apply(settings)

    @property
    def configured(self) -> bool:
        return bool(self._file or self._auth or self._userdb)

    @property
    def has_passwords(self) -> bool:
        return bool(self._file or self._auth)

    def apply(self, settings: Dovecot) -> None:
        """Go by these settings from now on; what is being asked gets its answer, or is asked again by the client."""
        if settings == self._settings:
            return
        self.close()
        self._settings = settings
        self._file = PasswdFile(settings.passwd_file, settings.scheme) if settings.passwd_file else None
        self._auth = AuthSocket(settings.auth_socket, settings.timeout) if settings.auth_socket else None
        self._userdb = UserdbSocket(settings.userdb_socket, settings.timeout) if settings.userdb_socket else None

    def close(self) -> None:
        """May be called from any thread."""
        for socket in (self._auth, self._userdb):
            if socket is not None:
                socket.close()

    # --- logins ----------------------------------------------------------------------------------------------------

    async def prove(self, name: str, password: str, peer: str, on_thread: OnThread) -> Proven | None:
        """Whose name and password this is; None: nobody's. Raises UnavailableError."""
        if self._file is not None:
            user = await self._in_file(self._file, name)
            if user is not None or self._auth is None:
                right = await on_thread(self._file.verify, user, password, peer)
                account = self._account(user.extra.get("user") or user.name) if user is not None else None
                return Proven(account, "allow_nets" not in user.extra) if right and user and account else None
        if self._auth is None:
            return None
        spelled = await self._auth.login(name, password, peer)
        account = self._account(spelled) if spelled is not None else None
        return Proven(account, lasting=False) if account is not None else None

    def mark(self, name: str) -> bytes:
        """What changes when the stored password does. Blocks."""
        try:
            user = self._find(self._file, name) if self._file is not None else None
        except OSError:
            return b""
        return hashlib.sha256(repr(user).encode("utf-8", "surrogateescape")).digest() if user is not None else b""

    # --- recipients ------------------------------------------------------------------------------------------------

    async def knows(self, address: str) -> bool:
        """Whether a normalised address is a user's. Raises UnavailableError."""
        if self._file is not None and await self._in_file(self._file, address) is not None:
            return True
        if self._userdb is None:
            return False
        return any([await self._userdb.knows(name) for name in self._names_of(address)])

    def domains(self) -> frozenset[str]:
        """Domains that are ours because of these users. Blocks."""
        own = frozenset({self._settings.domain.lower()} if self._settings.domain else ())
        try:
            return own | (self._file.domains() if self._file is not None else frozenset())
        except OSError as error:
            _log.error("the users cannot be read: %s", error)
            return own

    # --- names -----------------------------------------------------------------------------------------------------

    async def _in_file(self, file: PasswdFile, name: str) -> User | None:
        try:
            return await asyncio.to_thread(self._find, file, name)
        except OSError as error:
            raise UnavailableError(f"{file.path}: {error.strerror or error}") from None

    def _find(self, file: PasswdFile, name: str) -> User | None:
        return next((user for spelling in self._names_of(name) if (user := file.find(spelling)) is not None), None)

    def _names_of(self, address: str) -> list[str]:
        """How the file or Dovecot may call the user of an address; a name without a domain is only itself."""
        local, mark, domain = address.rpartition("@")
        return (
            [address, local]
            if mark and self._settings.domain and domain == self._settings.domain.lower()
            else [address]
        )

    def _account(self, name: str) -> str | None:
        if "@" not in name:
            if not self._settings.domain:
                _log.error("%r has no domain: set domain in [dovecot]", name[:200])
                return None
            name = f"{name}@{self._settings.domain}"
        try:
            return names.normalise_address(name)
        except MailError:
            _log.error("%r cannot be an address here", name[:200])
            return None
