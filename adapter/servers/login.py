"""Logging in, for SMTP and IMAP alike: SASL exchanges driven to their end, passwords hashed off the event loop.

Invariants: nothing tells a wrong password from an unknown or inactive address, in words or in time; the cache of proven
logins holds no password, only a keyed digest that a changed password no longer matches; a proven login is never
delayed, so nobody can lock out a user who has just logged in.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from adapter.accounts import SCRAM_ITERATIONS
from adapter.metrics import LOGINS
from adapter.servers import networks
from adapter.servers.networks import Networks, Peer
from adapter.servers.shared_counts import SharedCounts
from adapter.servers.throttle import Attempt, Throttle
from adapter.servers.tokens import TokenCheck, TokenCheckFailedError
from adapter.settings import Settings
from adapter.store import names
from adapter.users.auth_socket import UnavailableError
from adapter.users.newcomers import Newcomers
from protocol import sasl
from protocol.errors import MailError
from protocol.sasl import Failure, Success, Trouble
from protocol.scram_keys import ScramKeys

_log = logging.getLogger(__name__)

_MAX_PROVEN = 10_000
_SCRAM = "SCRAM-SHA-256"
_TOKEN_MECHANISMS = ("OAUTHBEARER", "XOAUTH2")

#: Sends a challenge and returns the client's answer, decoded, or why there is none.
Ask = Callable[[bytes], Awaitable[bytes | Failure]]


class PasswordSource(Protocol):
    def knows(self, address: str) -> bool: ...

    def verify(self, address: str, password: str) -> bool: ...

    def scram(self, address: str) -> ScramKeys | None: ...


class _Checked(NamedTuple):
    """The account of a name and password that are right; ``lasting``: they are so for a while."""

    account: str
    lasting: bool


class Authenticator:
    """``is_active`` may block: it is asked on a thread."""

    def __init__(
        self,
        settings: Settings,
        passwords: PasswordSource,
        is_active: Callable[[str], bool],
        counts: SharedCounts | None = None,
        newcomers: Newcomers | None = None,
    ) -> None:
        self._passwords = passwords
        self._is_active = is_active
        self._newcomers = newcomers
        counts = counts or SharedCounts()
        self._throttle = Throttle(settings.login, counts=counts)
        self._secret = counts.secret
        self._proven: dict[bytes, tuple[float, str]] = {}  # digest -> when it expires and the account, the oldest first
        self._asked: dict[bytes, asyncio.Task[_Checked | Failure]] = {}  # digest -> the check under way
        self._pool = ThreadPoolExecutor(settings.login.threads, thread_name_prefix="markpost-login")
        self.apply(settings)

    def apply(self, settings: Settings) -> None:
        """Go by these settings from now on; who is known to guess stays known. Raises ConfigError."""
        self._exempt = Networks(settings.limits.exempt)
        self._tokens = TokenCheck(settings.login)
        self._settings = settings.login
        self._throttle.apply(settings.login)
        wanted = [name.upper() for name in settings.login.mechanisms]
        if self._elsewhere is not None:  # what is kept of passwords there is not what this mechanism needs
            wanted = [name for name in wanted if name != _SCRAM]
        if self._tokens.configured:
            wanted += [name for name in _TOKEN_MECHANISMS if name not in wanted]
        else:
            wanted = [name for name in wanted if name not in _TOKEN_MECHANISMS]
        #: What can be offered, the preferred first.
        self.mechanisms = tuple(name for name in wanted if name in sasl.MECHANISMS)

    @property
    def _elsewhere(self) -> Newcomers | None:
        """Whom to ask about those who have no password here."""
        return self._newcomers if self._newcomers is not None and self._newcomers.users.has_passwords else None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def authenticate(
        self, mechanism: str, initial: bytes | None, ask: Ask, peer: Peer
    ) -> Success | Failure | None:
        """Drive one exchange to its end; ``Success.user`` is the account. None: no such mechanism."""
        if mechanism.upper() not in self.mechanisms:
            return None
        config = sasl.Config(os.urandom(18).hex(), self._secret, SCRAM_ITERATIONS)
        exchange = sasl.start(mechanism, config)
        if exchange is None:
            return None
        driver = _Driver(self, exchange, ask, peer)
        try:
            outcome = await driver.run(initial)
        finally:
            driver.close()
        if isinstance(outcome, Success):
            LOGINS.of("success").add()
            _log.info("%s logged in as %s by %s", peer, outcome.user, mechanism)
        else:
            LOGINS.of(outcome.trouble.name.lower()).add()
            _log.warning("%s login failed by %s: %s", peer, mechanism, outcome.trouble.name.lower())
        return outcome

    async def check_password(self, user: str, password: str, peer: Peer) -> Success | Failure:
        """A user name and password given outside of SASL; ``Success.user`` is the account."""
        with self.attempt(user, peer) as attempt:
            outcome = await self.prove(user, password, peer, attempt)
        if isinstance(outcome, Success):
            LOGINS.of("success").add()
            _log.info("%s logged in as %s", peer, outcome.user)
        else:
            LOGINS.of(outcome.trouble.name.lower()).add()
            _log.warning("%s login failed: %s", peer, outcome.trouble.name.lower())
        return outcome

    # --- for exchanges ---------------------------------------------------------------------------------------------

    def attempt(self, user: str, peer: Peer) -> Attempt:
        keys = [] if peer.address in self._exempt else [f"peer {networks.group(peer.address)}"]
        if not user:  # a token says whose it is: those who name nobody are not one user
            return self._throttle.attempt(*keys)
        owner = f"user {_account(user) or user}"
        return self._throttle.attempt(owner, *keys, forgiven=owner)

    async def prove(self, user: str, password: str, peer: Peer, attempt: Attempt) -> Success | Failure:
        digest = await asyncio.to_thread(self._digest, user, password)
        until, account = self._proven.get(digest, (0.0, ""))
        if until > time.monotonic():
            return await self.settle(account, attempt)
        # A client that opens five connections at once asks the same question five times: one answer is for all.
        asked = self._asked.get(digest)
        if asked is None:
            if len(self._asked) >= self._settings.waiting:
                return Failure(Trouble.UNAVAILABLE)
            asked = self._asked[digest] = asyncio.create_task(self._verify(user, password, peer, attempt.delay))
            asked.add_done_callback(lambda _: self._asked.pop(digest))
        checked = await asyncio.shield(asked)
        if isinstance(checked, Failure):
            if checked.trouble is Trouble.REFUSED:
                attempt.failed = True
            return checked
        outcome = await self.settle(checked.account, attempt)
        if isinstance(outcome, Success) and checked.lasting:
            self._remember(digest, checked.account)
        return outcome

    async def _verify(self, user: str, password: str, peer: Peer, delay: float) -> _Checked | Failure:
        """Whose name and password this is, or why there is no answer."""
        await asyncio.sleep(delay)
        loop = asyncio.get_running_loop()
        elsewhere = self._elsewhere
        try:
            if elsewhere is not None and not await asyncio.to_thread(self._passwords.knows, user):
                return await self._verify_elsewhere(elsewhere, user, password, peer)
            right = await loop.run_in_executor(self._pool, self._passwords.verify, user, password)
        except OSError as error:
            _log.error("the credentials cannot be read: %s", error.strerror)
            return Failure(Trouble.UNAVAILABLE)
        account = _account(user)
        return _Checked(account, lasting=True) if right and account else Failure(Trouble.REFUSED)

    async def _verify_elsewhere(self, newcomers: Newcomers, user: str, password: str, peer: Peer) -> _Checked | Failure:
        try:
            proven = await newcomers.users.prove(user, password, peer.address, self._pool)
            if proven is None:
                return Failure(Trouble.REFUSED)
            await newcomers.welcome(proven.account)
        except (UnavailableError, MailError) as error:
            _log.error("%s cannot log in now: %s", peer, error)
            return Failure(Trouble.UNAVAILABLE)
        return _Checked(proven.account, proven.lasting)

    async def keys(self, user: str, attempt: Attempt) -> ScramKeys | None:
        """Raises OSError if the credentials cannot be read."""
        await asyncio.sleep(attempt.delay)
        return await asyncio.to_thread(self._passwords.scram, user)

    async def token_owner(self, user: str, token: str, attempt: Attempt) -> str | None:
        """Raises TokenCheckFailedError."""
        await asyncio.sleep(attempt.delay)
        return await self._tokens.owner(token, user)

    async def settle(self, user: str, attempt: Attempt) -> Success | Failure:
        """The proof is good; it counts if the account can be used."""
        account = _account(user)
        attempt.failed = account is None or not await asyncio.to_thread(self._is_active, account)
        if account is None or attempt.failed:
            return Failure(Trouble.REFUSED)
        return Success(account)

    def _digest(self, user: str, password: str) -> bytes:
        try:
            keys = self._passwords.scram(user)
        except OSError:
            keys = None
        # The salt changes with the password: what was proven for another password matches no more.
        salt = keys.salt if keys else self._elsewhere.users.mark(user) if self._elsewhere is not None else b""
        name = (_account(user) or user).encode("utf-8", "replace")
        return hmac.digest(self._secret, b"\0".join((name, salt.hex().encode(), password.encode())), "sha256")

    def _remember(self, digest: bytes, account: str) -> None:
        while len(self._proven) >= _MAX_PROVEN:
            del self._proven[next(iter(self._proven))]
        self._proven.pop(digest, None)
        self._proven[digest] = (time.monotonic() + self._settings.cache, account)


class _Driver:
    """One exchange: asks the client and the authenticator by turns."""

    def __init__(self, owner: Authenticator, exchange: sasl.Exchange, ask: Ask, peer: Peer) -> None:
        self._owner = owner
        self._exchange = exchange
        self._ask = ask
        self._peer = peer
        self._attempt: Attempt | None = None

    def close(self) -> None:
        if self._attempt is not None:
            self._attempt.__exit__(None, None, None)

    async def run(self, initial: bytes | None) -> Success | Failure:
        step = self._exchange.step(initial)
        while True:
            match step:
                case sasl.Challenge(data):
                    answer = await self._ask(data)
                    if isinstance(answer, Failure):
                        return answer
                    step = self._exchange.step(answer)
                case sasl.NeedPassword(user, password):
                    outcome = await self._owner.prove(user, password, self._peer, self._begin(user))
                    if isinstance(outcome, Failure):
                        unavailable = outcome.trouble is Trouble.UNAVAILABLE
                        step = self._exchange.reject(unavailable=unavailable)
                    else:
                        step = self._exchange.accept(outcome.user)
                case sasl.NeedScramKeys(user):
                    try:
                        step = self._exchange.keys(await self._owner.keys(user, self._begin(user)))
                    except OSError as error:
                        _log.error("the credentials cannot be read: %s", error.strerror)
                        step = self._exchange.reject(unavailable=True)
                case sasl.NeedToken(user, token):
                    step = await self._token(user, token)
                case Success(user):
                    return await self._owner.settle(user, self._begin(user))
                case Failure(trouble):
                    if self._attempt is not None and trouble is not Trouble.UNAVAILABLE:
                        self._attempt.failed = True
                    return step

    async def _token(self, user: str, token: str) -> sasl.Step:
        attempt = self._begin(user)
        try:
            found = await self._owner.token_owner(user, token, attempt)
        except TokenCheckFailedError:
            return self._exchange.reject(unavailable=True)
        account = _account(found) if found else None
        step = self._exchange.reject() if account is None else self._exchange.accept(account)
        # Known now: the refusal goes out as a challenge, which a client need not answer.
        attempt.failed = not isinstance(step, Success)
        return step

    def _begin(self, user: str) -> Attempt:
        if self._attempt is None:
            self._attempt = self._owner.attempt(user, self._peer)
            self._attempt.__enter__()
        return self._attempt


def _account(user: str) -> str | None:
    """The address a user name stands for."""
    try:
        return names.normalise_address(user)
    except MailError:
        return None
