"""Delay logins after failures: a delay that doubles with every failure, whichever worker the client comes to.

Failures are counted for three keys: the user at a peer group (``pair``), the user, and the peer group. The count of a
user is the number of peer groups in which it has failed, and the count of a peer group the number of users that have
failed there. So one address does not slow down a user elsewhere, and one user of a web mail program, a proxy or an
office does not slow down the others.

Invariants:

* a peer group from which the user has logged in before (``proven``) is delayed for its own failures with this user
  only: failures elsewhere, or of other users, do not slow down an owner;
* attempts under way count as failures of their pair until they are known to have succeeded, so parallel attempts
  gain nothing;
* a client that hangs up has failed, as far as its own address is concerned;
* memory is bounded; a count is forgotten some time after its first failure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

from adapter.config.schema import Login
from adapter.net.shared_counts import Key, SharedCounts

#: Attempts that a peer may abandon before its cached logins are delayed like all others.
_ABANDONED = 3


class Throttle:
    def __init__(
        self, settings: Login, clock: Callable[[], float] = time.monotonic, counts: SharedCounts | None = None
    ) -> None:
        self._settings = settings
        self._counts = counts or SharedCounts(clock=clock)

    def apply(self, settings: Login) -> None:
        """Go by these settings from now on; failures stay counted."""
        self._settings = settings

    def attempt(self, user: str, peer: str, *, proven: bool = False) -> Attempt:
        """An attempt of ``peer``, a peer group; ``user`` is empty for a token that names no user."""
        return Attempt(self, user, peer, proven=proven)

    # --- for attempts ----------------------------------------------------------------------------------------------

    def begin(self, attempt: Attempt) -> float:
        """Count the attempt as under way; return its delay."""
        with self._counts.exclusive():
            delay = self._delay(attempt)
            self._counts.add(self._under_way(attempt.pair))
        return delay

    def delay_of_owner(self, attempt: Attempt) -> float:
        with self._counts.exclusive():
            return self._after(self._failures(attempt.pair) - self._settings.free_failures)

    def has_abandoned(self, attempt: Attempt) -> bool:
        with self._counts.exclusive():
            return self._failures(_abandoned(attempt)) > _ABANDONED

    def end(self, attempt: Attempt, *, abandoned: bool) -> None:
        with self._counts.exclusive():
            self._counts.take(self._under_way(attempt.pair))
            if attempt.failed or abandoned:
                self._count_failure(attempt, abandoned=abandoned)
            elif attempt.failed is False:
                self._forgive(attempt)

    def _delay(self, attempt: Attempt) -> float:
        free, pair = self._settings.free_failures, self._failures(attempt.pair)
        if attempt.proven:
            return self._after(pair - free)
        over = [pair + sum(self._counts.of_workers(self._under_way(attempt.pair))) - free]
        if attempt.user:
            over.append(self._failures(attempt.user) - free)
        over.append(self._failures(attempt.peer) - self._settings.free_users)
        return self._after(max(over))

    def _after(self, over: int) -> float:
        if over < 0:
            return 0.0
        return float(min(self._settings.delay * 2.0 ** min(over, 60), self._settings.longest_delay))

    def _count_failure(self, attempt: Attempt, *, abandoned: bool) -> None:
        failures, refused = self._failures(attempt.pair), self._refused(attempt)
        self._add(attempt.pair, 1)
        if not failures:
            self._add(attempt.peer, 1)
        if abandoned:
            self._add(_abandoned(attempt), 1)
        elif attempt.user and not refused:
            self._add(attempt.user, 1)

    def _forgive(self, attempt: Attempt) -> None:
        """Take back what this user failed at this peer, and nothing else: one good account must not open the way for
        guesses at others, nor a login of the owner for the guesses of strangers."""
        if attempt.user and self._refused(attempt):
            self._add(attempt.user, -1)
        if self._failures(attempt.pair):
            self._add(attempt.peer, -1)
        for name in (attempt.pair, _abandoned(attempt)):
            self._add(name, -self._failures(name))

    def _refused(self, attempt: Attempt) -> int:
        """Failures of the pair that were refused, and not abandoned."""
        return max(0, self._failures(attempt.pair) - self._failures(_abandoned(attempt)))

    # --- counts ----------------------------------------------------------------------------------------------------

    def _failures(self, name: str) -> int:
        return self._counts.common(self._failed(name), self._settings.forget)

    def _add(self, name: str, change: int) -> None:
        count = self._failures(name)
        self._counts.set_common(self._failed(name), max(0, count + change), touch=not count)

    def _failed(self, name: str) -> Key:
        return self._counts.key(f"failed logins of {name}")

    def _under_way(self, name: str) -> Key:
        return self._counts.key(f"logins under way of {name}")


def _abandoned(attempt: Attempt) -> str:
    return f"abandoned {attempt.pair}"


class Attempt:
    """One login, from the moment its user name is known.

    ``delay`` must pass before anything is checked. ``failed`` says how it ended; None: the server could not tell. An
    attempt that is cancelled before that has been abandoned by its client.
    """

    def __init__(self, throttle: Throttle, user: str, peer: str, *, proven: bool) -> None:
        self._throttle = throttle
        self.user = f"user {user}" if user else ""
        self.peer = f"peer {peer}"
        self.pair = f"user {user} at {peer}"
        self.user_name = user
        self.group = peer
        self.proven = proven
        self.delay = 0.0
        self.failed: bool | None = None

    def trust(self) -> None:
        """The user has logged in from here before, as another worker knows."""
        self.proven = True
        self.delay = self._throttle.delay_of_owner(self)

    @property
    def may_skip_delay(self) -> bool:
        """Whether a password in the cache is accepted without delay: at an owner's peer where no client hangs up.

        A client that may hang up on every wrong guess would otherwise learn from the time which guess is right.
        """
        return not self.delay or (self.proven and not self._throttle.has_abandoned(self))

    def __enter__(self) -> Attempt:
        self.delay = self._throttle.begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        abandoned = self.failed is None and kind is not None and issubclass(kind, asyncio.CancelledError)
        self._throttle.end(self, abandoned=abandoned)
