"""Logins under attack: delays after failures, abandoned attempts, and what SCRAM reveals about an account."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from adapter.accounts.credentials import SCRAM_ITERATIONS, Credentials
from adapter.accounts.login import Authenticator
from adapter.accounts.login_records import LoginRecords
from adapter.config.loader import Seconds
from adapter.config.schema import Login, Settings
from adapter.net.shared_counts import SharedCounts
from adapter.observability.peer import Peer
from protocol.sasl.mechanisms import Failure, FailureCause, Success
from protocol.sasl.scram import ScramKeys
from tests.support.waiting import PATIENCE, until

ADA = "ada@example.test"
BOB = "bob@example.test"
HOME, AWAY, LOOPBACK = Peer("t-1", "192.0.2.1"), Peer("t-2", "198.51.100.1"), Peer("t-3", "127.0.0.1")
REFUSED, UNAVAILABLE = Failure(FailureCause.REFUSED), Failure(FailureCause.UNAVAILABLE)
HOUR = Seconds(3600.0)  # longer than any test
SLOW = Settings(login=Login(threads=1, free_failures=1, free_users=4, delay=HOUR, longest_delay=HOUR))


class _Passwords:
    """Every password is "right"; checks are recorded and wait for ``gate``."""

    def __init__(self) -> None:
        self.checked: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def has_password(self, address: str) -> bool:
        return True

    def verify(self, address: str, password: str) -> bool:
        self.checked.append(address)
        assert self.gate.wait(PATIENCE)
        return password == "right"

    def scram(self, address: str) -> ScramKeys | None:
        return None


class _Logins:
    def __init__(self, settings: Settings, records: LoginRecords | None = None) -> None:
        self.passwords = _Passwords()
        self.login = Authenticator(settings, self.passwords, lambda _: True, records=records)

    async def try_at(self, user: str, peer: Peer, password: str = "wrong") -> Success | Failure:
        async with asyncio.timeout(PATIENCE):
            return await self.login.check_password(user, password, peer)

    async def fail(self, *users: str, peer: Peer) -> None:
        for user in users:
            assert await self.try_at(user, peer) == REFUSED

    def delay(self, user: str, peer: Peer) -> float:
        """Return the delay of the next attempt."""
        with self.login.attempt(user, peer) as attempt:
            return attempt.delay

    def begin(self, user: str, peer: Peer, password: str = "wrong") -> asyncio.Task[Success | Failure]:
        return asyncio.create_task(self.login.check_password(user, password, peer))

    async def abandon(self, task: asyncio.Task[Success | Failure]) -> None:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest_asyncio.fixture
async def logins() -> AsyncIterator[_Logins]:
    fixture = _Logins(SLOW)
    yield fixture
    fixture.passwords.gate.set()
    fixture.login.close()


# --- delays and queues -----------------------------------------------------------------------------------------------


async def test_delayed_logins_occupy_no_slot(logins: _Logins) -> None:
    logins.login.apply(Settings(login=Login(threads=1, waiting=2, free_failures=1, delay=HOUR, longest_delay=HOUR)))
    await logins.fail(ADA, BOB, peer=AWAY)
    delayed = [logins.begin(user, AWAY) for user in (ADA, BOB)]
    await until(lambda: logins.login._delayed._counts["peer 198.51.100.1"] == 2)
    assert await logins.try_at("carol@example.test", HOME, "right") == Success("carol@example.test")
    for task in delayed:
        await logins.abandon(task)
    assert not len(logins.login._delayed)


async def test_logins_beyond_the_bounds_of_an_account_are_refused_at_once_and_not_counted(logins: _Logins) -> None:
    await logins.fail(ADA, peer=AWAY)
    flood = [(f"198.51.100.{address}", f"guess {number}") for address in range(10, 15) for number in range(10)]
    tasks = [logins.begin(ADA, Peer("t", address), guess) for address, guess in flood[:10]]
    await until(lambda: logins.login._delayed._counts[f"user {ADA}"] == 10)
    assert await logins.try_at(ADA, Peer("t", "198.51.100.10"), "another guess") == UNAVAILABLE
    tasks += [logins.begin(ADA, Peer("t", address), guess) for address, guess in flood[10:]]
    await until(lambda: logins.login._delayed._counts[f"user {ADA}"] == 50)
    assert await logins.try_at(ADA, Peer("t", "203.0.113.1")) == UNAVAILABLE
    assert logins.login._throttle._failures(f"user {ADA}") == 1
    assert await logins.try_at(BOB, Peer("t", "203.0.113.1"), "right") == Success(BOB)
    for task in tasks:
        await logins.abandon(task)


async def test_abandoned_logins_are_dropped_and_count_for_their_address(logins: _Logins) -> None:
    logins.passwords.gate.clear()
    running = logins.begin("first@example.test", AWAY)
    await until(lambda: logins.passwords.checked == ["first@example.test"])
    queued = [logins.begin(f"u{number}@example.test", AWAY) for number in range(5)]
    await until(lambda: len(logins.login._hashing) == 5)
    for task in (running, *queued):
        await logins.abandon(task)
    assert not len(logins.login._hashing)
    assert not logins.login._checks
    assert logins.delay("new@example.test", AWAY) == HOUR  # six users have failed here, and four are free
    assert logins.delay("u1@example.test", HOME) == 0  # but their accounts have not failed
    logins.passwords.gate.set()
    assert await logins.try_at(ADA, HOME, "right") == Success(ADA)
    assert logins.passwords.checked == ["first@example.test", ADA]


async def test_login_shared_with_other_connections_is_not_dropped(logins: _Logins) -> None:
    logins.passwords.gate.clear()
    one, other = logins.begin(ADA, HOME, "right"), logins.begin(ADA, HOME, "right")
    await until(lambda: any(check._waiting == 2 for check in logins.login._checks.values()))
    await logins.abandon(one)
    logins.passwords.gate.set()
    assert await other == Success(ADA)
    assert logins.passwords.checked == [ADA]


async def test_first_login_of_an_address_waits_for_one_check_of_another(logins: _Logins) -> None:
    logins.login.apply(Settings(login=Login(threads=1, waiting=1000)))
    logins.passwords.gate.clear()
    flood = [logins.begin(f"u{number}@example.test", AWAY) for number in range(200)]
    await until(lambda: len(logins.login._hashing) == 199)
    first = logins.begin(ADA, HOME, "right")
    await until(lambda: len(logins.login._hashing) == 200)
    logins.passwords.gate.set()
    assert await first == Success(ADA)
    assert logins.passwords.checked.index(ADA) <= 2
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)


# --- owners ----------------------------------------------------------------------------------------------------------


async def test_failures_of_strangers_do_not_delay_an_owner(logins: _Logins) -> None:
    assert await logins.try_at(ADA, HOME, "right") == Success(ADA)
    for number in range(5):
        with logins.login.attempt(ADA, Peer("t", f"198.51.100.{number}")) as attempt:
            attempt.failed = True
    await logins.fail(*(f"u{number}@example.test" for number in range(4)), peer=HOME)
    assert logins.delay(BOB, HOME) == HOUR
    assert logins.delay(ADA, AWAY) == HOUR
    assert logins.delay(ADA, HOME) == 0
    assert await logins.try_at(ADA, HOME, "right") == Success(ADA)
    assert logins.delay(ADA, AWAY) == HOUR  # an owner's login does not reset the failures of strangers


async def test_guesses_at_the_address_of_an_owner_are_delayed(logins: _Logins) -> None:
    assert await logins.try_at(ADA, HOME, "right") == Success(ADA)
    await logins.fail(ADA, peer=HOME)
    assert logins.delay(ADA, HOME) == HOUR
    # A device with an old password does not delay one that has just logged in.
    assert await logins.try_at(ADA, HOME, "right") == Success(ADA)
    assert logins.delay(ADA, HOME) == HOUR  # but guesses are still delayed
    # Clients that hang up on wrong guesses could learn the right one from the response time.
    for number in range(4):
        guess = logins.begin(ADA, HOME, f"guess {number}")
        await until(lambda: len(logins.login._delayed))
        await logins.abandon(guess)
    again = logins.begin(ADA, HOME, "right")
    await until(lambda: len(logins.login._delayed))
    await logins.abandon(again)


async def test_owners_are_recognised_in_all_workers_and_after_a_restart(tmp_path: Path) -> None:
    counts = SharedCounts(2)

    @contextmanager
    def worker(shared: SharedCounts) -> Iterator[Authenticator]:
        records = LoginRecords(str(tmp_path), shared.secret)
        login = Authenticator(SLOW, _Passwords(), lambda _: True, shared, records=records)
        yield login
        login.close()
        records.close()

    with worker(counts) as one, worker(counts) as other:
        assert await one.check_password(ADA, "right", HOME) == Success(ADA)
        await until(lambda: (tmp_path / "credentials" / "proven-peers").exists())
        for _ in range(3):
            with one.attempt(ADA, AWAY) as attempt:
                attempt.failed = True
        async with asyncio.timeout(PATIENCE):
            assert await other.check_password(ADA, "right", HOME) == Success(ADA)
    with worker(SharedCounts()) as later:
        for _ in range(3):
            with later.attempt(ADA, AWAY) as attempt:
                attempt.failed = True
        with later.attempt(ADA, HOME) as attempt:
            assert attempt.delay == 0


def _guesses_within(seconds: float, login: Authenticator, peer: Peer) -> int:
    """Try logins in turn, as a client that waits for each response."""
    passed, guesses = 0.0, 0
    while True:
        with login.attempt(ADA, peer) as attempt:
            passed += attempt.delay
            if passed > seconds:
                return guesses
            attempt.failed = True
            guesses += 1


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "unix", "192.0.2.1"])
async def test_loopback_is_throttled_and_one_user_does_not_lock_out_the_others(address: str) -> None:
    logins = _Logins(Settings())
    try:
        peer = Peer("t", address)
        assert _guesses_within(10.0, logins.login, peer) <= 7
        assert logins.delay(ADA, peer) > 0
        assert logins.delay(BOB, peer) == 0
        assert await logins.try_at(BOB, peer, "right") == Success(BOB)
        await logins.fail(*(f"u{number}@example.test" for number in range(9)), peer=peer)
        assert logins.delay("new@example.test", peer) > 0  # guesses at many users from one address
        assert logins.delay(BOB, peer) == 0
    finally:
        logins.login.close()


# --- SCRAM -----------------------------------------------------------------------------------------------------------

_FIRST = "n,,n={},r=rOprNGfwEbeRWgbNEkqO"


def _name(user: str) -> str:
    return user.replace("=", "=3D").replace(",", "=2C")


async def _challenge(
    login: Authenticator, user: str, peer: Peer, answer: Callable[[], Awaitable[bytes | Failure]]
) -> str:
    """Return the salt and iterations that the server sends before the reaction of the client."""
    shown: list[str] = []

    async def ask(challenge: bytes) -> bytes | Failure:
        shown.append(challenge.decode().partition(",")[2])
        return await answer()

    async with asyncio.timeout(PATIENCE):
        await login.authenticate("SCRAM-SHA-256", _FIRST.format(_name(user)).encode(), ask, peer)
    return shown[0]


async def _cancels() -> Failure:
    return Failure(FailureCause.CANCELLED)


async def _hangs_up() -> bytes:
    raise asyncio.CancelledError


async def _breaks() -> bytes:
    raise ConnectionResetError


async def _guesses() -> bytes:
    return b"c=biws,r=x,p=" + base64.b64encode(bytes(32))


@pytest.mark.parametrize("reaction", [_cancels, _hangs_up, _breaks, _guesses])
async def test_unfinished_exchange_counts_as_failure(
    logins: _Logins, reaction: Callable[[], Awaitable[bytes | Failure]]
) -> None:
    try:
        await _challenge(logins.login, ADA, AWAY, reaction)
    except (asyncio.CancelledError, ConnectionResetError):
        pass
    assert logins.delay(ADA, AWAY) == HOUR
    assert logins.delay(ADA, HOME) == HOUR  # for the user, too, since one address is free
    assert logins.delay(BOB, AWAY) == 0


async def test_probing_many_names_is_delayed(logins: _Logins) -> None:
    for number in range(4):
        await _challenge(logins.login, f"u{number}@example.test", AWAY, _cancels)
    assert logins.delay("next@example.test", AWAY) == HOUR


SPELLINGS = {
    "ada@example.test": ['"ada"@example.test', "ADA@Example.TEST", " ada@example.test.", '"\\ada"@EXAMPLE.test'],
    "zoë@bücher.test": ["zoe\u0308@bu\u0308cher.test", "ZOË@BÜCHER.test", '"zoë"@bücher.test.'],
    "no address": ["NO Address"],
}


@pytest.mark.parametrize("user", SPELLINGS)
async def test_salts_do_not_reveal_which_accounts_exist(tmp_path: Path, user: str) -> None:
    """Salts are the same for another spelling, after a restart and in another worker."""
    stores = {"with": tmp_path / "with", "without": tmp_path / "without"}
    shown: dict[str, set[str]] = {}
    for name, root in stores.items():
        root.mkdir()
        with Credentials.open(root) as credentials:
            if name == "with" and "@" in user:
                credentials.set_password(user, "right")
            for _ in range(2):
                records = LoginRecords(str(root), b"")
                login = Authenticator(Settings(), credentials, lambda _: True, records=records)
                for number, spelling in enumerate((user, *SPELLINGS[user])):
                    salt = await _challenge(login, spelling, Peer("t", f"192.0.2.{number}"), _cancels)
                    shown.setdefault(name, set()).add(salt)
                    login._throttle = Authenticator(Settings(), credentials, lambda _: True)._throttle
                login.close()
                records.close()
    assert [len(salts) for salts in shown.values()] == [1, 1]
    for salts in shown.values():
        (text,) = salts
        salt, _, iterations = text.partition(",")
        assert iterations == f"i={SCRAM_ITERATIONS}"
        assert len(base64.b64decode(salt.removeprefix("s="))) == 16


async def test_salts_of_unknown_users_differ_between_stores(tmp_path: Path) -> None:
    shown = set()
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        records = LoginRecords(str(tmp_path / name), b"")
        login = Authenticator(Settings(), _Passwords(), lambda _: True, records=records)
        shown |= {await _challenge(login, user, HOME, _cancels) for user in (ADA, BOB)}
        login.close()
        records.close()
    assert len(shown) == 4
