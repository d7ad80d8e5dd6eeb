"""Authentication for SMTP and IMAP: drives SASL exchanges, and hashes passwords off the event loop.

Invariants: neither the response nor its time distinguishes a wrong password from an unknown or inactive address; the
login cache holds no password, only a keyed digest that a changed password no longer matches. A delayed login occupies
no slot; a login that its client has abandoned is dropped, and counts as a failure of the client's address. Users who
have logged in from an address before are not delayed there by the failures of others.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from adapter.accounts.credentials import SCRAM_ITERATIONS
from adapter.accounts.dovecot.auth_socket import UnavailableError
from adapter.accounts.dovecot.lookup import OnThread
from adapter.accounts.login_queue import Bounds, CrowdedError, FairQueue
from adapter.accounts.login_records import LoginRecords
from adapter.accounts.provisioning import Provisioner
from adapter.accounts.throttle import Attempt, Throttle
from adapter.accounts.tokens import TokenCheck, TokenCheckFailedError
from adapter.config.schema import Settings
from adapter.net import networks
from adapter.net.shared_counts import SharedCounts
from adapter.observability.metrics import LOGINS
from adapter.observability.peer import Peer
from adapter.store import names
from protocol.errors import MailError
from protocol.sasl import mechanisms
from protocol.sasl.mechanisms import Failure, FailureCause, Success
from protocol.sasl.scram import ScramKeys

_log = logging.getLogger(__name__)

_MAX_CACHED = 10_000
#: Delayed logins of one account at a time: from one address, and from all.
_MAX_DELAYED_OF_PAIR = 10
_MAX_DELAYED_OF_ACCOUNT = 50
_SCRAM = "SCRAM-SHA-256"
_TOKEN_MECHANISMS = ("OAUTHBEARER", "XOAUTH2")

#: Sends a challenge and returns the client's decoded response, or why there is none.
SendChallenge = Callable[[bytes], Awaitable[bytes | Failure]]


class PasswordSource(Protocol):
    """Stored passwords; every method may block."""

    def has_password(self, address: str) -> bool: ...

    def verify(self, address: str, password: str) -> bool: ...

    def scram(self, address: str) -> ScramKeys | None: ...


class _Verified(NamedTuple):
    """The account of a correct name and password; ``is_cacheable``: they stay correct for a while."""

    account: str
    is_cacheable: bool


class _Check:
    """A password check in progress, shared by all connections that wait for the same one."""

    def __init__(self, work: Coroutine[object, object, _Verified | Failure], forget: Callable[[], object]) -> None:
        self._task = asyncio.create_task(work)
        self._forget = forget
        self._waiting = 0

    async def outcome(self) -> _Verified | Failure:
        """Wait for the check; it is cancelled and forgotten when the last waiting connection has left."""
        self._waiting += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._forget()  # before the task ends, so that no other connection joins it
                self._task.cancel()  # no effect on a finished task


class Authenticator:
    """Authenticates users; ``is_active`` may block, and is called on a thread."""

    def __init__(
        self,
        settings: Settings,
        passwords: PasswordSource,
        is_active: Callable[[str], bool],
        counts: SharedCounts | None = None,
        provisioner: Provisioner | None = None,
        records: LoginRecords | None = None,
    ) -> None:
        self._passwords = passwords
        self._is_active = is_active
        self._provisioner = provisioner
        counts = counts or SharedCounts()
        self._throttle = Throttle(settings.login, counts=counts)
        self._secret = counts.secret
        self._records = records or LoginRecords(None, counts.secret)
        self._cache: dict[bytes, tuple[float, str]] = {}  # digest -> expiry and account, the oldest first
        self._checks: dict[tuple[bytes, str], _Check] = {}  # by digest and peer group
        self._pool = ThreadPoolExecutor(settings.login.threads, thread_name_prefix="markpost-login")
        self._delayed = Bounds()
        self._hashing = FairQueue(settings.login.threads, settings.login.waiting)
        self._external_lookups = FairQueue(settings.login.waiting, settings.login.waiting)
        self.apply(settings)

    def apply(self, settings: Settings) -> None:
        """Apply new settings; failed logins stay counted. Raises ConfigError."""
        self._tokens = TokenCheck(settings.login)
        self._settings = settings.login
        self._throttle.apply(settings.login)
        self._hashing.waiting = self._external_lookups.waiting = settings.login.waiting
        offered = [name.upper() for name in settings.login.mechanisms]
        if self._external_users is not None:  # an external database has no keys for SCRAM
            offered = [name for name in offered if name != _SCRAM]
        if self._tokens.configured:
            offered += [name for name in _TOKEN_MECHANISMS if name not in offered]
        else:
            offered = [name for name in offered if name not in _TOKEN_MECHANISMS]
        #: The mechanisms to offer, the preferred first.
        self.mechanisms = tuple(name for name in offered if name in mechanisms.MECHANISMS)

    @property
    def _external_users(self) -> Provisioner | None:
        """The external user database, for users without a password here."""
        return self._provisioner if self._provisioner is not None and self._provisioner.users.has_passwords else None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def authenticate(
        self, mechanism: str, initial: bytes | None, send_challenge: SendChallenge, peer: Peer
    ) -> Success | Failure | None:
        """Drive one exchange to its end; ``Success.user`` is the account. None: unsupported mechanism."""
        if mechanism.upper() not in self.mechanisms:
            return None
        config = mechanisms.Config(os.urandom(18).hex(), self._records.secret, SCRAM_ITERATIONS)
        exchange = mechanisms.start_exchange(mechanism, config)
        if exchange is None:
            return None
        with _count_abandoned(peer), contextlib.ExitStack() as attempts:
            outcome = await _Driver(self, exchange, send_challenge, peer, attempts).run(initial)
        if isinstance(outcome, Success):
            LOGINS.of("success").add()
            _log.info("%s logged in as %s by %s", peer, outcome.user, mechanism)
        else:
            LOGINS.of(outcome.cause.name.lower()).add()
            _log.warning("%s login failed by %s: %s", peer, mechanism, outcome.cause.name.lower())
        return outcome

    async def check_password(self, user: str, password: str, peer: Peer) -> Success | Failure:
        """Check a user name and password given outside SASL; ``Success.user`` is the account."""
        with _count_abandoned(peer), self.attempt(user, peer) as attempt:
            outcome = await self.verify_password(user, password, peer, attempt)
        if isinstance(outcome, Success):
            LOGINS.of("success").add()
            _log.info("%s logged in as %s", peer, outcome.user)
        else:
            LOGINS.of(outcome.cause.name.lower()).add()
            _log.warning("%s login failed: %s", peer, outcome.cause.name.lower())
        return outcome

    # --- used by exchanges -------------------------------------------------------------------------------------------

    def attempt(self, user: str, peer: Peer) -> Attempt:
        """Begin an attempt; ``user`` is empty for a token without a user name."""
        name, group = spelling(user), networks.group(peer.address)
        return self._throttle.attempt(name, group, proven=bool(name) and self._records.is_proven(name, group))

    async def verify_password(self, user: str, password: str, peer: Peer, attempt: Attempt) -> Success | Failure:
        digest = await asyncio.to_thread(self._digest, user, password)
        await self._trust_owner(attempt)
        expires_at, account = self._cache.get(digest, (0.0, ""))
        if expires_at > time.monotonic() and attempt.may_skip_delay:
            return await self._admit_cached(account, attempt)
        # A client that opens five connections at once sends the same password five times: one check is for all.
        key = (digest, attempt.group)
        check = self._checks.get(key)
        if check is None:
            work = self._verify_and_remember(digest, user, password, peer, attempt)
            check = self._checks[key] = _Check(work, lambda: self._checks.pop(key))
        verified = await check.outcome()
        if isinstance(verified, Failure):
            if verified.cause is FailureCause.REFUSED:
                attempt.failed = True
            return verified
        return await self.admit(verified.account, attempt)

    async def _verify_and_remember(
        self, digest: bytes, user: str, password: str, peer: Peer, attempt: Attempt
    ) -> _Verified | Failure:
        """Verify, and record a success before the check ends.

        A login that comes later then finds either the check or its result, and is not delayed by those before it.
        """
        verified = await self._verify(user, password, peer, attempt)
        if isinstance(verified, _Verified):
            outcome = await self.admit(verified.account, attempt)
            if isinstance(outcome, Success) and verified.is_cacheable:
                self._remember(digest, verified.account)
        return verified

    async def _trust_owner(self, attempt: Attempt) -> None:
        """Load the login records of other workers before an owner is delayed."""
        if attempt.delay and attempt.user and not attempt.proven:
            await asyncio.to_thread(self._records.refresh)
            if self._records.is_proven(attempt.user_name, attempt.group):
                attempt.trust()

    async def _pass_delay(self, attempt: Attempt) -> None:
        """Wait for the delay of an attempt. Raises CrowdedError."""
        if not attempt.delay:
            await asyncio.sleep(0)  # IMAP starts a command outside a task, where no timeout can apply
            return
        limits = {attempt.pair: _MAX_DELAYED_OF_PAIR} if attempt.user else {}
        if not attempt.proven:
            limits[attempt.peer] = self._settings.waiting
            if attempt.user:
                limits[attempt.user] = _MAX_DELAYED_OF_ACCOUNT
        with self._delayed.hold(limits):
            await asyncio.sleep(attempt.delay)

    async def _verify(self, user: str, password: str, peer: Peer, attempt: Attempt) -> _Verified | Failure:
        """Verify a name and password; return the account, or the failure."""
        provisioner = self._external_users
        # An owner does not queue behind other users of the same address.
        line = attempt.pair if attempt.proven else attempt.peer
        on_thread = functools.partial(self._hashing.run, line, self._pool)
        try:
            await self._pass_delay(attempt)
            if provisioner is not None and not await asyncio.to_thread(self._passwords.has_password, user):
                async with self._external_lookups.slot(line):
                    return await self._verify_external(provisioner, user, password, peer, on_thread)
            is_correct = await on_thread(self._passwords.verify, user, password)
        except CrowdedError:
            return log_crowded(peer)
        except OSError as error:
            _log.error("credentials: cannot be read (%s); refusing the login for now", error.strerror)
            return Failure(FailureCause.UNAVAILABLE)
        account = _account(user)
        return _Verified(account, is_cacheable=True) if is_correct and account else Failure(FailureCause.REFUSED)

    async def _verify_external(
        self, provisioner: Provisioner, user: str, password: str, peer: Peer, on_thread: OnThread
    ) -> _Verified | Failure:
        try:
            login = await provisioner.users.verify(user, password, peer.address, on_thread)
            if login is None:
                return Failure(FailureCause.REFUSED)
            await provisioner.ensure_account(login.account)
        except (UnavailableError, MailError) as error:
            _log.error("%s external user database unavailable (%s); refusing the login for now", peer, error)
            return Failure(FailureCause.UNAVAILABLE)
        return _Verified(login.account, login.is_cacheable)

    async def keys(self, user: str, attempt: Attempt) -> ScramKeys | None:
        """Return the keys for SCRAM. Raises CrowdedError, and OSError if the credentials cannot be read."""
        await self._trust_owner(attempt)
        await self._pass_delay(attempt)
        return await asyncio.to_thread(self._passwords.scram, user)

    async def token_owner(self, user: str, token: str, attempt: Attempt) -> str | None:
        """Return the address of a token, or None. Raises TokenCheckFailedError, CrowdedError."""
        await self._trust_owner(attempt)
        await self._pass_delay(attempt)
        return await self._tokens.owner(token, user)

    async def admit(self, user: str, attempt: Attempt) -> Success | Failure:
        """Admit a user after a correct proof, if the account is active."""
        account = _account(user)
        attempt.failed = account is None or not await asyncio.to_thread(self._is_active, account)
        if account is None or attempt.failed:
            return Failure(FailureCause.REFUSED)
        owner = attempt.user_name or account
        if self._records.remember(owner, attempt.group):
            asyncio.get_running_loop().run_in_executor(None, self._records.flush)
        return Success(account)

    async def _admit_cached(self, account: str, attempt: Attempt) -> Success | Failure:
        """Admit a user by the cache. Earlier failures stay counted, else guesses in between would be free."""
        outcome = await self.admit(account, attempt)
        attempt.failed = None if isinstance(outcome, Success) else True
        return outcome

    def _digest(self, user: str, password: str) -> bytes:
        try:
            keys = self._passwords.scram(user)
        except OSError:
            keys = None
        # The salt changes with the password, so that cache entries of the old one no longer match.
        salt = (
            keys.salt
            if keys
            else self._external_users.users.fingerprint(user)
            if self._external_users is not None
            else b""
        )
        name = (_account(user) or user).encode("utf-8", "replace")
        return hmac.digest(self._secret, b"\0".join((name, salt.hex().encode(), password.encode())), "sha256")

    def _remember(self, digest: bytes, account: str) -> None:
        while len(self._cache) >= _MAX_CACHED:
            del self._cache[next(iter(self._cache))]
        self._cache.pop(digest, None)
        self._cache[digest] = (time.monotonic() + self._settings.cache, account)


class _Driver:
    """One exchange between the client and the authenticator."""

    def __init__(
        self,
        owner: Authenticator,
        exchange: mechanisms.Exchange,
        send_challenge: SendChallenge,
        peer: Peer,
        attempts: contextlib.ExitStack,
    ) -> None:
        self._owner = owner
        self._exchange = exchange
        self._send_challenge = send_challenge
        self._peer = peer
        self._attempts = attempts
        self._attempt: Attempt | None = None

    async def run(self, initial: bytes | None) -> Success | Failure:
        step = self._exchange.step(initial)
        while True:
            match step:
                case mechanisms.Challenge(data):
                    response = await self._send_challenge(data)
                    if isinstance(response, Failure):
                        return response
                    step = self._exchange.step(response)
                case mechanisms.NeedPassword(user, password):
                    outcome = await self._owner.verify_password(user, password, self._peer, self._begin(user))
                    if isinstance(outcome, Failure):
                        is_unavailable = outcome.cause is FailureCause.UNAVAILABLE
                        step = self._exchange.reject(unavailable=is_unavailable)
                    else:
                        return outcome
                case mechanisms.NeedScramKeys(user):
                    step = await self._keys(user)
                case mechanisms.NeedToken(user, token):
                    step = await self._token(user, token)
                case Success(user):
                    return await self._owner.admit(user, self._begin(user))
                case Failure(cause):
                    if self._attempt is not None and cause is not FailureCause.UNAVAILABLE:
                        self._attempt.failed = True
                    return step

    async def _keys(self, user: str) -> mechanisms.Step:
        attempt = self._begin(user)
        try:
            keys = await self._owner.keys(user, attempt)
        except CrowdedError:
            log_crowded(self._peer)
            return self._exchange.reject(unavailable=True)
        except OSError as error:
            _log.error("credentials: cannot be read (%s); refusing the login for now", error.strerror)
            return self._exchange.reject(unavailable=True)
        # From here on the client knows a salt: an exchange that it does not complete has failed.
        attempt.failed = True
        return self._exchange.supply_keys(keys, spelling(user))

    async def _token(self, user: str, token: str) -> mechanisms.Step:
        attempt = self._begin(user)
        try:
            address = await self._owner.token_owner(user, token, attempt)
        except CrowdedError:
            log_crowded(self._peer)
            return self._exchange.reject(unavailable=True)
        except TokenCheckFailedError:
            return self._exchange.reject(unavailable=True)
        account = _account(address) if address else None
        step = self._exchange.reject() if account is None else self._exchange.accept(account)
        # Set before the refusal is sent: it is a challenge, which a client may leave unanswered.
        attempt.failed = not isinstance(step, Success)
        return step

    def _begin(self, user: str) -> Attempt:
        if self._attempt is None:
            self._attempt = self._attempts.enter_context(self._owner.attempt(user, self._peer))
        return self._attempt


@contextlib.contextmanager
def _count_abandoned(peer: Peer) -> Iterator[None]:
    try:
        yield
    except asyncio.CancelledError:
        LOGINS.of("abandoned").add()
        _log.info("%s login abandoned", peer)
        raise


def log_crowded(peer: Peer) -> Failure:
    _log.warning("%s login refused for now: too many logins of its address or account are waiting", peer)
    return Failure(FailureCause.UNAVAILABLE)


def spelling(user: str) -> str:
    """Normalise a user name: equal for all names of the same account."""
    return _account(user) or user.casefold()


def _account(user: str) -> str | None:
    """Return the address of a user name, or None."""
    try:
        return names.normalise_address(user)
    except MailError:
        return None
