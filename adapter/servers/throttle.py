"""Failed logins cost time: a delay that doubles with every failure, for the address it came from and for the user.

Invariants: attempts under way count as failures until they are known to be none, so many at once gain nothing; memory
is bounded whatever an attacker tries; what was long ago is forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from adapter.settings import Login

_MAX_KEYS = 20_000


class _Record:
    __slots__ = ("failures", "last", "pending")

    def __init__(self, now: float) -> None:
        self.failures = 0
        self.pending = 0
        self.last = now


class Throttle:
    def __init__(self, settings: Login, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._records: dict[str, _Record] = {}  # the one touched longest ago first

    def attempt(self, *keys: str) -> Attempt:
        """An attempt that counts for all of these keys; wait for its ``delay`` before anything is checked."""
        return Attempt(self, keys)

    def _begin(self, key: str) -> float:
        record = self._touch(key)
        over = record.failures + record.pending - self._settings.free_failures
        record.pending += 1
        if over < 0:
            return 0.0
        return float(min(self._settings.delay * 2.0 ** min(over, 60), self._settings.longest_delay))

    def _end(self, key: str, failed: bool | None, forgive: bool) -> None:
        record = self._touch(key)
        record.pending = max(0, record.pending - 1)
        if failed:
            record.failures += 1
        elif failed is False and forgive:
            record.failures = 0
        if not record.failures and not record.pending:
            del self._records[key]

    def _touch(self, key: str) -> _Record:
        now = self._clock()
        record = self._records.pop(key, None)
        if record is None:
            while len(self._records) >= _MAX_KEYS:
                del self._records[next(iter(self._records))]
            record = _Record(now)
        if now - record.last > self._settings.forget:
            record.failures = 0
        record.last = now
        self._records[key] = record
        return record


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
