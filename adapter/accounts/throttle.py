"""Login throttle: exponential back-off after failed logins, counted for all workers together.

Failures are counted for three keys: the user at a peer group (``pair``), the user, and the peer group. The count of a
user is the number of peer groups in which it has failed, and the count of a peer group the number of users that have
failed there. So one address does not delay a user elsewhere, and one user of a web mail program, a proxy or an office
does not delay the others.

Invariants:

* a peer group from which the user has logged in before (``proven``) is delayed for its own failures with this user
  only: failures elsewhere, or of other users, do not delay an owner;
* attempts in progress count as failures of their pair until they succeed, so parallel attempts gain nothing;
* an attempt that the client abandons counts as a failure of its address;
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
_MAX_ABANDONED = 3


class Throttle:
    """Counts failed logins and computes delays."""

    def __init__(
        self, settings: Login, clock: Callable[[], float] = time.monotonic, counts: SharedCounts | None = None
    ) -> None:
        self._settings = settings
        self._counts = counts or SharedCounts(clock=clock)

    def apply(self, settings: Login) -> None:
        """Apply new settings; failures stay counted."""
        self._settings = settings

    def attempt(self, user: str, peer: str, *, proven: bool = False) -> Attempt:
        """Begin an attempt from a peer group; ``user`` is empty for a token without a user name."""
        return Attempt(self, user, peer, proven=proven)

    # --- used by attempts --------------------------------------------------------------------------------------------

    def begin(self, attempt: Attempt) -> float:
        """Count the attempt as in progress; return its delay."""
        with self._counts.exclusive():
            delay = self._delay(attempt)
            self._counts.add(self._in_progress(attempt.pair))
        return delay

    def delay_of_owner(self, attempt: Attempt) -> float:
        with self._counts.exclusive():
            return self._after(self._failures(attempt.pair) - self._settings.free_failures)

    def has_abandoned(self, attempt: Attempt) -> bool:
        with self._counts.exclusive():
            return self._failures(_abandoned(attempt)) > _MAX_ABANDONED

    def end(self, attempt: Attempt, *, abandoned: bool) -> None:
        with self._counts.exclusive():
            self._counts.take(self._in_progress(attempt.pair))
            if attempt.failed or abandoned:
                self._count_failure(attempt, abandoned=abandoned)
            elif attempt.failed is False:
                self._forgive(attempt)

    def _delay(self, attempt: Attempt) -> float:
        free, pair = self._settings.free_failures, self._failures(attempt.pair)
        if attempt.proven:
            return self._after(pair - free)
        over = [pair + sum(self._counts.of_workers(self._in_progress(attempt.pair))) - free]
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
        """Reset the failures of this user at this peer, and no others: a successful login must not permit guesses at
        other accounts, nor guesses from other addresses."""
        if attempt.user and self._refused(attempt):
            self._add(attempt.user, -1)
        if self._failures(attempt.pair):
            self._add(attempt.peer, -1)
        for name in (attempt.pair, _abandoned(attempt)):
            self._add(name, -self._failures(name))

    def _refused(self, attempt: Attempt) -> int:
        """Return the failures of the pair that were refused, not abandoned."""
        return max(0, self._failures(attempt.pair) - self._failures(_abandoned(attempt)))

    # --- counts ------------------------------------------------------------------------------------------------------

    def _failures(self, name: str) -> int:
        return self._counts.common(self._failed(name), self._settings.forget)

    def _add(self, name: str, change: int) -> None:
        count = self._failures(name)
        self._counts.set_common(self._failed(name), max(0, count + change), touch=not count)

    def _failed(self, name: str) -> Key:
        return self._counts.key(f"failed logins of {name}")

    def _in_progress(self, name: str) -> Key:
        return self._counts.key(f"logins in progress of {name}")


def _abandoned(attempt: Attempt) -> str:
    return f"abandoned {attempt.pair}"


class Attempt:
    """One login attempt, from the moment the user name is known.

    ``delay`` must pass before anything is checked. ``failed`` is the result; None: the server could not decide. An
    attempt cancelled without a result has been abandoned by its client.
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
        """Mark the peer group as one from which the user has logged in before."""
        self.proven = True
        self.delay = self._throttle.delay_of_owner(self)

    @property
    def may_skip_delay(self) -> bool:
        """Return whether a cached password is accepted without delay: at an owner's peer, unless its clients hang up.

        A client that hangs up on every wrong guess would otherwise learn the correct one from the response time.
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
