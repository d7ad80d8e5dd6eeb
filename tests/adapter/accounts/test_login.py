"""Logins: delays after failures, the cache of logins, unreadable credentials, bounded waiting."""

from __future__ import annotations

import asyncio
import threading

import pytest

from adapter.accounts.login import Authenticator
from adapter.accounts.throttle import Throttle
from adapter.config.loader import Seconds
from adapter.config.schema import Login, Settings
from adapter.observability.peer import Peer
from protocol.sasl.mechanisms import Failure, FailureCause, Success
from protocol.sasl.scram import ScramKeys
from tests.support.waiting import PATIENCE, until

ADA = "ada@example.test"
PEER = Peer("test-1", "192.0.2.1")


@pytest.mark.setting("login.free_failures", "login.delay", "login.longest_delay", "login.forget", "login.free_users")
def test_delay_doubles_expires_and_counts_attempts_in_progress() -> None:
    now = 0.0
    settings = Login(
        free_failures=2, free_users=2, delay=Seconds(1.0), longest_delay=Seconds(5.0), forget=Seconds(100.0)
    )
    throttle = Throttle(settings, lambda: now)

    def fail(user: str, peer: str) -> float:
        with throttle.attempt(user, peer) as attempt:
            attempt.failed = True
            return attempt.delay

    assert [fail("a", "x") for _ in range(6)] == [0.0, 0.0, 1.0, 2.0, 4.0, 5.0]
    assert [fail("a", "y"), fail("a", "z"), fail("a", "w")] == [0.0, 1.0, 2.0]  # the user, at several addresses
    assert fail("b", "x") == 0.0  # one failing user does not delay others of the address
    assert [fail("c", "x"), fail("d", "x"), fail("e", "x")] == [1.0, 2.0, 4.0]  # several do
    assert fail("f", "v") == 0.0
    with throttle.attempt("a", "x") as attempt:
        attempt.failed = False
    assert fail("g", "x") == 4.0  # a success resets the failures of this user here, not of others
    assert fail("a", "v") == 2.0  # nor failures elsewhere
    now = 99.0
    assert fail("h", "x") == 5.0
    now = 101.0  # counted from the first failure, so that rare failures of an address do not add up
    assert fail("h", "x") == 0.0
    with throttle.attempt("k", "w") as one, throttle.attempt("k", "w") as two, throttle.attempt("k", "w") as three:
        assert [one.delay, two.delay, three.delay] == [0.0, 0.0, 1.0]


class _Passwords:
    """Counts its checks; the salt is the password."""

    def __init__(self) -> None:
        self.password = "right"
        self.checks = 0
        self.error: OSError | None = None

    def has_password(self, address: str) -> bool:
        return address.lower() == ADA

    def verify(self, address: str, password: str) -> bool:
        self.checks += 1
        if self.error:
            raise self.error
        return address.lower() == ADA and password == self.password

    def scram(self, address: str) -> ScramKeys | None:
        return ScramKeys(self.password.encode(), 4096, b"", b"") if address.lower() == ADA else None


async def test_cached_login_is_not_hashed_again_until_the_password_changes() -> None:
    passwords = _Passwords()
    active = {ADA}
    login = Authenticator(Settings(), passwords, active.__contains__)
    try:
        assert await login.check_password("Ada@Example.test", "right", PEER) == Success(ADA)
        assert await login.check_password(ADA, "right", PEER) == Success(ADA)
        assert passwords.checks == 1
        assert await login.check_password(ADA, "wrong", PEER) == Failure(FailureCause.REFUSED)
        passwords.password = "other"
        assert await login.check_password(ADA, "right", PEER) == Failure(FailureCause.REFUSED)
        assert await login.check_password(ADA, "other", PEER) == Success(ADA)
        assert all(b"right" not in digest for digest in login._cache)
        active.clear()
        assert await login.check_password(ADA, "other", PEER) == Failure(FailureCause.REFUSED)
    finally:
        login.close()


async def test_tokens_without_user_name_are_counted_by_address() -> None:
    """Invalid tokens of one address do not delay logins from another."""
    login = Authenticator(Settings(login=Login(free_failures=1)), _Passwords(), lambda _: True)
    try:
        for _ in range(3):
            with login.attempt("", PEER) as attempt:
                attempt.failed = True
        assert attempt.delay > 0
        with login.attempt("", Peer("test-2", "192.0.2.2")) as other:
            assert other.delay == 0
    finally:
        login.close()


async def test_unreadable_credentials_are_a_temporary_failure() -> None:
    passwords = _Passwords()
    passwords.error = OSError(5, "Input/output error")
    login = Authenticator(Settings(), passwords, lambda _: True)
    try:
        assert await login.check_password(ADA, "right", PEER) == Failure(FailureCause.UNAVAILABLE)
    finally:
        login.close()


@pytest.mark.setting("login.waiting")
async def test_number_of_waiting_logins_is_bounded() -> None:
    passwords = _Passwords()
    gate = threading.Event()
    passwords.verify = lambda address, password: gate.wait(PATIENCE)  # type: ignore[method-assign]
    login = Authenticator(Settings(login=Login(waiting=2, threads=1)), passwords, lambda _: True)
    try:
        waiting = [asyncio.create_task(login.check_password(f"u{n}@example.test", "x", PEER)) for n in range(2)]
        await until(lambda: len(login._hashing) == 1)
        waiting.append(asyncio.create_task(login.check_password("u2@example.test", "x", PEER)))
        await until(lambda: len(login._hashing) == 2)
        assert await login.check_password("u9@example.test", "x", PEER) == Failure(FailureCause.UNAVAILABLE)
        gate.set()
        assert all(isinstance(outcome, Success) for outcome in await asyncio.gather(*waiting))
    finally:
        gate.set()
        login.close()


async def test_logins_that_come_while_the_first_is_admitted_share_its_check() -> None:
    passwords = _Passwords()
    entered, release = threading.Event(), threading.Event()

    def is_active(account: str) -> bool:
        entered.set()
        return release.wait(PATIENCE) and account == ADA

    login = Authenticator(Settings(), passwords, is_active)
    try:
        first = asyncio.create_task(login.check_password(ADA, "right", PEER))
        await until(entered.is_set)
        others = [asyncio.create_task(login.check_password(ADA, "right", PEER)) for _ in range(10)]
        for _ in range(100):  # they get as far as they can
            await asyncio.sleep(0.001)
        release.set()
        assert await asyncio.gather(first, *others) == [Success(ADA)] * 11
        assert passwords.checks == 1
    finally:
        release.set()
        login.close()
