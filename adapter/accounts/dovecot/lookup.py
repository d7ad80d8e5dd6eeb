"""The users of an existing Dovecot: in its passwd-file, or behind the auth sockets of a running one.

A name without a domain is an address in the configured domain. If both sources are configured the file comes first; a
user of the file is not looked up on the sockets.

Invariant: an error of a source is never reported as an unknown user.
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


#: Calls a slow function with its arguments on a thread.
OnThread = Callable[..., Awaitable[bool]]


class VerifiedLogin(NamedTuple):
    """The account of a correct name and password; ``is_cacheable``: they stay correct for a while."""

    account: str
    is_cacheable: bool


class DovecotUsers:
    """The configured sources of users."""

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
        """Apply new settings; lookups in progress are answered, or fail temporarily."""
        if settings == self._settings:
            return
        self.close()
        self._settings = settings
        self._file = PasswdFile(settings.passwd_file, settings.scheme) if settings.passwd_file else None
        self._auth = AuthSocket(settings.auth_socket, settings.timeout) if settings.auth_socket else None
        self._userdb = UserdbSocket(settings.userdb_socket, settings.timeout) if settings.userdb_socket else None

    def close(self) -> None:
        """Close the sockets; thread-safe."""
        for socket in (self._auth, self._userdb):
            if socket is not None:
                socket.close()

    # --- logins ------------------------------------------------------------------------------------------------------

    async def verify(self, name: str, password: str, peer: str, on_thread: OnThread) -> VerifiedLogin | None:
        """Verify a name and password; None: unknown or wrong. Raises UnavailableError."""
        if self._file is not None:
            user = await self._find_in_file(self._file, name)
            if user is not None or self._auth is None:
                is_correct = await on_thread(self._file.verify, user, password, peer)
                account = self._account(user.extra.get("user") or user.name) if user is not None else None
                return (
                    VerifiedLogin(account, "allow_nets" not in user.extra) if is_correct and user and account else None
                )
        if self._auth is None:
            return None
        dovecot_name = await self._auth.login(name, password, peer)
        account = self._account(dovecot_name) if dovecot_name is not None else None
        return VerifiedLogin(account, is_cacheable=False) if account is not None else None

    def fingerprint(self, name: str) -> bytes:
        """Return a digest that changes with the stored password. Blocking."""
        try:
            user = self._find(self._file, name) if self._file is not None else None
        except OSError:
            return b""
        return hashlib.sha256(repr(user).encode("utf-8", "surrogateescape")).digest() if user is not None else b""

    # --- recipients --------------------------------------------------------------------------------------------------

    async def has_user(self, address: str) -> bool:
        """Return whether a normalised address belongs to a user. Raises UnavailableError."""
        if self._file is not None and await self._find_in_file(self._file, address) is not None:
            return True
        if self._userdb is None:
            return False
        return any([await self._userdb.has_user(name) for name in self._names_of(address)])

    def domains(self) -> frozenset[str]:
        """Return the domains of these users. Blocking."""
        own = frozenset({self._settings.domain.lower()} if self._settings.domain else ())
        try:
            return own | (self._file.domains() if self._file is not None else frozenset())
        except OSError as error:
            _log.error("Dovecot users: cannot be read (%s); using only the configured domain", error)
            return own

    # --- names -------------------------------------------------------------------------------------------------------

    async def _find_in_file(self, file: PasswdFile, name: str) -> User | None:
        try:
            return await asyncio.to_thread(self._find, file, name)
        except OSError as error:
            raise UnavailableError(f"{file.path}: {error.strerror or error}") from None

    def _find(self, file: PasswdFile, name: str) -> User | None:
        return next((user for spelling in self._names_of(name) if (user := file.find(spelling)) is not None), None)

    def _names_of(self, address: str) -> list[str]:
        """Return the names that an address may have in the file or in Dovecot."""
        local, at_sign, domain = address.rpartition("@")
        return (
            [address, local]
            if at_sign and self._settings.domain and domain == self._settings.domain.lower()
            else [address]
        )

    def _account(self, name: str) -> str | None:
        if "@" not in name:
            if not self._settings.domain:
                _log.error("Dovecot user %r has no domain: set domain in [dovecot]", name[:200])
                return None
            name = f"{name}@{self._settings.domain}"
        try:
            return names.normalise_address(name)
        except MailError:
            _log.error("Dovecot user %r: not a valid address", name[:200])
            return None
