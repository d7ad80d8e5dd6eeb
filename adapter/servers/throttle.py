"""Failed logins cost time: a delay that doubles with every failure, for the address it came from and for the user,
whichever worker they come to.

Invariants: attempts under way count as failures until they are known to be none, so many at once gain nothing; memory
is bounded whatever an attacker tries; what was long ago is forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from adapter.servers.shared_counts import Key, SharedCounts
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

    def attempt(self, *keys: str, forgiven: str = "") -> Attempt:
        """An attempt that counts for all of these keys; wait for its ``delay`` before anything is checked.

        What ``forgiven``, one of them, has failed before is forgotten if it succeeds.
        """
        return Attempt(self, keys, forgiven)

    def _begin(self, name: str) -> float:
        failed, under_way = self._keys(name)
        with self._counts.exclusive():
            failures = self._counts.common(failed, self._settings.forget)
            over = failures + sum(self._counts.of_workers(under_way)) - self._settings.free_failures
            self._counts.add(under_way)
        if over < 0:
            return 0.0
        return float(min(self._settings.delay * 2.0 ** min(over, 60), self._settings.longest_delay))

    def _end(self, name: str, has_failed: bool | None, forgive: bool) -> None:
        failed, under_way = self._keys(name)
        with self._counts.exclusive():
            self._counts.take(under_way)
            if has_failed:
                self._counts.set_common(failed, self._counts.common(failed, self._settings.forget) + 1)
            elif has_failed is False and forgive:
                self._counts.set_common(failed, 0)

    def _keys(self, name: str) -> tuple[Key, Key]:
        return self._counts.key(f"failed logins of {name}"), self._counts.key(f"logins under way of {name}")


class Attempt:
    """``failed`` says how it ended; None: it was given up, or nobody could tell."""

    def __init__(self, throttle: Throttle, keys: tuple[str, ...], forgiven: str) -> None:
        self._throttle = throttle
        self._keys = keys
        self._forgiven = forgiven
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
        for key in self._keys:
            self._throttle._end(key, self.failed, forgive=key == self._forgiven)
