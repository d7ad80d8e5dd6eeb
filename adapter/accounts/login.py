"""Logging in, for SMTP and IMAP alike: SASL exchanges driven to their end, passwords hashed off the event loop.

Invariants: nothing tells a wrong password from an unknown or inactive address, in words or in time; the cache of proven
logins holds no password, only a keyed digest that a changed password no longer matches. A delayed login takes no place
of others; one that its client has abandoned is dropped and counts as a failure of the client's address. Users who have
logged in from an address before are not slowed there by the failures of others.
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

_MAX_PROVEN = 10_000
#: Logins of one account that may be delayed at a time: at one address, and at all.
_DELAYED_OF_PAIR = 10
_DELAYED_OF_ACCOUNT = 50
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


class _Check:
    """A check of a name and password under way, which any number of connections wait for."""

    def __init__(self, work: Coroutine[object, object, _Checked | Failure], forget: Callable[[], object]) -> None:
        self._task = asyncio.create_task(work)
        self._forget = forget
        self._waiting = 0

    async def outcome(self) -> _Checked | Failure:
        """Wait for the check. It is cancelled and forgotten when the last connection that waits for it has left."""
        self._waiting += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._forget()  # before the task ends: no other connection may join it now
                self._task.cancel()  # no effect if it is over


class Authenticator:
    """``is_active`` may block: it is asked on a thread."""

    def __init__(
        self,
        settings: Settings,
        passwords: PasswordSource,
        is_active: Callable[[str], bool],
        counts: SharedCounts | None = None,
        newcomers: Provisioner | None = None,
        records: LoginRecords | None = None,
    ) -> None:
        self._passwords = passwords
        self._is_active = is_active
        self._newcomers = newcomers
        counts = counts or SharedCounts()
        self._throttle = Throttle(settings.login, counts=counts)
        self._secret = counts.secret
        self._records = records or LoginRecords(None, counts.secret)
        self._proven: dict[bytes, tuple[float, str]] = {}  # digest -> when it expires and the account, the oldest first
        self._checks: dict[tuple[bytes, str], _Check] = {}  # by digest and peer group
        self._pool = ThreadPoolExecutor(settings.login.threads, thread_name_prefix="markpost-login")
        self._bounds = Bounds()
        self._hashing = FairQueue(settings.login.threads, settings.login.waiting)
        self._asking = FairQueue(settings.login.waiting, settings.login.waiting)  # of users kept elsewhere
        self.apply(settings)

    def apply(self, settings: Settings) -> None:
        """Go by these settings from now on; who is known to guess stays known. Raises ConfigError."""
        self._tokens = TokenCheck(settings.login)
        self._settings = settings.login
        self._throttle.apply(settings.login)
        self._hashing.waiting = self._asking.waiting = settings.login.waiting
        wanted = [name.upper() for name in settings.login.mechanisms]
        if self._elsewhere is not None:  # what is kept of passwords there is not what this mechanism needs
            wanted = [name for name in wanted if name != _SCRAM]
        if self._tokens.configured:
            wanted += [name for name in _TOKEN_MECHANISMS if name not in wanted]
        else:
            wanted = [name for name in wanted if name not in _TOKEN_MECHANISMS]
        #: What can be offered, the preferred first.
        self.mechanisms = tuple(name for name in wanted if name in mechanisms.MECHANISMS)

    @property
    def _elsewhere(self) -> Provisioner | None:
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
        config = mechanisms.Config(os.urandom(18).hex(), self._records.secret, SCRAM_ITERATIONS)
        exchange = mechanisms.start(mechanism, config)
        if exchange is None:
            return None
        with _counting_abandoned(peer), contextlib.ExitStack() as attempts:
            outcome = await _Driver(self, exchange, ask, peer, attempts).run(initial)
        if isinstance(outcome, Success):
            LOGINS.of("success").add()
            _log.info("%s logged in as %s by %s", peer, outcome.user, mechanism)
        else:
            LOGINS.of(outcome.cause.name.lower()).add()
            _log.warning("%s login failed by %s: %s", peer, mechanism, outcome.cause.name.lower())
        return outcome

    async def check_password(self, user: str, password: str, peer: Peer) -> Success | Failure:
        """A user name and password given outside of SASL; ``Success.user`` is the account."""
        with _counting_abandoned(peer), self.attempt(user, peer) as attempt:
            outcome = await self.prove(user, password, peer, attempt)
        if isinstance(outcome, Success):
            LOGINS.of("success").add()
            _log.info("%s logged in as %s", peer, outcome.user)
        else:
            LOGINS.of(outcome.cause.name.lower()).add()
            _log.warning("%s login failed: %s", peer, outcome.cause.name.lower())
        return outcome

    # --- for exchanges ---------------------------------------------------------------------------------------------

    def attempt(self, user: str, peer: Peer) -> Attempt:
        """``user`` is empty for a token that names no user."""
        name, group = spelling(user), networks.group(peer.address)
        return self._throttle.attempt(name, group, proven=bool(name) and self._records.is_proven(name, group))

    async def prove(self, user: str, password: str, peer: Peer, attempt: Attempt) -> Success | Failure:
        digest = await asyncio.to_thread(self._digest, user, password)
        await self._recognise(attempt)
        until, account = self._proven.get(digest, (0.0, ""))
        if until > time.monotonic() and attempt.may_skip_delay:
            return await self._settle_again(account, attempt)
        # A client that opens five connections at once asks the same question five times: one answer is for all.
        question = (digest, attempt.group)
        check = self._checks.get(question)
        if check is None:
            work = self._verify(user, password, peer, attempt)
            check = self._checks[question] = _Check(work, lambda: self._checks.pop(question))
        checked = await check.outcome()
        if isinstance(checked, Failure):
            if checked.cause is FailureCause.REFUSED:
                attempt.failed = True
            return checked
        outcome = await self.settle(checked.account, attempt)
        if isinstance(outcome, Success) and checked.lasting:
            self._remember(digest, checked.account)
        return outcome

    async def _recognise(self, attempt: Attempt) -> None:
        """Ask what other workers know before an owner is delayed."""
        if attempt.delay and attempt.user and not attempt.proven:
            await asyncio.to_thread(self._records.refresh)
            if self._records.is_proven(attempt.user_name, attempt.group):
                attempt.trust()

    async def _pass_delay(self, attempt: Attempt) -> None:
        """Let the delay of an attempt pass. Raises CrowdedError."""
        if not attempt.delay:
            await asyncio.sleep(0)  # IMAP begins a command outside of a task, where nothing can have a time limit
            return
        limits = {attempt.pair: _DELAYED_OF_PAIR} if attempt.user else {}
        if not attempt.proven:
            limits[attempt.peer] = self._settings.waiting
            if attempt.user:
                limits[attempt.user] = _DELAYED_OF_ACCOUNT
        with self._bounds.hold(limits):
            await asyncio.sleep(attempt.delay)

    async def _verify(self, user: str, password: str, peer: Peer, attempt: Attempt) -> _Checked | Failure:
        """Whose name and password this is, or why there is no answer."""
        elsewhere = self._elsewhere
        # An owner does not stand in line behind others of the same address.
        line = attempt.pair if attempt.proven else attempt.peer
        on_thread = functools.partial(self._hashing.run, line, self._pool)
        try:
            await self._pass_delay(attempt)
            if elsewhere is not None and not await asyncio.to_thread(self._passwords.knows, user):
                async with self._asking.place(line):
                    return await self._verify_elsewhere(elsewhere, user, password, peer, on_thread)
            right = await on_thread(self._passwords.verify, user, password)
        except CrowdedError:
            return crowded(peer)
        except OSError as error:
            _log.error("the credentials cannot be read: %s", error.strerror)
            return Failure(FailureCause.UNAVAILABLE)
        account = _account(user)
        return _Checked(account, lasting=True) if right and account else Failure(FailureCause.REFUSED)

    async def _verify_elsewhere(
        self, newcomers: Provisioner, user: str, password: str, peer: Peer, on_thread: OnThread
    ) -> _Checked | Failure:
        try:
            proven = await newcomers.users.prove(user, password, peer.address, on_thread)
            if proven is None:
                return Failure(FailureCause.REFUSED)
            await newcomers.welcome(proven.account)
        except (UnavailableError, MailError) as error:
            _log.error("%s cannot log in now: %s", peer, error)
            return Failure(FailureCause.UNAVAILABLE)
        return _Checked(proven.account, proven.lasting)

    async def keys(self, user: str, attempt: Attempt) -> ScramKeys | None:
        """Raises CrowdedError, and OSError if the credentials cannot be read."""
        await self._recognise(attempt)
        await self._pass_delay(attempt)
        return await asyncio.to_thread(self._passwords.scram, user)

    async def token_owner(self, user: str, token: str, attempt: Attempt) -> str | None:
        """Raises TokenCheckFailedError, CrowdedError."""
        await self._recognise(attempt)
        await self._pass_delay(attempt)
        return await self._tokens.owner(token, user)

    async def settle(self, user: str, attempt: Attempt) -> Success | Failure:
        """The proof is good; it counts if the account can be used."""
        account = _account(user)
        attempt.failed = account is None or not await asyncio.to_thread(self._is_active, account)
        if account is None or attempt.failed:
            return Failure(FailureCause.REFUSED)
        owner = attempt.user_name or account
        if self._records.remember(owner, attempt.group):
            asyncio.get_running_loop().run_in_executor(None, self._records.flush)
        return Success(account)

    async def _settle_again(self, account: str, attempt: Attempt) -> Success | Failure:
        """The proof was good a moment ago: failures since then stay counted, or guesses between would be free."""
        outcome = await self.settle(account, attempt)
        attempt.failed = None if isinstance(outcome, Success) else True
        return outcome

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

    def __init__(
        self, owner: Authenticator, exchange: mechanisms.Exchange, ask: Ask, peer: Peer, attempts: contextlib.ExitStack
    ) -> None:
        self._owner = owner
        self._exchange = exchange
        self._ask = ask
        self._peer = peer
        self._attempts = attempts
        self._attempt: Attempt | None = None

    async def run(self, initial: bytes | None) -> Success | Failure:
        step = self._exchange.step(initial)
        while True:
            match step:
                case mechanisms.Challenge(data):
                    answer = await self._ask(data)
                    if isinstance(answer, Failure):
                        return answer
                    step = self._exchange.step(answer)
                case mechanisms.NeedPassword(user, password):
                    outcome = await self._owner.prove(user, password, self._peer, self._begin(user))
                    if isinstance(outcome, Failure):
                        unavailable = outcome.cause is FailureCause.UNAVAILABLE
                        step = self._exchange.reject(unavailable=unavailable)
                    else:
                        return outcome
                case mechanisms.NeedScramKeys(user):
                    step = await self._keys(user)
                case mechanisms.NeedToken(user, token):
                    step = await self._token(user, token)
                case Success(user):
                    return await self._owner.settle(user, self._begin(user))
                case Failure(trouble):
                    if self._attempt is not None and trouble is not FailureCause.UNAVAILABLE:
                        self._attempt.failed = True
                    return step

    async def _keys(self, user: str) -> mechanisms.Step:
        attempt = self._begin(user)
        try:
            keys = await self._owner.keys(user, attempt)
        except CrowdedError:
            crowded(self._peer)
            return self._exchange.reject(unavailable=True)
        except OSError as error:
            _log.error("the credentials cannot be read: %s", error.strerror)
            return self._exchange.reject(unavailable=True)
        # From here on the client has seen a salt: an exchange that it does not bring to a good end has failed.
        attempt.failed = True
        return self._exchange.keys(keys, spelling(user))

    async def _token(self, user: str, token: str) -> mechanisms.Step:
        attempt = self._begin(user)
        try:
            found = await self._owner.token_owner(user, token, attempt)
        except CrowdedError:
            crowded(self._peer)
            return self._exchange.reject(unavailable=True)
        except TokenCheckFailedError:
            return self._exchange.reject(unavailable=True)
        account = _account(found) if found else None
        step = self._exchange.reject() if account is None else self._exchange.accept(account)
        # Known now: the refusal goes out as a challenge, which a client need not answer.
        attempt.failed = not isinstance(step, Success)
        return step

    def _begin(self, user: str) -> Attempt:
        if self._attempt is None:
            self._attempt = self._attempts.enter_context(self._owner.attempt(user, self._peer))
        return self._attempt


@contextlib.contextmanager
def _counting_abandoned(peer: Peer) -> Iterator[None]:
    try:
        yield
    except asyncio.CancelledError:
        LOGINS.of("abandoned").add()
        _log.info("%s login abandoned", peer)
        raise


def crowded(peer: Peer) -> Failure:
    _log.warning("%s login refused for now: too many logins of its address or account are waiting", peer)
    return Failure(FailureCause.UNAVAILABLE)


def spelling(user: str) -> str:
    """The one spelling of a user name: equal for all names that lead to the same account."""
    return _account(user) or user.casefold()


def _account(user: str) -> str | None:
    """The address a user name stands for."""
    try:
        return names.normalise_address(user)
    except MailError:
        return None
