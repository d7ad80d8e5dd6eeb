"""Failed logins cost time: a delay that doubles with every failure, for the address it came from and for the user,
whichever worker they come to.

Invariants: attempts under way count as failures until they are known to be none, so many at once gain nothing; memory
is bounded whatever an attacker tries; what was long ago is forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from adapter.servers.shared_counts import SharedCounts
from adapter.settings import Login


class Throttle:
    def __init__(
        self, settings: Login, clock: Callable[[], float] = time.monotonic, counts: SharedCounts | None = None
    ) -> None:
        self._settings = settings
        self._counts = counts or SharedCounts(clock=clock)

    def apply(self, settings: Login) -> None:
        """Go by these settings from now on; failures stay counted."""
        self._settings = settings

    def attempt(self, *keys: str) -> Attempt:
        """An attempt that counts for all of these keys; wait for its ``delay`` before anything is checked."""
        return Attempt(self, keys)

    def _begin(self, key: str) -> float:
        with self._counts.exclusive():
            failures = self._counts.common(_failed(key), self._settings.forget)
            over = failures + sum(self._counts.of_workers(_under_way(key))) - self._settings.free_failures
            self._counts.add(_under_way(key))
        if over < 0:
            return 0.0
        return float(min(self._settings.delay * 2.0 ** min(over, 60), self._settings.longest_delay))

    def _end(self, key: str, failed: bool | None, forgive: bool) -> None:
        with self._counts.exclusive():
            self._counts.take(_under_way(key))
            if failed:
                failures = self._counts.common(_failed(key), self._settings.forget)
                self._counts.set_common(_failed(key), failures + 1)
            elif failed is False and forgive:
                self._counts.set_common(_failed(key), 0)


def _failed(key: str) -> str:
    return f"failed logins of {key}"


def _under_way(key: str) -> str:
    return f"logins under way of {key}"


class Attempt:
    """``failed`` says how it ended; None: it was given up, or nobody could tell. The first key is forgiven."""

    def __init__(self, throttle: Throttle, keys: tuple[str, ...]) -> None:
        self._throttle = throttle
        self._keys = keys
        self.delay = 0.0
        self.failed: bool | None = None

    def __enter__(self) -> Attempt:
        self.delay = max((self._throttle._begin(key) for key in self._keys), default=0.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A success clears the user's record but not the address's: else one good account would open the way for
        # guessing at all others.
        for number, key in enumerate(self._keys):
            self._throttle._end(key, self.failed, forgive=number == 0)
